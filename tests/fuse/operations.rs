//! Each operation once, by a system call of the host.

use crate::support::requires;
use crate::support::tools::{command, fsck, mke2fs, run};
use crate::{Fixture, FuseMount, MountSource, for_each_source, probe};
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use tempfile::TempDir;

for_each_source! {
    file_written_and_truncated_reads_back: "rw";
    name_operations_change_the_tree: "rw";
    set_attributes_and_xattrs_read_back: "rw";
    fallocate_seek_and_copy_match_content: "rw";
    unlinked_open_file_stays_usable: "rw";
    listing_during_unlink_is_complete: "rw";
    locks_within_mount_exclude_each_other: "rw";
}

fn file_written_and_truncated_reads_back(fixture: Fixture) {
    let path = fixture.at("file");
    let content: Vec<u8> = (0..3_000_001_u32).map(|i| (i % 251) as u8).collect();
    fs::write(&path, &content).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    let mut file = OpenOptions::new()
        .append(true)
        .read(true)
        .open(&path)
        .unwrap();
    file.write_all(b"end").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3_000_004);
    let mut last = [0; 5];
    file.read_exact_at(&mut last, 2_999_999).unwrap();
    assert_eq!(&last[2..], b"end");
    file.set_len(10).unwrap();
    file.set_len(5000).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    let mut all = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut all).unwrap();
    assert!(
        all[..10] == content[..10] && all[10..].iter().all(|&byte| byte == 0) && all.len() == 5000
    );
    drop(file);
    // O_TRUNC, of an empty file too, is a change.
    for _ in 0..2 {
        let old = Timestamps {
            last_access: stamp(1),
            last_modification: stamp(1),
        };
        rustix::fs::utimensat(rustix::fs::CWD, &path, &old, AtFlags::empty()).unwrap();
        File::create(&path).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert!(metadata.len() == 0 && metadata.mtime() > 1);
    }
    fixture.finish();
}

fn stamp(secs: i64) -> Timespec {
    Timespec {
        tv_sec: secs,
        tv_nsec: 123_456_789,
    }
}

