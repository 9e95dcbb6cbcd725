//! File systems with `inline_data`: Folio and the kernel change what the other wrote in inodes.

use super::{fsck, names, touch, with_image};
use crate::support::tools::{command, mke2fs, succeed};
use crate::support::{Mounted, requires};
use folio::base::Errno;
use folio::syscall::{AT_FDCWD, OpenFlags, Process};
use folio::vfs::{FallocateMode, RenameFlags, XattrFlags};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const INODE_SIZES: [&str; 3] = ["256", "512", "1024"];

fn write(process: &Process, path: &str, bytes: &[u8]) {
    let flags = OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::TRUNC;
    let fd = process.open(path, flags, 0o644).unwrap();
    assert_eq!(process.write(fd, bytes).unwrap(), bytes.len());
    process.close(fd).unwrap();
}

fn read(process: &Process, path: &str) -> Vec<u8> {
    let fd = process.open(path, OpenFlags::empty(), 0).unwrap();
    let mut bytes = vec![0; 20_000];
    let count = process.read(fd, &mut bytes).unwrap();
    process.close(fd).unwrap();
    bytes.truncate(count);
    bytes
}

/// Returns the value of a line of debugfs's `stat`.
fn is_inline(image: &Path, path: &str) -> bool {
    let output = succeed(
        command("debugfs")
            .args(["-R", &format!("stat {path}")])
            .arg(image),
    );
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("Inode:"), "{path}: {shown}");
    shown.contains("Size of inline data")
}

/// Contents of files by length: in `i_block`, beyond it, and beyond an inode.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + (at % 23) as u8).collect()
}

const LENGTHS: [usize; 7] = [0, 1, 60, 61, 100, 700, 5000];

fn change_names(process: &Process) {
    let rename = |from: &str, to: &str, flags| {
        process
            .renameat2(AT_FDCWD, from, AT_FDCWD, to, flags)
            .unwrap()
    };
    // A file and a directory out of an inline parent, and back in.
    rename("/i/in/f", "/i/moved", RenameFlags::empty());
    rename("/i/in/sub", "/i/sub", RenameFlags::empty());
    assert_eq!(names(process, "/i/in").len(), 0);
    let number = |path: &str| process.stat(path).unwrap().number;
    assert_eq!(number("/i/sub/.."), number("/i"));
    rename("/i/sub", "/i/in/other", RenameFlags::empty());
    assert_eq!(number("/i/in/other/.."), number("/i/in"));
    rename("/i/in/other", "/i/moved", RenameFlags::EXCHANGE);
    assert_eq!(process.stat("/i/in").unwrap().link_count, 2);
    rename("/i/moved", "/i/in/other", RenameFlags::EXCHANGE);
    process.link("/i/moved", "/i/in/link").unwrap();
    process.symlink("target", "/i/in/symlink").unwrap();
    write(process, "/i/in/new", b"new");
    rename("/i/in/new", "/i/in/link", RenameFlags::empty());
    process.unlink("/i/in/symlink").unwrap();
    let busy = process.rmdir("/i/in").unwrap_err();
    assert_eq!(busy.errno(), Errno::NOTEMPTY);
    rename("/i/white", "/i/in/white", RenameFlags::WHITEOUT);
    // Attributes stay beside the entries.
    for n in 0..4 {
        let name = format!("user.{n}");
        process
            .setxattr("/i/in", name.as_bytes(), &[7; 90], XattrFlags::empty())
            .unwrap();
    }
    process.removexattr("/i/in", b"user.1").unwrap();
    // One directory grows out of its inode and shrinks again, while it is listed.
    let listing = process.open("/i/grows", OpenFlags::DIRECTORY, 0).unwrap();
    let mut listed = process.getdents(listing, 1).unwrap();
    for n in 0..80 {
        touch(process, &format!("/i/grows/name-{n}"));
    }
    loop {
        let more = process.getdents(listing, 1000).unwrap();
        if more.is_empty() {
            break;
        }
        listed.extend(more);
    }
    process.close(listing).unwrap();
    let first = listed.iter().filter(|entry| entry.name == b"first").count();
    assert_eq!(first, 1, "a name that stays is listed once");
    for n in 0..79 {
        process.unlink(format!("/i/grows/name-{n}")).unwrap();
    }
}

fn change_files(process: &Process) {
    for len in LENGTHS {
        let path = format!("/i/kernel-{len}");
        assert_eq!(read(process, &path), content(len));
        process
            .setxattr(&path, b"user.x", &[1; 40], XattrFlags::CREATE)
            .unwrap();
        let fd = process.open(&path, OpenFlags::RDWR, 0).unwrap();
        process.pwrite(fd, b"+", len as u64).unwrap();
        process.fsync(fd).unwrap();
        process.close(fd).unwrap();
        write(process, &format!("/i/folio-{len}"), &content(len));
    }
    // Shorter, longer with a hole, and with space ahead.
    write(process, "/i/cut", &content(90));
    process.truncate("/i/cut", 30).unwrap();
    process.truncate("/i/cut", 80).unwrap();
    write(process, "/i/sparse", b"start");
    process.truncate("/i/sparse", 100_000).unwrap();
    write(process, "/i/space", b"start");
    let fd = process.open("/i/space", OpenFlags::RDWR, 0).unwrap();
    process
        .fallocate(fd, FallocateMode::Allocate, 0, 50_000)
        .unwrap();
    process.close(fd).unwrap();
}

