//! Large directories and xattrs of ext4: Folio's pass e2fsck and the kernel, the kernel's read
//! equal.

mod inline;

use crate::support;

use folio::base::Errno;
use folio::block::RawDevice;
use folio::syscall::{AT_FDCWD, AtFlags, Credentials, OpenFlags, Process};
use folio::vfs::{MountOptions, XattrFlags};
use folio::{Kernel, KernelOptions};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::tools::{command, fsck, mke2fs, run, succeed, text};
use support::{Mounted, requires};
use tempfile::TempDir;

/// Mounts the file system in `image` at `/i`, calls a closure, and unmounts it.
pub(crate) fn with_image<T>(image: &Path, read_only: bool, work: impl FnOnce(&Process) -> T) -> T {
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/i", 0o755).unwrap();
    let device = Arc::new(RawDevice::open(image, read_only).unwrap());
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    kernel.mount_ext4(device, "/i", &options).unwrap();
    let out = work(&process);
    kernel.unmount("/i").unwrap();
    out
}

pub(crate) fn touch(process: &Process, path: &str) {
    let fd = process
        .open(path, OpenFlags::CREAT | OpenFlags::WRONLY, 0o644)
        .unwrap();
    process.close(fd).unwrap();
}

/// Returns the names in a directory, without `.` and `..`; checks that each occurs once.
pub(crate) fn names(process: &Process, path: &str) -> BTreeSet<Vec<u8>> {
    let fd = process.open(path, OpenFlags::DIRECTORY, 0).unwrap();
    let mut names = BTreeSet::new();
    loop {
        let batch = process.getdents(fd, 1000).unwrap();
        if batch.is_empty() {
            break;
        }
        for entry in batch {
            if entry.name != b"." && entry.name != b".." {
                assert!(names.insert(entry.name.clone()), "{:?} twice", entry.name);
            }
        }
    }
    process.close(fd).unwrap();
    names
}

fn host_names(path: &Path) -> BTreeSet<Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_vec())
        .collect()
}

/// Returns the `number`th of a set of names with lengths up to about `len_max`.
fn name(number: usize, len_max: usize) -> String {
    let filler = number.wrapping_mul(2_654_435_761) % len_max;
    format!("{number}-{}", "n\u{e9}".repeat(filler / 3))
}

/// One kind of file system for large directories.
struct Kind {
    label: &'static str,
    options: &'static [&'static str],
    hash: Option<&'static str>,
    count: usize,
    name_len_max: usize,
    /// The depth that debugfs must report: 0 is a root over leaves, `None` means unindexed.
    indirect_levels: Option<u32>,
}

const KINDS: [Kind; 8] = [
    Kind {
        label: "1k no filetype",
        options: &["-b", "1024", "-O", "^filetype"],
        hash: None,
        count: 1_000,
        name_len_max: 30,
        indirect_levels: Some(0),
    },
    Kind {
        label: "no dir_index",
        options: &["-b", "4096", "-O", "^dir_index"],
        hash: None,
        count: 2_000,
        name_len_max: 30,
        indirect_levels: None,
    },
    Kind {
        label: "4k",
        options: &["-b", "4096"],
        hash: None,
        count: 20_000,
        name_len_max: 30,
        indirect_levels: Some(0),
    },
    Kind {
        label: "1k",
        options: &["-b", "1024"],
        hash: None,
        count: 12_000,
        name_len_max: 60,
        indirect_levels: Some(1),
    },
    Kind {
        label: "2k tea",
        options: &["-b", "2048"],
        hash: Some("tea"),
        count: 9_000,
        name_len_max: 250,
        indirect_levels: Some(1),
    },
    Kind {
        label: "1k legacy",
        options: &["-b", "1024"],
        hash: Some("legacy"),
        count: 1_000,
        name_len_max: 30,
        indirect_levels: Some(0),
    },
    Kind {
        label: "1k no checksums",
        options: &["-b", "1024", "-O", "^metadata_csum"],
        hash: None,
        count: 12_000,
        name_len_max: 60,
        indirect_levels: Some(1),
    },
    Kind {
        label: "1k large_dir",
        options: &["-b", "1024", "-O", "large_dir"],
        hash: None,
        count: 60_000,
        name_len_max: 250,
        indirect_levels: Some(2),
    },
];