fn name_operations_change_the_tree(fixture: Fixture) {
    let at = |name: &str| fixture.at(name);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/f"), "f").unwrap();
    fs::hard_link(at("a/f"), at("a/g")).unwrap();
    assert_eq!(fs::metadata(at("a/f")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(at("a/f")).unwrap().ino(),
        fs::metadata(at("a/g")).unwrap().ino()
    );
    symlink("a/f", at("s")).unwrap();
    assert_eq!(fs::read_link(at("s")).unwrap().to_str(), Some("a/f"));
    assert_eq!(fs::read(at("s")).unwrap(), b"f");
    fs::rename(at("a/b"), at("moved")).unwrap();
    assert!(at("moved/c").is_dir() && !at("a/b").exists());
    let rename = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(rustix::fs::CWD, at(from), rustix::fs::CWD, at(to), flags)
    };
    assert_eq!(
        rename("a/f", "a/g", RenameFlags::NOREPLACE),
        Err(Errno::EXIST)
    );
    fs::write(at("other"), "other").unwrap();
    rename("other", "a/f", RenameFlags::EXCHANGE).unwrap();
    fs::write(at("hidden"), "hidden").unwrap();
    rename("hidden", "a/hidden", RenameFlags::WHITEOUT).unwrap();
    let whiteout = fs::symlink_metadata(at("hidden")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    assert_eq!(fs::read(at("a/hidden")).unwrap(), b"hidden");
    fs::remove_file(at("hidden")).unwrap();
    assert_eq!(
        (fs::read(at("a/f")).unwrap(), fs::read(at("other")).unwrap()),
        (b"other".to_vec(), b"f".to_vec())
    );
    assert_eq!(
        rename("moved", "moved/c/d", RenameFlags::empty()),
        Err(Errno::INVAL)
    );
    assert_eq!(
        fs::remove_dir(at("moved")).unwrap_err().raw_os_error(),
        Some(39)
    );
    fs::remove_dir_all(at("moved")).unwrap();
    fs::remove_file(at("s")).unwrap();
    // The limits of names, in bytes; fuse2fs destroys the directory here.
    fs::write(at(&"n".repeat(255)), "").unwrap();
    for name in ["n".repeat(256), "n".repeat(300)] {
        assert_eq!(
            fs::write(at(&name), "").unwrap_err().raw_os_error(),
            Some(36)
        );
        assert_eq!(
            fs::metadata(at(&name)).unwrap_err().raw_os_error(),
            Some(36)
        );
    }
    for kind in [
        rustix::fs::FileType::Fifo,
        rustix::fs::FileType::CharacterDevice,
    ] {
        let device = rustix::fs::makedev(259, 70_000);
        rustix::fs::mknodat(rustix::fs::CWD, at("node"), kind, Mode::from(0o640), device).unwrap();
        let metadata = fs::metadata(at("node")).unwrap();
        if metadata.file_type().is_char_device() {
            assert_eq!(metadata.rdev(), device);
        }
        fs::remove_file(at("node")).unwrap();
    }
    fixture.finish();
}

fn set_attributes_and_xattrs_read_back(fixture: Fixture) {
    let path = fixture.at("f");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    let times = Timestamps {
        last_access: stamp(-7),
        last_modification: stamp(5_000_000_000),
    };
    rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::empty()).unwrap();
    let now = fs::metadata(&path).unwrap();
    // A change of owner clears setuid.
    assert_eq!((now.mode() & 0o7777, now.uid(), now.gid()), (0o751, 12, 34));
    assert_eq!(
        (now.atime(), now.mtime(), now.mtime_nsec()),
        (-7, 5_000_000_000, 123_456_789)
    );
    if fixture.source == MountSource::Image {
        let created = fs::metadata(&path)
            .unwrap()
            .created()
            .expect("a birth time, since Linux 6.6");
        assert!(
            created
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap()
                .as_secs()
                > 1 << 30
        );
    }
    let value = vec![b'v'; 1000];
    for name in ["user.a", "trusted.b", "security.c"] {
        rustix::fs::setxattr(&path, name, &value, XattrFlags::CREATE).unwrap();
    }
    assert_eq!(
        rustix::fs::setxattr(&path, "user.a", b"", XattrFlags::CREATE),
        Err(Errno::EXIST)
    );
    let mut buf = [0; 4096];
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut buf), Ok(1000));
    assert_eq!(
        rustix::fs::getxattr(&path, "user.a", &mut buf[..10]),
        Err(Errno::RANGE)
    );
    let len = rustix::fs::listxattr(&path, &mut buf).unwrap();
    let mut names: Vec<_> = buf[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .collect();
    names.sort();
    assert_eq!(names, [&b"security.c"[..], b"trusted.b", b"user.a"]);
    rustix::fs::removexattr(&path, "user.a").unwrap();
    assert_eq!(
        rustix::fs::getxattr(&path, "user.a", &mut buf),
        Err(Errno::NODATA)
    );
    let statistics = rustix::fs::statvfs(fixture.mount.path()).unwrap();
    assert!(
        statistics.f_blocks > 0
            && statistics.f_bfree < statistics.f_blocks
            && statistics.f_namemax == 255
            && statistics.f_files > 0
    );
    fixture.finish();
}

fn fallocate_seek_and_copy_match_content(fixture: Fixture) {
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(fixture.at(name))
            .unwrap()
    };
    let file = open("f");
    file.write_all_at(&[7; 1 << 20], 0).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    assert!(file.metadata().unwrap().blocks() >= 8192);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 128 << 10, 256 << 10).unwrap();
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)), Ok(128 << 10));
    assert_eq!(
        rustix::fs::seek(&file, SeekFrom::Data(128 << 10)),
        Ok(384 << 10)
    );
    let mut buf = vec![1; 512 << 10];
    file.read_exact_at(&mut buf, 0).unwrap();
    let zeros = 128 << 10..384 << 10;
    assert!(
        buf.iter()
            .enumerate()
            .all(|(at, &byte)| byte == if zeros.contains(&at) { 0 } else { 7 })
    );
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 4096).unwrap();
    let copy = open("copy");
    let (mut from, mut to) = (0, 1000);
    while from < 1 << 20 {
        let left = (1 << 20) - from as usize;
        let copied =
            rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left)
                .unwrap();
        assert!(copied > 0);
    }
    let (mut want, mut got) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    file.read_exact_at(&mut want, 0).unwrap();
    copy.read_exact_at(&mut got, 1000).unwrap();
    assert!(want == got);
    drop((file, copy));
    fixture.finish();
}

