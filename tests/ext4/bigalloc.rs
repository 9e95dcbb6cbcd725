//! Clusters (`bigalloc`): random sparse files, whose blocks share clusters in part.

use super::write;
use crate::names::with_image;
use crate::support::random::Random;
use crate::support::tools::{fsck, mke2fs};
use crate::support::{Mounted, requires};
use folio::base::Errno;
use folio::syscall::{OpenFlags, Process};
use folio::vfs::FallocateMode;
use std::path::Path;
use tempfile::TempDir;

const FILES: usize = 6;
/// Bytes of a file, at most.
const LEN_MAX: usize = 600_000;

/// Makes one random change to a file, whose contents are `bytes`.
fn change(process: &Process, random: &mut Random, path: &str, bytes: &mut Vec<u8>, unit: usize) {
    let flags = OpenFlags::RDWR | OpenFlags::CREAT;
    let fd = process.open(path, flags, 0o644).unwrap();
    let start = random.below(LEN_MAX);
    let len = 1 + random.below(30_000_usize).min(LEN_MAX - start);
    let fallocate = |mode, start: usize, len: usize| {
        let done = process.fallocate(fd, mode, start as u64, len as u64);
        done.unwrap_or_else(|error| panic!("{mode:?} {start} {len}: {error}"));
    };
    let grow = |bytes: &mut Vec<u8>, end| bytes.resize(bytes.len().max(end), 0);
    match random.below(12_u32) {
        0..6 => {
            let byte = 1 + random.below(255_u8);
            let chunk = vec![byte; len];
            assert_eq!(process.pwrite(fd, &chunk, start as u64).unwrap(), len);
            grow(bytes, start + len);
            bytes[start..start + len].fill(byte);
        }
        6 | 7 => {
            fallocate(FallocateMode::PunchHole, start, len);
            let end = bytes.len().min(start + len);
            bytes[start.min(end)..end].fill(0);
        }
        8 => {
            fallocate(FallocateMode::Allocate, start, len);
            grow(bytes, start + len);
        }
        9 => {
            process.ftruncate(fd, start as u64).unwrap();
            bytes.resize(start, 0);
        }
        10 if bytes.len() > 3 * unit => {
            let at = random.below(bytes.len() / unit - 1) * unit;
            fallocate(FallocateMode::CollapseRange, at, unit);
            bytes.drain(at..at + unit);
            let odd = process.fallocate(fd, FallocateMode::InsertRange, at as u64 + 1024, 1024);
            assert_eq!(odd.unwrap_err().errno(), Errno::INVAL);
        }
        _ => process.fsync(fd).unwrap(),
    }
    process.close(fd).unwrap();
}

fn check_with_folio(process: &Process, files: &[Vec<u8>]) {
    for (number, bytes) in files.iter().enumerate() {
        let path = format!("/i/{number}");
        let fd = process.open(&path, OpenFlags::CREAT, 0o644).unwrap();
        let mut found = vec![0; LEN_MAX + 100_000];
        let len = process.pread(fd, &mut found, 0).unwrap();
        assert!(found[..len] == *bytes, "{path}");
        process.close(fd).unwrap();
    }
}

fn check_with_kernel(image: &Path, files: &[Vec<u8>]) {
    let mounted = Mounted::new(image, "rw");
    for (number, bytes) in files.iter().enumerate() {
        let path = mounted.path().join(number.to_string());
        assert!(std::fs::read(&path).unwrap() == *bytes, "{number}");
        // The kernel's changes, in clusters that Folio filled in part.
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[9; 5000], bytes.len() as u64).unwrap();
    }
    mounted.unmount();
}

/// Makes 1,000 random changes; Folio, e2fsck and the kernel check the files after each mount.
fn clusters(options: &[&str], unit: usize) {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "64M", options);
    let free = || with_image(&image, true, |p| p.statfs("/i").unwrap().blocks_free);
    let before = free();
    let mut random = Random::new(unit as u64);
    let mut files = vec![Vec::new(); FILES];
    for _ in 0..5 {
        with_image(&image, false, |process| {
            for _ in 0..200 {
                let at = random.below(FILES);
                change(
                    process,
                    &mut random,
                    &format!("/i/{at}"),
                    &mut files[at],
                    unit,
                );
            }
            check_with_folio(process, &files);
            let name = format!("/i/d{}/{}", random.below(9_u32), "n".repeat(200));
            let _ = process.mkdir(&name[..5], 0o755);
            for number in 0..40 {
                process
                    .symlink("t".repeat(100), format!("{name}{number}"))
                    .ok();
            }
        });
        fsck(&image);
        check_with_kernel(&image, &files);
        for bytes in &mut files {
            bytes.extend([9; 5000]);
        }
        fsck(&image);
        with_image(&image, true, |process| check_with_folio(process, &files));
    }
    with_image(&image, false, |process| {
        for number in 0..FILES {
            process.unlink(format!("/i/{number}")).unwrap();
        }
        for directory in 0..9 {
            let path = format!("/i/d{directory}");
            for number in 0..40 {
                let _ = process.unlink(format!("{path}/{}{number}", "n".repeat(200)));
            }
            let _ = process.rmdir(&path);
        }
    });
    fsck(&image);
    assert_eq!(free(), before);
}

#[test]
fn files_in_clusters_of_4_blocks_are_equal() {
    clusters(&["-O", "bigalloc", "-b", "1024", "-C", "4096"], 4096);
}

#[test]
fn files_in_clusters_of_16_blocks_are_equal() {
    clusters(&["-O", "bigalloc", "-b", "4096", "-C", "65536"], 65_536);
}

#[test]
fn files_in_clusters_without_journal_are_equal() {
    let options = [
        "-O",
        "bigalloc,^has_journal,ea_inode",
        "-b",
        "2048",
        "-C",
        "16384",
    ];
    clusters(&options, 16_384);
}

#[test]
fn full_disk_of_clusters_stays_sound() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    let options = ["-O", "bigalloc", "-b", "1024", "-C", "16384", "-N", "1024"];
    mke2fs(&image, "24M", &options);
    with_image(&image, false, |process| {
        let refused = (0..2000).find_map(|number| {
            let flags = OpenFlags::CREAT | OpenFlags::WRONLY;
            let path = format!("/i/{number}");
            let made = process.open(path, flags, 0o644);
            let written = made.and_then(|fd| {
                let written = process.write(fd, &[7; 20_000]);
                process.close(fd).and(written)
            });
            written.err()
        });
        assert_eq!(refused.unwrap().errno(), Errno::NOSPC);
        process.sync().unwrap();
        for number in (0..400).step_by(2) {
            process.unlink(format!("/i/{number}")).unwrap();
        }
        write(process, "/i/again", 1_000_000);
    });
    fsck(&image);
}