/// Fills `/i/big` with links to one file, removes and renames some; returns the expected names.
fn fill(process: &Process, kind: &Kind) -> BTreeSet<Vec<u8>> {
    process.mkdir("/i/big", 0o755).unwrap();
    touch(process, "/i/target");
    let mut left = BTreeSet::new();
    for number in 0..kind.count {
        let name = name(number, kind.name_len_max);
        process.link("/i/target", format!("/i/big/{name}")).unwrap();
        left.insert(name.into_bytes());
    }
    for number in (0..kind.count).step_by(7) {
        let old = name(number, kind.name_len_max);
        left.remove(old.as_bytes());
        if number % 2 == 0 {
            process.unlink(format!("/i/big/{old}")).unwrap();
        } else {
            process
                .rename(format!("/i/big/{old}"), format!("/i/big/renamed-{number}"))
                .unwrap();
            left.insert(format!("renamed-{number}").into_bytes());
        }
    }
    let again = process.link(
        "/i/target",
        format!("/i/big/{}", name(1, kind.name_len_max)),
    );
    assert_eq!(again.unwrap_err().errno(), Errno::EXIST);
    left
}

#[test]
fn large_directories_pass_e2fsck_and_debugfs() {
    requires!(
        tool("mke2fs"),
        tool("tune2fs"),
        tool("e2fsck"),
        tool("debugfs")
    );
    for kind in &KINDS {
        println!("{}", kind.label);
        let scratch = TempDir::new().unwrap();
        let image = scratch.path().join("disk.img");
        mke2fs(&image, "256M", kind.options);
        if let Some(hash) = kind.hash {
            run(
                "tune2fs",
                [
                    "-E",
                    &format!("hash_alg={hash}"),
                    &image.display().to_string(),
                ],
            );
        }
        let left = with_image(&image, false, |process| fill(process, kind));
        fsck(&image);
        if let Some(levels) = kind.indirect_levels {
            let dump = text(&succeed(
                command("debugfs")
                    .args(["-R", "htree_dump /big"])
                    .arg(&image),
            ));
            let line = format!("Indirect levels: {levels}");
            assert!(
                dump.contains(&line),
                "{}: {}",
                kind.label,
                &dump[..dump.len().min(600)]
            );
        }
        with_image(&image, true, |process| {
            assert_eq!(names(process, "/i/big"), left, "{}", kind.label);
            for name in left.iter().step_by(97) {
                process
                    .lstat(Path::new("/i/big").join(OsStr::from_bytes(name)))
                    .unwrap();
            }
        });
        if support::Need::LoopDevices.met().is_ok() {
            let mounted = Mounted::new(&image, "ro,noload");
            let big = mounted.path().join("big");
            assert_eq!(
                host_names(&big),
                left,
                "{}: as the kernel lists it",
                kind.label
            );
            for name in left.iter().step_by(97) {
                std::fs::symlink_metadata(big.join(OsStr::from_bytes(name))).unwrap();
            }
            mounted.unmount();
        }
    }
}

#[test]
fn kernel_directories_read_equal_and_grow() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    for options in [&["-b", "1024"], &["-b", "4096"]] {
        let scratch = TempDir::new().unwrap();
        let image = scratch.path().join("disk.img");
        mke2fs(&image, "256M", options);
        let mounted = Mounted::new(&image, "rw");
        let big = mounted.path().join("big");
        std::fs::create_dir(&big).unwrap();
        std::fs::write(mounted.path().join("target"), "").unwrap();
        let mut there = BTreeSet::new();
        for number in 0..15_000 {
            let name = name(number, 90);
            std::fs::hard_link(mounted.path().join("target"), big.join(&name)).unwrap();
            there.insert(name.into_bytes());
        }
        mounted.unmount();
        with_image(&image, false, |process| {
            assert_eq!(names(process, "/i/big"), there);
            for name in &there {
                process
                    .lstat(Path::new("/i/big").join(OsStr::from_bytes(name)))
                    .unwrap();
            }
            for number in 15_000..20_000 {
                let name = name(number, 90);
                process.link("/i/target", format!("/i/big/{name}")).unwrap();
                there.insert(name.into_bytes());
            }
            for number in 0..3_000 {
                let name = name(number, 90);
                process.unlink(format!("/i/big/{name}")).unwrap();
                there.remove(name.as_bytes());
            }
        });
        fsck(&image);
        let mounted = Mounted::new(&image, "rw");
        let big = mounted.path().join("big");
        assert_eq!(host_names(&big), there);
        for number in 20_000..24_000 {
            let name = name(number, 90);
            std::fs::hard_link(mounted.path().join("target"), big.join(&name)).unwrap();
            there.insert(name.into_bytes());
        }
        mounted.unmount();
        fsck(&image);
        with_image(&image, true, |process| {
            assert_eq!(names(process, "/i/big"), there)
        });
        let mounted = Mounted::new(&image, "rw");
        std::fs::remove_dir_all(mounted.path().join("big")).unwrap();
        mounted.unmount();
        fsck(&image);
    }
}