fn unlinked_open_file_stays_usable(fixture: Fixture) {
    let free = || rustix::fs::statvfs(fixture.mount.path()).unwrap().f_ffree;
    let before = free();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(fixture.at("f"))
        .unwrap();
    fs::remove_file(fixture.at("f")).unwrap();
    file.write_all(b"still here").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    // Other programs use the file system behind a directory.
    assert!(fixture.source != MountSource::Image || free() == before - 1);
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    drop(file);
    probe::unnamed(&fixture.mount.path());
    fixture.finish();
}

fn listing_during_unlink_is_complete(fixture: Fixture) {
    let folder = fixture.at("folder");
    fs::create_dir(&folder).unwrap();
    for number in 0..3000 {
        File::create(folder.join(format!("a name that is not short {number}"))).unwrap();
    }
    let names = || {
        fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    let mut listed = names();
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), 3000);
    // As in rm -r: an entry that stays is listed once, although other entries are unlinked.
    for (index, entry) in fs::read_dir(&folder).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_file() && entry.metadata().unwrap().len() == 0);
        if index % 2 == 0 {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert_eq!(names().len(), 1500);
    fixture.finish();
}

/// The kernel holds the locks of the mount, so programs on the directory itself do not see them.
fn locks_within_mount_exclude_each_other(fixture: Fixture) {
    use rustix::fs::{FlockOperation, flock};
    probe::locks(&fixture.at("f"));
    if fixture.source != MountSource::Image {
        let files =
            [fixture.at("f"), fixture.behind.join("f")].map(|path| File::open(path).unwrap());
        for file in &files {
            flock(file, FlockOperation::NonBlockingLockExclusive).unwrap();
        }
    }
    fixture.finish();
}

/// generic/556: the kernel's names for a casefolded directory, which it does not fold.
#[test]
fn folded_name_in_any_spelling_is_one_file() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    mke2fs(&image, "32M", &["-O", "casefold"]);
    // EXT4_CASEFOLD_FL and EXT4_EXTENTS_FL, of the root directory.
    let fold = "set_inode_field / flags 0x40080000";
    run(
        "debugfs",
        [
            "-w".as_ref(),
            "-R".as_ref(),
            fold.as_ref(),
            image.as_os_str(),
        ],
    );
    let mount = FuseMount::new(&image, "rw");
    let is_missing = |name: &str| !mount.at(name).exists();
    for round in 0..3 {
        assert!(is_missing("note") && is_missing("NOTE"), "{round}");
        fs::write(mount.at("Note"), "text").unwrap();
        assert_eq!(fs::read(mount.at("note")).unwrap(), b"text");
        let again = File::create_new(mount.at("NOTE")).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(Errno::EXIST.raw_os_error()));
        fs::rename(mount.at("nOTE"), mount.at("Other")).unwrap();
        assert!(is_missing("Note") && is_missing("note"));
        assert_eq!(fs::read(mount.at("OTHER")).unwrap(), b"text");
        fs::remove_file(mount.at("other")).unwrap();
        assert!(is_missing("Other") && is_missing("OTHER"));
    }
    mount.unmount();
    fsck(&image);
}

/// Not covered by pjdfstest through FUSE, where pathconf(3) has no LINK_MAX.
#[test]
fn link_beyond_65000_returns_emlink() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let fixture = Fixture::new("rw");
    fs::write(fixture.at("0"), "x").unwrap();
    for number in 1..65_000 {
        fs::hard_link(fixture.at("0"), fixture.at(&number.to_string())).unwrap();
    }
    assert_eq!(fs::metadata(fixture.at("7")).unwrap().nlink(), 65_000);
    let error = fs::hard_link(fixture.at("0"), fixture.at("one too many")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(31));
    fixture.finish();
}

/// The kernel does not write its dirty pages back before it asks for data and holes; and more
/// threads ask than serve.
#[test]
fn parallel_seeks_find_unsynced_data() {
    const LEN: u64 = 256 << 10;
    for options in ["rw", "rw,threads=1", "rw,nowriteback"] {
        let Some(fixture) = Fixture::try_on(MountSource::Image, options, &[]) else {
            return;
        };
        std::thread::scope(|scope| {
            for number in 0..12_u64 {
                let path = fixture.at(&format!("{number}"));
                scope.spawn(move || {
                    let file = std::fs::File::create_new(path).unwrap();
                    for round in 1..=8 {
                        let start = round * 2 * LEN;
                        file.write_all_at(&[1; LEN as usize], start).unwrap();
                        let data = rustix::fs::seek(&file, SeekFrom::Data(start - LEN));
                        assert_eq!(data, Ok(start), "{options}, file {number}");
                        let hole = rustix::fs::seek(&file, SeekFrom::Hole(start));
                        assert_eq!(hole, Ok(start + LEN), "{options}, file {number}");
                    }
                });
            }
        });
        fixture.finish();
    }
}

