//! Single features of ext4 volumes: verity files, discarded space, and a journal that nothing asks
//! to replay.

mod bigalloc;
mod block_maps;
mod casefold;
mod ea_inode;
mod freeze;
mod large_blocks;
mod mmp;
mod quota;

use crate::names::with_image;
use crate::support::tools::{command, fsck, mke2fs, succeed};
use crate::support::{Mounted, requires};
use folio::base::Errno;
use folio::block::RawDevice;
use folio::syscall::{Credentials, OpenFlags, Process};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

fn debugfs(image: &Path, request: &str) {
    succeed(command("debugfs").args(["-w", "-R", request]).arg(image));
}

fn write(process: &Process, path: &str, len: usize) {
    let flags = OpenFlags::CREAT | OpenFlags::WRONLY;
    let fd = process.open(path, flags, 0o644).unwrap();
    process.write(fd, &vec![7; len]).unwrap();
    process.close(fd).unwrap();
}

#[test]
fn verity_file_cannot_change_its_contents() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "16M", &["-O", "verity"]);
    with_image(&image, false, |process| write(process, "/i/f", 10_000));
    // EXT4_VERITY_FL with EXT4_EXTENTS_FL.
    debugfs(&image, "set_inode_field f flags 0x180000");
    with_image(&image, false, |process| {
        let open = |flags| process.open("/i/f", flags, 0);
        for flags in [
            OpenFlags::WRONLY,
            OpenFlags::RDWR,
            OpenFlags::WRONLY | OpenFlags::TRUNC,
        ] {
            assert_eq!(open(flags).unwrap_err().errno(), Errno::PERM);
        }
        for size in [0, 100, 20_000] {
            let refused = process.truncate("/i/f", size).unwrap_err();
            assert_eq!(refused.errno(), Errno::PERM);
        }
        process.chmod("/i/f", 0o400).unwrap();
        process.link("/i/f", "/i/g").unwrap();
        let found = process.stat("/i/f").unwrap();
        assert_eq!((found.size_bytes, found.mode), (10_000, 0o400));
        let fd = open(OpenFlags::empty()).unwrap();
        let mut bytes = [0; 10];
        assert_eq!(process.pread(fd, &mut bytes, 9_995).unwrap(), 5);
        process.close(fd).unwrap();
    });
    fsck(&image);
    with_image(&image, false, |process| {
        process.unlink("/i/f").unwrap();
        process.unlink("/i/g").unwrap();
    });
    fsck(&image);
}

/// Linux 6.18 drops the transactions, too.
#[test]
fn journal_without_needs_recovery_is_emptied() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("e2fsck"),
        tool("debugfs")
    );
    let scratch = TempDir::new().unwrap();
    let (image, copy) = (scratch.path().join("disk.img"), scratch.path().join("copy"));
    mke2fs(&image, "32M", &[]);
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/i", 0o755).unwrap();
    let device = Arc::new(RawDevice::open(&image, false).unwrap());
    let options = MountOptions::default();
    kernel.mount_ext4(device, "/i", &options).unwrap();
    process.mkdir("/i/lost", 0o755).unwrap();
    process.sync().unwrap();
    fs::copy(&image, &copy).unwrap();
    kernel.unmount("/i").unwrap();
    debugfs(&copy, "feature -needs_recovery");
    let for_kernel = scratch.path().join("for-kernel");
    fs::copy(&copy, &for_kernel).unwrap();
    let mounted = Mounted::new(&for_kernel, "rw");
    assert!(!mounted.path().join("lost").exists());
    mounted.unmount();
    with_image(&copy, false, |process| {
        let missing = process.stat("/i/lost").unwrap_err();
        assert_eq!(missing.errno(), Errno::NOENT);
        write(process, "/i/new", 5000);
    });
    fsck(&copy);
    let mounted = Mounted::new(&copy, "rw");
    assert_eq!(fs::read(mounted.path().join("new")).unwrap(), [7; 5000]);
    mounted.unmount();
    fsck(&copy);
}

#[test]
fn journal_on_another_device_is_named() {
    requires!(tool("mke2fs"), tool("debugfs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "16M", &["-O", "^has_journal"]);
    let uuid = "11111111-2222-3333-4444-555555555555";
    for request in ["feature has_journal", &format!("ssv journal_uuid {uuid}")] {
        debugfs(&image, request);
    }
    let mount = |options: &str| {
        let kernel = Kernel::new(KernelOptions::default());
        kernel
            .process(Credentials::root())
            .mkdir("/i", 0o755)
            .unwrap();
        let options = MountOptions::parse(options).unwrap();
        let device = Arc::new(RawDevice::open(&image, options.read_only).unwrap());
        kernel.mount_ext4(device, "/i", &options)
    };
    let error = mount("rw").unwrap_err().to_string();
    assert!(error.contains(uuid) && error.contains("noload"), "{error}");
    mount("ro").unwrap();
    // Without its journal, what it holds is missing.
    debugfs(&image, "feature needs_recovery");
    let error = mount("ro").unwrap_err().to_string();
    assert!(error.contains(uuid), "{error}");
    mount("ro,noload").unwrap();
}

#[test]
fn fitrim_discards_only_free_blocks() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    const MIB: u64 = 1 << 20;
    for options in [["-O", "64bit"], ["-O", "^has_journal"]] {
        let scratch = TempDir::new().unwrap();
        let image = scratch.path().join("disk.img");
        mke2fs(&image, "64M", &options);
        let stored = || fs::metadata(&image).unwrap().blocks() * 512;
        with_image(&image, false, |process| {
            write(process, "/i/kept", 8 << 20);
            write(process, "/i/removed", 16 << 20);
            process.sync().unwrap();
            let before = stored();
            process.unlink("/i/removed").unwrap();
            let root = process.open("/i", OpenFlags::DIRECTORY, 0).unwrap();
            let trim = |range, len_min| process.fitrim(root, range, len_min);
            let beyond = trim(1 << 40..1 << 41, 0).unwrap_err();
            assert_eq!(beyond.errno(), Errno::INVAL);
            assert_eq!(trim(0..100, 0).unwrap_err().errno(), Errno::INVAL);
            let free = process.statfs("/i").unwrap().blocks_free;
            let discarded = trim(0..u64::MAX, 0).unwrap();
            assert!((30 * MIB..=60 * MIB).contains(&discarded), "{discarded}");
            assert!(
                before - stored() >= 16 * MIB,
                "{before} bytes, then {}",
                stored()
            );
            assert_eq!(process.statfs("/i").unwrap().blocks_free, free);
            let long = trim(0..u64::MAX, MIB).unwrap();
            assert!(long <= discarded);
            // What was discarded can be used again.
            write(process, "/i/again", 16 << 20);
            process.close(root).unwrap();
        });
        fsck(&image);
        with_image(&image, true, |process| {
            for (name, len) in [("kept", 8 * MIB), ("again", 16 * MIB)] {
                let fd = process.open(format!("/i/{name}"), OpenFlags::empty(), 0);
                let fd = fd.unwrap();
                let mut bytes = vec![0; len as usize];
                assert_eq!(process.read(fd, &mut bytes).unwrap() as u64, len);
                assert!(bytes.iter().all(|byte| *byte == 7), "{name}");
                let refused = process.fitrim(fd, 0..u64::MAX, 0).unwrap_err();
                assert_eq!(refused.errno(), Errno::ROFS);
                process.close(fd).unwrap();
            }
        });
    }
}