/// Returns attributes that fill the inode and then a block, with names of every prefix.
fn attributes() -> Vec<(String, Vec<u8>)> {
    vec![
        ("user.colour".into(), b"blue".to_vec()),
        ("user.empty".into(), Vec::new()),
        ("user.long".into(), vec![b'x'; 300]),
        ("trusted.overlay.opaque".into(), b"y".to_vec()),
        (
            "security.selinux".into(),
            b"system_u:object_r:etc_t:s0\0".to_vec(),
        ),
        ("user.umlaut.\u{e4}".into(), vec![0, 255, 1, 2, 3]),
    ]
}

/// `u::rw-,u:1000:rw-,g::r--,g:50:r--,m::rw-,o::r--` in the kernel's form.
const ACL: [u8; 52] = [
    2, 0, 0, 0, //
    1, 0, 6, 0, 255, 255, 255, 255, //
    2, 0, 6, 0, 0xe8, 3, 0, 0, //
    4, 0, 4, 0, 255, 255, 255, 255, //
    8, 0, 4, 0, 50, 0, 0, 0, //
    16, 0, 6, 0, 255, 255, 255, 255, //
    32, 0, 4, 0, 255, 255, 255, 255,
];

fn host_xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0_u8; 65536];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

/// Sets attributes and ACLs of a file, a directory and a link.
fn set_xattrs(process: &Process) {
    touch(process, "/i/file");
    process.mkdir("/i/folder", 0o755).unwrap();
    process.symlink("file", "/i/link").unwrap();
    for (name, value) in attributes() {
        for path in ["/i/file", "/i/folder"] {
            process
                .setxattr(path, name.as_bytes(), &value, XattrFlags::CREATE)
                .unwrap();
        }
    }
    process
        .lsetxattr("/i/link", b"trusted.t", b"on the link", XattrFlags::empty())
        .unwrap();
    let again = process.setxattr("/i/file", b"user.colour", b"red", XattrFlags::CREATE);
    assert_eq!(again.unwrap_err().errno(), Errno::EXIST);
    process
        .setxattr("/i/file", b"user.gone", &[7; 100], XattrFlags::empty())
        .unwrap();
    process.removexattr("/i/file", b"user.gone").unwrap();
    let too_much = process.setxattr("/i/file", b"user.huge", &[7; 5000], XattrFlags::empty());
    assert_eq!(too_much.unwrap_err().errno(), Errno::NOSPC);
    process
        .setxattr(
            "/i/file",
            b"system.posix_acl_access",
            &ACL,
            XattrFlags::empty(),
        )
        .unwrap();
    assert_eq!(
        process.stat("/i/file").unwrap().mode,
        0o664,
        "the mask is the mode's group"
    );
    process.chmod("/i/file", 0o640).unwrap();
    let acl = process
        .getxattr("/i/file", b"system.posix_acl_access")
        .unwrap();
    assert_eq!(acl[38], 4, "the mask follows the mode");
    process
        .setxattr(
            "/i/folder",
            b"system.posix_acl_default",
            &ACL,
            XattrFlags::empty(),
        )
        .unwrap();
}

/// Checks the attributes of [`set_xattrs`] by the kernel's mount.
fn check_xattrs_in_the_kernel(mounted: &Mounted) {
    for (name, value) in attributes() {
        for path in ["file", "folder"] {
            assert_eq!(
                host_xattr(&mounted.path().join(path), &name),
                Some(value.clone()),
                "{path}: {name}"
            );
        }
    }
    let default = host_xattr(&mounted.path().join("folder"), "system.posix_acl_default");
    assert_eq!(default.as_deref(), Some(&ACL[..]));
    assert_eq!(
        host_xattr(&mounted.path().join("link"), "trusted.t"),
        Some(b"on the link".to_vec())
    );
}

#[test]
fn xattrs_pass_e2fsck_and_the_kernel() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    for options in [
        &["-b", "1024"][..],
        &["-b", "4096", "-I", "512"],
        &["-b", "1024", "-I", "128"],
    ] {
        let scratch = TempDir::new().unwrap();
        let image = scratch.path().join("disk.img");
        mke2fs(&image, "64M", options);
        with_image(&image, false, set_xattrs);
        fsck(&image);
        with_image(&image, true, |process| {
            let listed: BTreeSet<_> = process.listxattr("/i/file").unwrap().into_iter().collect();
            assert_eq!(listed.len(), attributes().len() + 1, "{listed:?}");
            for (name, value) in attributes() {
                assert_eq!(
                    process.getxattr("/i/file", name.as_bytes()).unwrap(),
                    value,
                    "{name}"
                );
            }
        });
        if support::Need::LoopDevices.met().is_err() {
            continue;
        }
        let mounted = Mounted::new(&image, "ro,noload");
        check_xattrs_in_the_kernel(&mounted);
        mounted.unmount();
    }
}

