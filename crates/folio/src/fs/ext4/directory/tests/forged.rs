//! Forged bytes: every reader fails or ends, and never panics.

use super::*;

/// Returns a directory with an index of two levels or, with few names, a linear one.
fn sample(checksum_seed: Option<u32>, names: u64) -> (Blocks, bool) {
    let blocks = Blocks::new(context(1024, checksum_seed));
    let mut is_indexed = false;
    for number in 0..names {
        let name = format!("{number:0120}");
        insert(
            &blocks,
            &mut is_indexed,
            name.as_bytes(),
            InodeNumber(50),
            FileType::Regular,
        )
        .unwrap();
    }
    (blocks, is_indexed)
}

#[test]
fn changed_byte_fails_checksum() {
    let (blocks, is_indexed) = sample(Some(5), 1500);
    assert!(is_indexed);
    let whole = blocks.names().unwrap();
    for block in 0..blocks.block_count() {
        for at in [0, 4, 6, 9, 16, 28, 30, 34, 40, 500, 1000, 1016, 1022] {
            let at = at as usize;
            blocks.forge(block, |bytes| bytes[at] ^= 0x10);
            let listed = blocks.names();
            blocks.forge(block, |bytes| bytes[at] ^= 0x10);
            // Unused bytes of an index block between its entries and its tail are not covered.
            if let Ok(names) = listed {
                assert_eq!(names, whole, "block {block}, byte {at}");
            }
        }
    }
    blocks.forge(3, |bytes| bytes[600] ^= 1);
    let error = blocks.names().unwrap_err().to_string();
    assert_eq!(error, "directory inode 12, block 3: bad checksum");
}