/// Checks in the kernel what [`change_names`] and [`change_files`] made.
fn check_in_kernel(root: &Path) {
    let at = |name: &str| root.join(name);
    assert_eq!(fs::read(at("moved")).unwrap(), b"f");
    assert_eq!(fs::read(at("in/link")).unwrap(), b"new");
    assert_eq!(fs::read(at("in/white")).unwrap(), b"w");
    assert!(at("in/other").is_dir() && !at("in/f").exists());
    let whiteout = rustix::fs::lstat(at("white")).unwrap();
    assert_eq!((whiteout.st_mode, whiteout.st_rdev), (0o020_000, 0));
    assert_eq!(fs::read_dir(at("in")).unwrap().count(), 3);
    assert_eq!(fs::read_dir(at("grows")).unwrap().count(), 2);
    let mut value = [0; 90];
    rustix::fs::getxattr(at("in"), "user.3", &mut value).unwrap();
    assert_eq!(value, [7; 90]);
    for len in LENGTHS {
        let mut longer = content(len);
        assert_eq!(fs::read(at(&format!("folio-{len}"))).unwrap(), longer);
        longer.push(b'+');
        assert_eq!(fs::read(at(&format!("kernel-{len}"))).unwrap(), longer);
    }
    let cut = [content(30), vec![0; 50]].concat();
    assert_eq!(fs::read(at("cut")).unwrap(), cut);
    for (name, len) in [("sparse", 100_000), ("space", 50_000)] {
        let bytes = fs::read(at(name)).unwrap();
        assert!(
            bytes.len() == len && bytes.starts_with(b"start") && bytes[5..].iter().all(|b| *b == 0)
        );
    }
}

#[test]
fn inline_data_changes_in_both_directions() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("e2fsck"),
        tool("debugfs")
    );
    for size in INODE_SIZES {
        let scratch = TempDir::new().unwrap();
        let image = scratch.path().join("disk.img");
        mke2fs(&image, "32M", &["-O", "inline_data", "-I", size]);
        let mounted = Mounted::new(&image, "rw");
        let at = |name: &str| mounted.path().join(name);
        fs::create_dir_all(at("in/sub")).unwrap();
        fs::create_dir(at("grows")).unwrap();
        fs::write(at("grows/first"), "").unwrap();
        fs::write(at("in/f"), "f").unwrap();
        fs::write(at("white"), "w").unwrap();
        for len in LENGTHS {
            fs::write(at(&format!("kernel-{len}")), content(len)).unwrap();
        }
        mounted.unmount();
        with_image(&image, false, |process| {
            change_names(process);
            change_files(process);
        });
        fsck(&image);
        assert!(
            is_inline(&image, "/in") && is_inline(&image, "/cut"),
            "inodes of {size}"
        );
        assert!(is_inline(&image, "/folio-60") && !is_inline(&image, "/folio-5000"));
        assert!(!is_inline(&image, "/grows"));
        let mounted = Mounted::new(&image, "rw");
        let at = |name: &str| mounted.path().join(name);
        check_in_kernel(&mounted.path());
        // The kernel changes what Folio wrote.
        fs::rename(at("in/other"), at("folio-dir")).unwrap();
        fs::remove_file(at("in/link")).unwrap();
        for n in 0..30 {
            fs::write(at(&format!("in/more-{n}")), content(n * 10)).unwrap();
        }
        fs::write(at("folio-dir/x"), "x").unwrap();
        fs::write(at("cut"), content(2000)).unwrap();
        mounted.unmount();
        fsck(&image);
        with_image(&image, false, |process| {
            assert_eq!(names(process, "/i/in").len(), 31);
            assert_eq!(read(process, "/i/in/more-29"), content(290));
            assert_eq!(read(process, "/i/cut"), content(2000));
            for n in 0..30 {
                process.unlink(format!("/i/in/more-{n}")).unwrap();
            }
            process.unlink("/i/in/white").unwrap();
            process.rmdir("/i/in").unwrap();
        });
        fsck(&image);
    }
}

/// Directories and files that Folio creates in a file system that only e2fsck sees.
#[test]
fn inline_trees_of_folio_pass_e2fsck() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    for options in [
        ["-O", "inline_data,^metadata_csum", "-I", "256"],
        ["-O", "inline_data,^dir_index", "-I", "256"],
        ["-O", "inline_data,^has_journal", "-I", "512"],
        ["-O", "inline_data,^filetype", "-I", "256"],
    ] {
        let scratch = TempDir::new().unwrap();
        let image = scratch.path().join("disk.img");
        mke2fs(&image, "32M", &options);
        with_image(&image, false, |process| {
            for directory in 0..20 {
                process.mkdir(format!("/i/{directory}"), 0o755).unwrap();
                for n in 0..directory {
                    write(
                        process,
                        &format!("/i/{directory}/file-{n}"),
                        &content(n * 11),
                    );
                    process.mkdir(format!("/i/{directory}/{n}"), 0o755).unwrap();
                }
            }
            for directory in 0..10 {
                for n in 0..directory {
                    process.unlink(format!("/i/{directory}/file-{n}")).unwrap();
                    process.rmdir(format!("/i/{directory}/{n}")).unwrap();
                }
            }
            process.rmdir("/i/9").unwrap();
        });
        fsck(&image);
        assert!(
            is_inline(&image, "/1") && is_inline(&image, "/11/file-5"),
            "{options:?}"
        );
        with_image(&image, true, |process| {
            assert_eq!(names(process, "/i/19").len(), 38);
            assert_eq!(read(process, "/i/19/file-18"), content(198));
        });
    }
}