#[test]
fn kernel_xattrs_read_equal() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    let huge: Vec<u8> = (0..20_000_u32).map(|number| number as u8).collect();
    let mut set = attributes();
    set.push(("user.huge".into(), huge));
    set.push(("system.posix_acl_access".into(), ACL.to_vec()));
    let write = |folder: &Path| {
        let flags = rustix::fs::XattrFlags::empty();
        let (file, twin) = (folder.join("file"), folder.join("twin"));
        std::fs::write(&file, "x")?;
        for (name, value) in &set {
            rustix::fs::setxattr(&file, name.as_str(), value, flags)?;
        }
        // Equal attributes of two files may share a block; changing one file must not change the
        // other.
        std::fs::write(&twin, "x")?;
        for path in [&file, &twin] {
            rustix::fs::setxattr(path, "user.twin", &[9; 50], flags)?;
        }
        Ok::<_, std::io::Error>(())
    };
    // On a busy machine, Linux 6.18 at times reserves too little of its journal for an attribute in
    // an inode of its own, and then stops all writing.
    let is_written = (0..5).any(|_| {
        mke2fs(&image, "64M", &["-O", "ea_inode"]);
        let mounted = Mounted::new(&image, "rw");
        let written = write(&mounted.path());
        mounted.unmount();
        if let Err(error) = &written {
            assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        }
        written.is_ok()
    });
    assert!(is_written);
    with_image(&image, true, |process| {
        for (name, value) in &set {
            assert_eq!(
                &process.getxattr("/i/file", name.as_bytes()).unwrap(),
                value,
                "{name}"
            );
        }
        assert_eq!(process.getxattr("/i/twin", b"user.twin").unwrap(), [9; 50]);
    });
}

#[test]
fn shared_xattr_block_is_copied_on_write() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "64M", &["-b", "4096"]);
    let mounted = Mounted::new(&image, "rw");
    let paths: Vec<PathBuf> = (0..3)
        .map(|number| mounted.path().join(format!("file-{number}")))
        .collect();
    for path in &paths {
        std::fs::write(path, "x").unwrap();
        rustix::fs::setxattr(
            path,
            "user.same",
            &[9; 500],
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
    }
    mounted.unmount();
    with_image(&image, false, |process| {
        process
            .setxattr("/i/file-0", b"user.same", &[8; 500], XattrFlags::REPLACE)
            .unwrap();
        process.removexattr("/i/file-1", b"user.same").unwrap();
        assert_eq!(
            process.getxattr("/i/file-2", b"user.same").unwrap(),
            [9; 500]
        );
    });
    fsck(&image);
    with_image(&image, false, |process| {
        process.unlink("/i/file-2").unwrap()
    });
    fsck(&image);
}

