//! Attributes of the kernel, round trips, and forged bytes.

use super::format::*;
use crate::base::{Errno, InodeNumber, PhysicalBlock};

fn inline(full_name: &str, value: &[u8]) -> Xattr {
    let (index, suffix) = split_name(full_name.as_bytes()).unwrap();
    Xattr {
        index,
        suffix: suffix.to_vec(),
        value: XattrValue::Inline(value.to_vec()),
    }
}

fn sorted(mut xattrs: Vec<Xattr>) -> Vec<Xattr> {
    xattrs.sort_by(|a, b| (a.index, &a.suffix).cmp(&(b.index, &b.suffix)));
    xattrs
}

/// The file system of the bytes below: 1 KiB blocks, UUID 01234567-89ab-cdef-0123-456789abcdef.
const CHECKSUM_SEED: Option<u32> = Some(0x688c_b585);
const BLOCK: PhysicalBlock = PhysicalBlock(1618);

/// `setfacl -m u:1000:rw,g:50:r`, `setfattr -n user.long` (300 times x) and
/// `-n security.foo -v odd`, in a block, as Linux 6.18 wrote it.
fn kernel_block() -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    let words: [u32; 23] = [
        0xea02_0000,
        1,
        1,
        0x5c25_1fd6,
        0x2a83_24b3,
        0,
        0,
        0, // header
        0x02b0_0104,
        0,
        300,
        0xc9df_784f,
        0x676e_6f6c, // user.long
        0x03dc_0200,
        0,
        36,
        0x03f7_0011, // system.posix_acl_access
        0x02ac_0603,
        0,
        3,
        0x95eb_646e,
        0x006f_6f66, // security.foo
        0,
    ];
    for (at, word) in words.iter().enumerate() {
        bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes[0x2ac..0x2af].copy_from_slice(b"odd");
    bytes[0x2b0..0x3dc].fill(b'x');
    bytes[0x3dc..].copy_from_slice(&ACL);
    bytes
}

const ACL: [u8; 36] = [
    1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 6, 0, 0xe8, 3, 0, 0, 4, 0, 4, 0, 8, 0, 4, 0, 0x32, 0, 0, 0, 0x10,
    0, 6, 0, 0x20, 0, 4, 0,
];

fn kernel_block_xattrs() -> Vec<Xattr> {
    vec![
        inline("user.long", &[b'x'; 300]),
        inline("system.posix_acl_access", &ACL),
        inline("security.foo", b"odd"),
    ]
}

#[test]
fn xattr_block_of_the_kernel_is_read() {
    let block = parse_block(&kernel_block(), BLOCK, CHECKSUM_SEED).unwrap();
    assert_eq!(block.reference_count, 1);
    assert_eq!(block.xattrs, kernel_block_xattrs());
}

#[test]
fn hashes_equal_those_of_the_kernel() {
    let layout = lay_out(&kernel_block_xattrs(), 0, 1024).unwrap();
    let block = layout.block.unwrap();
    let kernel = kernel_block();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    for (what, at) in [
        ("h_hash", 12),
        ("user.long", 44),
        ("acl", 64),
        ("security.foo", 80),
    ] {
        assert_eq!(word(&block, at), word(&kernel, at), "{what}");
    }
}

#[test]
fn xattrs_in_inode_of_the_kernel_are_read() {
    let mut area = vec![0; 96];
    let words: [u32; 17] = [
        0xea02_0000,
        0x0058_0106,
        0,
        4,
        0,
        0x6f6c_6f63,
        0x0000_7275, // user.*, "colo", "ur"
        0x0000_0105,
        0,
        0,
        0,
        0x7470_6d65,
        0x0000_0079, // user.*, "empt", "y"
        0x0050_0401,
        0,
        5,
        0, // trusted.*, "t"
    ];
    for (at, word) in words.iter().enumerate() {
        area[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
    }
    area[68] = b't';
    area[84..89].copy_from_slice(b"12345");
    area[92..96].copy_from_slice(b"blue");
    let xattrs = parse_inode_area(&area).unwrap();
    assert_eq!(
        xattrs,
        [
            inline("user.colour", b"blue"),
            inline("user.empty", b""),
            inline("trusted.t", b"12345")
        ]
    );
    let layout = lay_out(&xattrs, 96, 1024).unwrap();
    assert_eq!(layout.block, None);
    assert_eq!(
        sorted(parse_inode_area(&layout.inode_area).unwrap()),
        sorted(xattrs)
    );
}

#[test]
fn inode_without_xattrs_is_zeroed() {
    assert_eq!(
        lay_out(&[], 96, 4096).unwrap(),
        XattrLayout {
            inode_area: vec![0; 96],
            block: None
        }
    );
    assert_eq!(parse_inode_area(&[0; 96]).unwrap(), []);
    assert_eq!(parse_inode_area(&[]).unwrap(), []);
}

#[test]
fn xattrs_that_do_not_fit_fail_with_enospc() {
    let big = |n: usize| inline(&format!("user.{n}"), &[7; 400]);
    assert!(lay_out(&[big(1), big(2)], 96, 1024).is_ok());
    assert_eq!(
        lay_out(&[big(1), big(2), big(3)], 96, 1024)
            .unwrap_err()
            .errno(),
        Errno::NOSPC
    );
    // `system.data` must be in the inode.
    let data = inline("system.data", &[7; 100]);
    assert_eq!(
        lay_out(&[data], 96, 1024).unwrap_err().errno(),
        Errno::NOSPC
    );
    let data = inline("system.data", &[7; 40]);
    let layout = lay_out(
        &[big(1), inline("user.small", &[1; 30]), data.clone()],
        96,
        1024,
    )
    .unwrap();
    assert_eq!(parse_inode_area(&layout.inode_area).unwrap(), [data]);
}

#[test]
fn xattrs_survive_a_round_trip() {
    use proptest::prelude::*;
    let names = prop::collection::btree_set("(user|trusted|security)\\.[a-z0-9.]{1,40}", 0..8);
    let values = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 8);
    let sizes = (
        0_usize..30,
        prop::sample::select(vec![1024_usize, 2048, 4096]),
    );
    proptest!(|(names in names, values in values, (area, block_size) in sizes)| {
        let area = area * 4;
        let xattrs: Vec<_> = names.iter().zip(values).map(|(name, value)| inline(name, &value)).collect();
        let Ok(XattrLayout { inode_area, block }) = lay_out(&xattrs, area, block_size) else {
            let total: usize = xattrs.iter().map(Xattr::stored_len).sum();
            prop_assert!(total + 200 > block_size, "{total} bytes do not fit {block_size}");
            return Ok(());
        };
        prop_assert_eq!(inode_area.len(), area);
        let mut back = parse_inode_area(&inode_area).unwrap();
        if let Some(mut block) = block {
            seal_block(&mut block, BLOCK, CHECKSUM_SEED);
            back.extend(parse_block(&block, BLOCK, CHECKSUM_SEED).unwrap().xattrs);
        }
        prop_assert_eq!(sorted(back), sorted(xattrs));
    });
}