#[test]
fn forged_entries_fail() {
    type Forgery = (&'static str, fn(&mut [u8]));
    let forgeries: [Forgery; 8] = [
        ("bad length 0", |bytes| bytes[28..30].fill(0)),
        ("bad length 8", |bytes| bytes[28] = 8),
        ("bad length 127", |bytes| bytes[28] = 127),
        ("bad length 65532", |bytes| {
            bytes[28..30].copy_from_slice(&[0xfc, 0xff])
        }),
        ("leaves no room", |bytes| {
            bytes[28..30].copy_from_slice(&(1000_u16 - 8).to_le_bytes())
        }),
        ("name of 255 bytes", |bytes| bytes[30] = 255),
        ("empty name", |bytes| bytes[30] = 0),
        ("slash", |bytes| bytes[33] = b'/'),
    ];
    for (what, forge) in forgeries {
        let (blocks, is_indexed) = sample(None, 3);
        assert!(!is_indexed);
        blocks.forge(0, forge);
        let error = blocks.names().unwrap_err();
        assert_eq!(error.errno(), Errno::UCLEAN);
        assert!(error.to_string().contains(what), "{error}");
        assert!(
            error
                .to_string()
                .starts_with("directory inode 12, block 0: entry at byte 24: "),
            "{error}"
        );
    }
    let (blocks, _) = sample(None, 3);
    blocks.forge(0, |bytes| {
        bytes[30] = 2;
        bytes[32..34].copy_from_slice(b"..");
    });
    assert!(
        blocks
            .names()
            .unwrap_err()
            .to_string()
            .contains("out of place")
    );
}

#[test]
fn forged_indexes_fail() {
    type Forgery = (&'static str, fn(&mut [u8]));
    let root_forgeries: [Forgery; 11] = [
        ("unknown directory hash version 9", |bytes| bytes[28] = 9),
        ("siphash", |bytes| bytes[28] = 6),
        ("unknown form", |bytes| bytes[29] = 16),
        ("index of 3 levels", |bytes| bytes[30] = 2),
        ("unknown form", |bytes| bytes[31] = 1),
        ("index limit 200, should be 124", |bytes| bytes[32] = 200),
        ("index count 0 of", |bytes| bytes[34] = 0),
        ("index count 125 of", |bytes| bytes[34] = 125),
        ("past the end", |bytes| {
            (0..124).for_each(|entry| bytes[36 + 8 * entry + 2] = 0xff)
        }),
        ("points back to block 0", |bytes| {
            (0..124).for_each(|entry| bytes[36 + 8 * entry..][..4].fill(0))
        }),
        ("not the root", |bytes| bytes[16] = 12),
    ];
    for (what, forge) in root_forgeries {
        let (blocks, mut is_indexed) = sample(None, 1500);
        blocks.forge(0, forge);
        let error = find(&blocks, is_indexed, b"nothing").unwrap_err();
        assert!(error.to_string().contains(what), "{what}: {error}");
        assert!(
            error.to_string().contains("directory inode 12, block 0"),
            "{error}"
        );
        assert!(
            insert(
                &blocks,
                &mut is_indexed,
                b"new",
                InodeNumber(5),
                FileType::Fifo
            )
            .is_err()
        );
        assert!(remove(&blocks, is_indexed, b"new").is_err());
    }
    let (blocks, _) = sample(None, 100);
    blocks.forge(0, |bytes| bytes[48..52].fill(0xff));
    assert!(
        find(&blocks, true, b"nothing")
            .unwrap_err()
            .to_string()
            .contains("out of order")
    );
}

#[test]
fn forged_chain_of_leaves_ends() {
    let (blocks, _) = sample(None, 1500);
    // Every entry of the root claims to continue the hash of the looked-up name, in one and the
    // same leaf.
    let name = b"nothing";
    let hash = hash(name, HashVersion::HalfMd4, false, &blocks.context.hash_seed);
    blocks.forge(0, |bytes| {
        bytes[30] = 0;
        bytes[34] = 124;
        for entry in 0..124 {
            let at = 32 + 8 * entry;
            if entry > 0 {
                bytes[at..at + 4].copy_from_slice(&(hash | 1).to_le_bytes());
            }
            bytes[at + 4..at + 8].copy_from_slice(&1_u32.to_le_bytes());
        }
    });
    let found = find(&blocks, true, name).unwrap_err();
    assert_eq!(
        found.to_string(),
        "directory inode 12, block 0: index leads to block 1 twice"
    );
    let listed = iterate(&blocks, true, 0, &mut |_| ControlFlow::Continue(()));
    assert!(listed.unwrap_err().to_string().contains("twice"));
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Random(11);
    for round in 0..3_000 {
        let checksum_seed = None;
        let (blocks, mut is_indexed) = if round % 2 == 0 {
            sample(checksum_seed, 5)
        } else {
            sample(checksum_seed, 30)
        };
        for _ in 0..1 + random.below(6) {
            let block = random.below(u64::from(blocks.block_count())) as u32;
            let (at, value) = (random.below(64) as usize, random.below(256) as u8);
            blocks.forge(block, |bytes| bytes[at] = value);
        }
        let _ = blocks.names();
        let _ = iterate(&blocks, is_indexed, 0, &mut |_| ControlFlow::Continue(()));
        let _ = find(&blocks, is_indexed, b"nothing");
        for number in 0..12 {
            let name = format!("{number:0200}");
            let _ = insert(
                &blocks,
                &mut is_indexed,
                name.as_bytes(),
                InodeNumber(5),
                FileType::Fifo,
            );
            let _ = remove(&blocks, is_indexed, format!("{number:0120}").as_bytes());
        }
        let _ = replace(
            &blocks,
            is_indexed,
            b"..",
            InodeNumber(5),
            FileType::Directory,
        );
        let _ = (parent(&blocks), is_empty(&blocks));
    }
}

#[test]
fn casefolded_directory_ignores_case() {
    let (mut blocks, mut is_indexed) = sample(Some(5), 100);
    blocks.context.casefold = true;
    let name = format!("{:0120}", 50);
    assert!(
        find(&blocks, is_indexed, name.as_bytes())
            .unwrap()
            .is_some()
    );
    let mut insert = |name: &str| {
        let (name, number) = (name.as_bytes(), InodeNumber(5));
        insert(&blocks, &mut is_indexed, name, number, FileType::Fifo)
    };
    insert("Stra\u{df}e").unwrap();
    assert_eq!(insert("STRASSE").unwrap_err().errno(), Errno::EXIST);
    let found = find(&blocks, is_indexed, b"strasse").unwrap();
    assert_eq!(found.unwrap().number, InodeNumber(5));
    remove(&blocks, is_indexed, b"sTRASSE").unwrap();
    let found = find(&blocks, is_indexed, "Stra\u{df}e".as_bytes()).unwrap();
    assert!(found.is_none());
}