#[test]
fn kernel_inline_files_and_directories_read_equal() {
    requires!(root, loop_devices, tool("mke2fs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "64M", &["-O", "inline_data", "-I", "512"]);
    let mounted = Mounted::new(&image, "rw");
    let folder = mounted.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    for (name, len) in [
        ("a", 1),
        ("b-name", 60),
        ("c", 61),
        ("d", 200),
        ("e-long-long-name", 5000),
    ] {
        std::fs::write(folder.join(name), vec![b'q'; len]).unwrap();
    }
    std::os::unix::fs::symlink("a", folder.join("link")).unwrap();
    let want = host_names(&folder);
    mounted.unmount();
    with_image(&image, true, |process| {
        assert_eq!(names(process, "/i/folder"), want);
        for (name, len) in [
            ("a", 1),
            ("b-name", 60),
            ("c", 61),
            ("d", 200),
            ("e-long-long-name", 5000),
        ] {
            let fd = process
                .open(format!("/i/folder/{name}"), OpenFlags::empty(), 0)
                .unwrap();
            let mut bytes = vec![0; 6000];
            assert_eq!(process.read(fd, &mut bytes).unwrap(), len, "{name}");
            assert!(bytes[..len].iter().all(|&byte| byte == b'q'));
            process.close(fd).unwrap();
        }
        let missing = process.fstatat(AT_FDCWD, "/i/folder/none", AtFlags::empty());
        assert_eq!(missing.unwrap_err().errno(), Errno::NOENT);
    });
}

/// mke2fs -d creates linear directories of any size.
#[test]
fn long_linear_directory_keeps_growing() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    std::fs::create_dir_all(tree.join("big")).unwrap();
    let mut there = BTreeSet::new();
    for number in 0..1_000 {
        let name = name(number, 60);
        std::fs::write(tree.join("big").join(&name), "").unwrap();
        there.insert(name.into_bytes());
    }
    let image = scratch.path().join("disk.img");
    mke2fs(
        &image,
        "64M",
        &["-b", "1024", "-d", &tree.display().to_string()],
    );
    with_image(&image, false, |process| {
        assert_eq!(names(process, "/i/big"), there);
        for number in 1_000..1_500 {
            let name = name(number, 60);
            touch(process, &format!("/i/big/{name}"));
            there.insert(name.into_bytes());
        }
        for number in 200..900 {
            process
                .unlink(format!("/i/big/{}", name(number, 60)))
                .unwrap();
            there.remove(name(number, 60).as_bytes());
        }
        assert_eq!(names(process, "/i/big"), there);
        process.mkdir("/i/other", 0o755).unwrap();
        process.rename("/i/big", "/i/other/moved").unwrap();
        assert_eq!(
            process.stat("/i/other/moved/..").unwrap().number,
            process.stat("/i/other").unwrap().number
        );
        assert_eq!(
            process.rmdir("/i/other/moved").unwrap_err().errno(),
            Errno::NOTEMPTY
        );
        for name in &there {
            process
                .unlink(Path::new("/i/other/moved").join(OsStr::from_bytes(name)))
                .unwrap();
        }
        process.rmdir("/i/other/moved").unwrap();
    });
    fsck(&image);
}

/// Returns the device blocks of a directory, as debugfs reports them.
fn blocks_of(image: &Path, path: &str) -> Vec<u64> {
    let output = succeed(
        command("debugfs")
            .args(["-R", &format!("blocks {path}")])
            .arg(image),
    );
    let numbers = String::from_utf8_lossy(&output.stdout).into_owned();
    numbers
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect()
}

/// Creates an image of 1 KiB blocks with 600 names in `/big`.
fn indexed_image(image: &Path, features: &str) {
    mke2fs(image, "8M", &["-b", "1024", "-O", features]);
    with_image(image, false, |process| {
        process.mkdir("/i/big", 0o755).unwrap();
        touch(process, "/i/target");
        for number in 0..600 {
            process
                .link("/i/target", format!("/i/big/{}", name(number, 60)))
                .unwrap();
        }
    });
}

#[test]
fn damaged_directory_error_names_inode_and_block() {
    requires!(tool("mke2fs"), tool("debugfs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    indexed_image(&image, "metadata_csum");
    let blocks = blocks_of(&image, "/big");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&image)
        .unwrap();
    file.write_all_at(b"damage", blocks[3] * 1024 + 500)
        .unwrap();
    with_image(&image, true, |process| {
        let number = process.stat("/i/big").unwrap().number;
        let fd = process.open("/i/big", OpenFlags::DIRECTORY, 0).unwrap();
        let error = loop {
            match process.getdents(fd, 10) {
                Ok(batch) => assert!(!batch.is_empty(), "the damage is not seen"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Errno::UCLEAN);
        let place = format!("directory inode {number}, block 3: bad checksum");
        assert!(error.to_string().contains(&place), "{error}");
        process.close(fd).unwrap();
    });
}

#[test]
fn damaged_directories_never_panic() {
    requires!(tool("mke2fs"), tool("debugfs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    indexed_image(&image, "^metadata_csum");
    let (whole, blocks) = (std::fs::read(&image).unwrap(), blocks_of(&image, "/big"));
    let mut random = 1_u64;
    let mut below = |bound: u64| {
        // Knuth's MMIX generator.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for _ in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..4 {
            // Half of the damage is in the root of the index, most of it in its header.
            let block = if below(2) == 0 {
                0
            } else {
                below(blocks.len() as u64)
            };
            let at = blocks[block as usize] * 1024
                + if below(2) == 0 {
                    below(64)
                } else {
                    below(1024)
                };
            bytes[at as usize] = below(256) as u8;
        }
        std::fs::write(&image, &bytes).unwrap();
        with_image(&image, false, |process| {
            if let Ok(fd) = process.open("/i/big", OpenFlags::DIRECTORY, 0) {
                while process
                    .getdents(fd, 50)
                    .is_ok_and(|batch| !batch.is_empty())
                {}
                process.close(fd).unwrap();
            }
            for number in (0..700).step_by(9) {
                let path = format!("/i/big/{}", name(number, 60));
                let _ = process.link("/i/target", format!("{path}-new"));
                let _ = process.unlink(path);
            }
        });
    }
}
