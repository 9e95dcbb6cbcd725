//! Large values of extended attributes, in inodes of their own.

use super::write;
use crate::names::with_image;
use crate::support::random::Random;
use crate::support::tools::{fsck, mke2fs};
use crate::support::{Mounted, requires};
use folio::base::Errno;
use folio::syscall::Process;
use folio::vfs::XattrFlags;
use rustix::fs::XattrFlags as KernelFlags;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

/// Values by file and attribute.
type Values = BTreeMap<u32, BTreeMap<u32, Vec<u8>>>;

fn name(attribute: u32) -> String {
    format!("user.attribute-{attribute}")
}

/// Makes one random change to one of a few files.
fn change(process: &Process, random: &mut Random, files: &mut Values) {
    let (file, attribute) = (random.below(12_u32), random.below(5_u32));
    let path = format!("/i/{file}");
    let name = name(attribute);
    let known = files.get_mut(&file);
    match (random.below(10_u32), known) {
        (0..7, Some(values)) => {
            let len = match random.below(4_u32) {
                0 => random.below(100_usize),
                1 => 1000 + random.below(4000_usize),
                _ => 5000 + random.below(60_000_usize),
            };
            let value = vec![random.below(255_u8); len];
            let set = process.setxattr(&path, name.as_bytes(), &value, XattrFlags::empty());
            set.unwrap_or_else(|error| panic!("{path} {name} of {len} bytes: {error}"));
            values.insert(attribute, value);
        }
        (7, Some(values)) => {
            let removed = process.removexattr(&path, name.as_bytes());
            assert_eq!(removed.is_ok(), values.remove(&attribute).is_some());
        }
        (8, Some(_)) => {
            let owner = Some(random.below(5_u32));
            process.chown(&path, owner, owner).unwrap();
        }
        (9, Some(_)) => {
            process.unlink(&path).unwrap();
            files.remove(&file);
        }
        (_, _) => {
            write(process, &path, 100);
            files.entry(file).or_default();
        }
    }
}

fn check_with_folio(process: &Process, files: &Values) {
    for (file, values) in files {
        let path = format!("/i/{file}");
        assert_eq!(process.listxattr(&path).unwrap().len(), values.len());
        for (attribute, value) in values {
            let found = process
                .getxattr(&path, name(*attribute).as_bytes())
                .unwrap();
            assert!(found == *value, "{path} {attribute}");
        }
    }
}

/// The kernel compares the checksums of values, too.
fn check_with_kernel(image: &Path, files: &Values) {
    let mounted = Mounted::new(image, "ro");
    for (file, values) in files {
        let path = mounted.path().join(file.to_string());
        for (attribute, value) in values {
            let mut found = vec![0; 64 << 10];
            let len = rustix::fs::getxattr(&path, name(*attribute), &mut found[..]).unwrap();
            assert!(found[..len] == *value, "{file} {attribute}");
        }
    }
    mounted.unmount();
}

#[test]
fn random_large_values_equal_a_map() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    for options in [
        ["-O", "ea_inode", "-b", "4096"],
        ["-O", "ea_inode,quota,^metadata_csum", "-b", "1024"],
        ["-O", "ea_inode,^extent,^64bit", "-b", "2048"],
        ["-O", "ea_inode,inline_data,^has_journal", "-b", "1024"],
    ] {
        let scratch = TempDir::new().unwrap();
        let image = scratch.path().join("disk.img");
        mke2fs(&image, "48M", &options);
        let mut random = Random::new(9);
        let mut files = Values::new();
        for _ in 0..5 {
            with_image(&image, false, |process| {
                for _ in 0..200 {
                    change(process, &mut random, &mut files);
                }
                check_with_folio(process, &files);
            });
            fsck(&image);
            with_image(&image, true, |process| check_with_folio(process, &files));
            check_with_kernel(&image, &files);
        }
        // All inodes and blocks come back.
        with_image(&image, false, |process| {
            for file in files.keys() {
                process.unlink(format!("/i/{file}")).unwrap();
            }
        });
        fsck(&image);
        let left = with_image(&image, true, |process| process.statfs("/i").unwrap());
        assert!(left.inodes - left.inodes_free <= 12, "{options:?}");
    }
}

#[test]
fn value_shared_by_the_kernel_is_kept() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "32M", &["-O", "ea_inode"]);
    let value = vec![5; 20_000];
    let mounted = Mounted::new(&image, "rw");
    for file in 0..6 {
        let path = mounted.path().join(file.to_string());
        std::fs::write(&path, "x").unwrap();
        for (name, value) in [("user.large", &value[..]), ("user.small", &[7; 300])] {
            rustix::fs::setxattr(&path, name, value, KernelFlags::empty()).unwrap();
        }
    }
    mounted.unmount();
    with_image(&image, false, |process| {
        process.unlink("/i/0").unwrap();
        process.removexattr("/i/1", b"user.large").unwrap();
        for (file, name) in [(2, "user.large"), (3, "user.small"), (4, "user.more")] {
            let path = format!("/i/{file}");
            process
                .setxattr(path, name.as_bytes(), &[1; 400], XattrFlags::empty())
                .unwrap();
        }
        for file in [3, 4, 5] {
            let found = process
                .getxattr(format!("/i/{file}"), b"user.large")
                .unwrap();
            assert!(found == value, "{file}");
        }
        let missing = process.getxattr("/i/1", b"user.large").unwrap_err();
        assert_eq!(missing.errno(), Errno::NODATA);
    });
    fsck(&image);
    let mounted = Mounted::new(&image, "rw");
    let mut found = vec![0; 64 << 10];
    let len = rustix::fs::getxattr(mounted.path().join("5"), "user.large", &mut found[..]);
    assert!(found[..len.unwrap()] == value);
    for file in 1..6 {
        std::fs::remove_file(mounted.path().join(file.to_string())).unwrap();
    }
    mounted.unmount();
    fsck(&image);
}