#[test]
fn values_in_other_inodes_are_kept() {
    let value = XattrValue::EaInode {
        number: InodeNumber(77),
        size_bytes: 100_000,
        hash: 0xdead_beef,
    };
    let xattr = Xattr {
        index: 1,
        suffix: b"huge".to_vec(),
        value,
    };
    for area in [96, 0] {
        let layout = lay_out(std::slice::from_ref(&xattr), area, 1024).unwrap();
        let back = match layout.block {
            Some(block) => parse_block(&block, BLOCK, None).unwrap().xattrs,
            None => parse_inode_area(&layout.inode_area).unwrap(),
        };
        assert_eq!(back, std::slice::from_ref(&xattr));
    }
}

#[test]
fn names_split_at_known_prefixes() {
    let split = |name: &str| {
        split_name(name.as_bytes())
            .map(|(index, suffix)| (index, suffix.to_vec()))
            .map_err(|e| e.errno())
    };
    assert_eq!(split("user.a.b"), Ok((1, b"a.b".to_vec())));
    assert_eq!(split("system.posix_acl_access"), Ok((2, vec![])));
    assert_eq!(split("system.posix_acl_default"), Ok((3, vec![])));
    assert_eq!(split("system.richacl"), Ok((8, vec![])));
    assert_eq!(split("system.data"), Ok((7, b"data".to_vec())));
    assert_eq!(split("user."), Err(Errno::INVAL));
    assert_eq!(split("colour"), Err(Errno::OPNOTSUPP));
    assert_eq!(
        split(&format!("user.{}", "x".repeat(256))),
        Err(Errno::RANGE)
    );
    for name in [
        "user.a.b",
        "system.posix_acl_access",
        "security.selinux",
        "trusted.overlay.opaque",
        "system.data",
    ] {
        assert_eq!(inline(name, b"").full_name().unwrap(), name.as_bytes());
    }
    assert_eq!(
        Xattr {
            index: 9,
            suffix: b"c".to_vec(),
            value: XattrValue::Inline(vec![])
        }
        .full_name(),
        None
    );
}

#[test]
fn forged_xattrs_fail() {
    type Forgery = (&'static str, fn(&mut [u8]));
    let forgeries: [Forgery; 7] = [
        ("bad magic", |bytes| bytes[0] = 1),
        ("spans 2 blocks", |bytes| bytes[8] = 2),
        ("reference count is 0", |bytes| bytes[4] = 0),
        ("name with a zero byte", |bytes| bytes[49] = 0),
        ("value overlaps the entries", |bytes| bytes[34..36].fill(0)),
        ("value exceeds the area", |bytes| bytes[41] = 0xff),
        ("value exceeds the area", |bytes| bytes[40..44].fill(0xff)),
    ];
    for (what, forge) in forgeries {
        let mut bytes = kernel_block();
        forge(&mut bytes);
        let text = parse_block(&bytes, BLOCK, None).unwrap_err().to_string();
        assert!(text.starts_with("xattr block 1618: "), "{text}");
        assert!(text.contains(what), "{what}: {text}");
    }
    let mut bytes = kernel_block();
    bytes[0x300] = b'y';
    let error = parse_block(&bytes, BLOCK, CHECKSUM_SEED).unwrap_err();
    assert_eq!(error.to_string(), "xattr block 1618: bad checksum");
    assert!(parse_block(&kernel_block(), PhysicalBlock(1619), CHECKSUM_SEED).is_err());
    assert!(parse_block(&[0; 8], BLOCK, None).is_err());
    // Entries without an end: the inode's area is cut anywhere within them.
    for len in 4..kernel_block().len() - 28 {
        let mut bytes = kernel_block();
        bytes[28..32].copy_from_slice(&MAGIC.to_le_bytes());
        assert!(
            parse_inode_area(&bytes[28..28 + len]).is_err(),
            "{len} bytes"
        );
    }
}

#[test]
fn random_xattr_bytes_never_panic() {
    use proptest::prelude::*;
    let changes = prop::collection::vec((0_usize..1024, any::<u8>()), 0..40);
    proptest!(|(changes in changes, len in 0_usize..200)| {
        let mut bytes = kernel_block();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let _ = parse_block(&bytes, BLOCK, None);
        bytes[28..32].copy_from_slice(&MAGIC.to_le_bytes());
        let _ = parse_inode_area(&bytes[28..28 + len]);
    });
}
