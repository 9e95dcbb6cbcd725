//! Quotas: the usage of users, groups and projects is right in the quota files.

use super::{debugfs, write};
use crate::names::with_image;
use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{command, fsck, mke2fs, run};
use folio::base::{Errno, ErrorKind};
use folio::block::RawDevice;
use folio::syscall::{Credentials, OpenFlags, Process};
use folio::vfs::{FileType, MountOptions};
use folio::{Kernel, KernelOptions};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Bytes and inodes by owner.
type Usage = BTreeMap<u32, (u64, u64)>;

/// Returns the usage that the quota file of `kind` has, as debugfs shows it, without idle owners.
fn stored(image: &Path, kind: &str) -> Usage {
    let request = format!("list_quota {kind}");
    let arguments = [OsStr::new("-R"), OsStr::new(&request), image.as_os_str()];
    let said = run("debugfs", arguments);
    let mut usage = Usage::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, bytes, _, _, inodes, ..] = words[..] else {
            continue;
        };
        if let (Ok(id), Ok(bytes), Ok(inodes)) = (id.parse(), bytes.parse(), inodes.parse())
            && (bytes, inodes) != (0, 0)
        {
            usage.insert(id, (bytes, inodes));
        }
    }
    assert!(!usage.is_empty(), "{said}");
    usage
}

/// Adds what stat(2) shows of `path`, and of all below it, to the usage of users and groups.
fn count(process: &Process, path: &str, users: &mut Usage, groups: &mut Usage) {
    let found = process.lstat(path).unwrap();
    for (usage, id) in [(&mut *users, found.uid), (groups, found.gid)] {
        let entry = usage.entry(id).or_default();
        *entry = (entry.0 + found.blocks_512 * 512, entry.1 + 1);
    }
    if found.file_type != FileType::Directory {
        return;
    }
    let fd = process.open(path, OpenFlags::DIRECTORY, 0).unwrap();
    for entry in process.getdents(fd, usize::MAX).unwrap() {
        let name = String::from_utf8(entry.name).unwrap();
        if name != "." && name != ".." {
            count(process, &format!("{path}/{name}"), users, groups);
        }
    }
    process.close(fd).unwrap();
}

/// Makes one random change to one of a few files.
fn change(process: &Process, random: &mut Random, id: impl Fn(&mut Random) -> u32) {
    let path = format!("/i/{}", random.below(60_u32));
    match random.below(8_u32) {
        0..3 => write(process, &path, random.below(40_000_usize)),
        3..5 => drop(process.chown(&path, Some(id(random)), Some(id(random)))),
        5 => drop(process.truncate(&path, random.below(20_000_u64))),
        6 => drop(process.rename(&path, format!("/i/{}", random.below(60_u32)))),
        _ => drop(process.unlink(&path)),
    }
}

#[test]
fn usage_after_random_changes_equals_stat() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    for options in [
        ["-O", "quota,project", "-b", "1024"],
        ["-O", "quota,^has_journal", "-b", "4096"],
        ["-O", "quota,^extent,^64bit", "-b", "2048"],
    ] {
        let scratch = TempDir::new().unwrap();
        let image = scratch.path().join("disk.img");
        mke2fs(&image, "32M", &options);
        let mut random = Random::new(8);
        for round in 0..5 {
            // The numbers share blocks of the tree, or none.
            let id = |random: &mut Random| match random.below(3_u32) {
                0 => random.below(20_u32),
                1 => 1000 + random.below(400_u32),
                _ => random.next() as u32 & 0x7FFF_FFFF,
            };
            let (mut users, mut groups) = (Usage::new(), Usage::new());
            with_image(&image, false, |process| {
                for _ in 0..200 {
                    change(process, &mut random, id);
                }
            });
            with_image(&image, true, |process| {
                count(process, "/i", &mut users, &mut groups);
            });
            assert_eq!(stored(&image, "user"), users, "{options:?}, round {round}");
            assert_eq!(stored(&image, "group"), groups, "{options:?}");
            fsck(&image);
        }
    }
}

/// Sets fields by debugfs, which leaves the quota as it was; e2fsck corrects it.
fn set_project(image: &Path, path: &str, project: u32, flags: u32) {
    for (field, value) in [("projid", project), ("flags", flags)] {
        debugfs(image, &format!("set_inode_field {path} {field} {value}"));
    }
    command("e2fsck").arg("-fy").arg(image).output().unwrap();
    fsck(image);
}

#[test]
fn project_of_a_directory_is_inherited() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    let types = "quotatype=usrquota:grpquota:prjquota";
    let options = ["-O", "quota,project", "-E", types, "-b", "1024"];
    mke2fs(&image, "32M", &options);
    with_image(&image, false, |process| process.mkdir("/i/p", 0o755)).unwrap();
    // EXT4_PROJINHERIT_FL with EXT4_EXTENTS_FL.
    set_project(&image, "/p", 77, 0x2008_0000);
    with_image(&image, false, |process| {
        write(process, "/i/outside", 5000);
        write(process, "/i/p/inside", 50_000);
        process.mkdir("/i/p/d", 0o755).unwrap();
        write(process, "/i/p/d/deeper", 10_000);
        for foreign in [
            process.link("/i/outside", "/i/p/linked"),
            process.rename("/i/outside", "/i/p/d/moved"),
        ] {
            assert_eq!(foreign.unwrap_err().errno(), Errno::XDEV);
        }
        process.rename("/i/p/d/deeper", "/i/p/deeper").unwrap();
        process.rename("/i/p/deeper", "/i/left").unwrap();
    });
    fsck(&image);
    let blocks = [1024, 1024, 50_176, 10_240].iter().sum();
    assert_eq!(stored(&image, "project")[&77], (blocks, 4));
    with_image(&image, false, |process| process.unlink("/i/left")).unwrap();
    fsck(&image);
    assert_eq!(stored(&image, "project")[&77], (blocks - 10_240, 3));
}

#[test]
fn damaged_quota_file_refuses_writes() {
    requires!(tool("mke2fs"), tool("debugfs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "16M", &["-O", "quota"]);
    let request = [OsStr::new("-R"), OsStr::new("bmap <4> 0")];
    let said = run("debugfs", request.into_iter().chain([image.as_os_str()]));
    let block = said.lines().rev().find_map(|line| line.trim().parse().ok());
    let block: u64 = block.unwrap_or_else(|| panic!("no block in {said}"));
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0; 8], block * 1024).unwrap();
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/i", 0o755).unwrap();
    let device = Arc::new(RawDevice::open(&image, false).unwrap());
    let refused = kernel.mount_ext4(device, "/i", &MountOptions::default());
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("group quota file"), "{error}");
    with_image(&image, true, |process| process.stat("/i").unwrap());
}