/// A program that writes until the disk is full gets ENOSPC from write(2), and reads back what was
/// written before.
#[test]
fn full_image_fails_at_write() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let fixture = Fixture::new("rw");
    let reserve = File::create(fixture.at("reserve")).unwrap();
    rustix::fs::fallocate(&reserve, FallocateFlags::empty(), 0, 400 << 20).unwrap();
    let path = fixture.at("big");
    let mut file = File::create(&path).unwrap();
    let chunk = |index: u64| -> Vec<u8> {
        let words = (0..1_u64 << 17).map(|word| ((index << 32) | word).wrapping_mul(0x9E37_79B9));
        words.flat_map(u64::to_le_bytes).collect()
    };
    let mut written = 0;
    let error = loop {
        assert!(written < 512, "512 MiB without an error");
        match file.write_all(&chunk(written)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(written > 0);
    // Not from the kernel's page cache.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let reader = File::open(&path).unwrap();
    for index in 0..written {
        let mut bytes = vec![0; 1 << 20];
        reader.read_exact_at(&mut bytes, index << 20).unwrap();
        assert!(bytes == chunk(index), "MiB {index}");
    }
    drop((file, reader, reserve));
    fixture.finish();
}

/// A write beyond the largest file of ext4 fails with EFBIG, and changes nothing.
#[test]
fn write_beyond_the_largest_file_fails() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let fixture = Fixture::new("rw");
    let file = File::create(fixture.at("f")).unwrap();
    file.write_all_at(b"start", 0).unwrap();
    // With blocks of 4 KiB the end is at 16 TiB.
    let error = file.write_all_at(b"x", 16 << 40).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge, "{error}");
    let error = file.set_len((16 << 40) + 1).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge, "{error}");
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"start");
    drop(file);
    fixture.finish();
}

/// A truncation to the size that a file has frees what was preallocated beyond its end: by
/// truncate(2), and by ftruncate(2).
#[test]
fn same_size_truncation_frees_preallocation() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"), tool("truncate"));
    let fixture = Fixture::new("rw");
    let path = fixture.at("log");
    fs::write(&path, "data").unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let sectors = || {
        file.sync_all().unwrap();
        fs::metadata(&path).unwrap().blocks()
    };
    for by_name in [false, true] {
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4 << 20).unwrap();
        assert!(sectors() >= 8192);
        if by_name {
            let size = ["-s", "4"].map(std::ffi::OsStr::new);
            run("truncate", size.into_iter().chain([path.as_os_str()]));
        } else {
            file.set_len(4).unwrap();
        }
        assert!(sectors() < 100, "by name: {by_name}");
    }
    drop(file);
    fixture.finish();
}

/// chattr(1) and lsattr(1) by their own programs.
#[test]
fn chattr_through_the_mount_is_stored() {
    requires!(tool("chattr"), tool("lsattr"), tool("setpriv"));
    let Some(fixture) = Fixture::try_on(MountSource::Image, "rw,allow_other", &[]) else {
        return;
    };
    let (file, folder) = (fixture.at("file"), fixture.at("folder"));
    fs::write(&file, "content").unwrap();
    fs::create_dir(&folder).unwrap();
    let flags = |path: &std::path::Path| {
        let text = run("lsattr", ["-d".as_ref(), path.as_os_str()]);
        text.split_whitespace().next().unwrap().replace('-', "")
    };
    run("chattr", ["+iA".as_ref(), file.as_os_str()]);
    assert_eq!(flags(&file), "iAe");
    assert_eq!(fs::write(&file, "x").unwrap_err().raw_os_error(), Some(1));
    run("chattr", ["-i".as_ref(), file.as_os_str()]);
    fs::write(&file, "x").unwrap();
    run("chattr", ["+TD".as_ref(), folder.as_os_str()]);
    assert_eq!(flags(&folder), "DTe");
    // Neither the owner nor the superuser.
    let words = ["--reuid=60001", "--clear-groups", "chattr", "+d"];
    let mut other = command("setpriv");
    assert!(!other.args(words).arg(&file).status().unwrap().success());
    assert_eq!(flags(&file), "Ae");
    fixture.finish();
}
