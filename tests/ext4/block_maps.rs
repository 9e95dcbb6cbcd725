//! Block maps of ext2 and ext3: random sparse files that cross the bounds of all levels.

use crate::names::with_image;
use crate::support::random::Random;
use crate::support::tools::{fsck, mke2fs};
use crate::support::{Mounted, requires};
use folio::base::Errno;
use folio::syscall::{OpenFlags, Process};
use folio::vfs::FallocateMode;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;

/// The blocks of a sparse file that are not zero, and the byte each is filled with.
type Filled = BTreeMap<u64, u8>;

const OPERATIONS: usize = 1000;
const REMOUNT_EVERY: usize = 200;

/// A file under test: what it must hold.
struct Sparse {
    name: String,
    filled: Filled,
    blocks: u64,
}

/// Returns a block near the first block of a level, or somewhere.
fn random_block(random: &mut Random, pointers: u64) -> u64 {
    let double = 12 + pointers;
    let triple = double + pointers * pointers;
    let around = random.pick(&[12, double, double + pointers, triple, triple + pointers]);
    if random.percent(80) {
        (around + random.below(9_u64)).saturating_sub(5)
    } else {
        random.below(triple + 3 * pointers)
    }
}

/// Makes one random change to a file, and to its description.
fn change(process: &Process, random: &mut Random, file: &mut Sparse, block_size: u64) {
    let path = format!("/i/{}", file.name);
    let fd = process
        .open(&path, OpenFlags::RDWR | OpenFlags::CREAT, 0o644)
        .unwrap();
    let start = random_block(random, block_size / 4);
    let count = 1 + random.below(6_u64);
    match random.below(10_u32) {
        0..6 => {
            let byte = 1 + random.below(255_u8);
            let bytes = vec![byte; (count * block_size) as usize];
            let written = process.pwrite(fd, &bytes, start * block_size).unwrap();
            assert_eq!(written, bytes.len());
            file.filled
                .extend((start..start + count).map(|block| (block, byte)));
            file.blocks = file.blocks.max(start + count);
        }
        6..8 => {
            let (offset, len) = (start * block_size, count * block_size);
            process
                .fallocate(fd, FallocateMode::PunchHole, offset, len)
                .unwrap();
            file.filled
                .retain(|block, _| !(start..start + count).contains(block));
        }
        8 => {
            process.ftruncate(fd, start * block_size).unwrap();
            file.filled.retain(|block, _| *block < start);
            file.blocks = start;
        }
        _ => process.fsync(fd).unwrap(),
    }
    process.close(fd).unwrap();
}

/// Compares a file with its description, block by block where it has data, and at the bounds.
fn check(file: &Sparse, block_size: u64, read: impl Fn(&mut [u8], u64)) {
    let mut buf = vec![0; block_size as usize];
    for (block, byte) in &file.filled {
        read(&mut buf, block * block_size);
        let is_equal = buf.iter().all(|found| found == byte);
        assert!(is_equal, "{}: block {block} is not {byte}", file.name);
    }
    let neighbors = file.filled.keys().map(|block| block + 1);
    for block in neighbors.filter(|b| *b < file.blocks && !file.filled.contains_key(b)) {
        read(&mut buf, block * block_size);
        assert!(buf.iter().all(|b| *b == 0), "{}: block {block}", file.name);
    }
}

fn check_with_folio(image: &Path, files: &[Sparse], block_size: u64) {
    with_image(image, true, |process| {
        for file in files {
            let path = format!("/i/{}", file.name);
            let fd = process.open(&path, OpenFlags::empty(), 0).unwrap();
            let found = process.stat(&path).unwrap();
            assert_eq!(found.size_bytes, file.blocks * block_size, "{path}");
            check(file, block_size, |buf, at| {
                assert_eq!(process.pread(fd, buf, at).unwrap(), buf.len());
            });
            process.close(fd).unwrap();
        }
    });
}

fn check_with_kernel(image: &Path, files: &[Sparse], block_size: u64) {
    let mounted = Mounted::new(image, "ro");
    for file in files {
        let opened = fs::File::open(mounted.path().join(&file.name)).unwrap();
        let len = opened.metadata().unwrap().len();
        assert_eq!(len, file.blocks * block_size, "{}", file.name);
        check(file, block_size, |buf, at| {
            opened.read_exact_at(buf, at).unwrap()
        });
    }
    mounted.unmount();
}

/// Changes three sparse files at random; e2fsck, Folio and the kernel check them after each mount.
fn sparse_files(options: &[&str], block_size: u64) {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    let size = ["-b", &block_size.to_string()];
    mke2fs(&image, "96M", &[options, &size].concat());
    let mut random = Random::new(block_size + options.len() as u64);
    let mut files: Vec<_> = ["a", "b", "c"]
        .map(|name| Sparse {
            name: name.to_owned(),
            filled: Filled::new(),
            blocks: 0,
        })
        .into();
    for _ in 0..OPERATIONS / REMOUNT_EVERY {
        with_image(&image, false, |process| {
            for _ in 0..REMOUNT_EVERY {
                let at = random.below(files.len());
                change(process, &mut random, &mut files[at], block_size);
            }
        });
        assert!(files.iter().any(|file| !file.filled.is_empty()));
        fsck(&image);
        check_with_folio(&image, &files, block_size);
        check_with_kernel(&image, &files, block_size);
    }
    // All blocks come back.
    let free = |image: &Path| {
        let mut free = 0;
        with_image(image, true, |p| free = p.statfs("/i").unwrap().blocks_free);
        free
    };
    let before = free(&image);
    with_image(&image, false, |process| {
        for file in &files {
            process.unlink(format!("/i/{}", file.name)).unwrap();
        }
    });
    fsck(&image);
    let data: usize = files.iter().map(|file| file.filled.len()).sum();
    assert!(free(&image) - before >= data as u64);
}

#[test]
fn sparse_files_on_ext2_are_equal() {
    sparse_files(&["-t", "ext2"], 1024);
}

#[test]
fn sparse_files_on_ext3_are_equal() {
    sparse_files(&["-t", "ext3"], 1024);
}

#[test]
fn sparse_files_on_ext3_in_4k_blocks_are_equal() {
    sparse_files(&["-t", "ext3", "-I", "128"], 4096);
}

#[test]
fn sparse_files_without_extents_are_equal() {
    sparse_files(&["-O", "^extent,^64bit"], 2048);
}

#[test]
fn file_on_ext2_stops_at_its_largest_size() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("dumpe2fs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(
        &image,
        "32M",
        &["-t", "ext2", "-b", "1024", "-O", "^large_file"],
    );
    let reached = (12 + 256 + 256 * 256 + 256_u64.pow(3)) * 1024;
    with_image(&image, false, |process| {
        let flags = OpenFlags::RDWR | OpenFlags::CREAT;
        let fd = process.open("/i/f", flags, 0o644).unwrap();
        let refused = process.pwrite(fd, b"x", reached).unwrap_err();
        assert_eq!(refused.errno(), Errno::FBIG);
        let refused = process.ftruncate(fd, reached + 1).unwrap_err();
        assert_eq!(refused.errno(), Errno::FBIG);
        for mode in [FallocateMode::Allocate, FallocateMode::ZeroRange] {
            let refused = process.fallocate(fd, mode, 0, 4096).unwrap_err();
            assert_eq!(refused.errno(), Errno::OPNOTSUPP);
        }
        assert_eq!(process.pwrite(fd, b"last", reached - 4).unwrap(), 4);
        process.close(fd).unwrap();
    });
    // Sets the feature large_file.
    fsck(&image);
    with_image(&image, true, |process| {
        let fd = process.open("/i/f", OpenFlags::empty(), 0).unwrap();
        let mut buf = [0; 10];
        assert_eq!(process.pread(fd, &mut buf, reached - 4).unwrap(), 4);
        assert_eq!(&buf[..4], b"last");
        process.close(fd).unwrap();
    });
}

#[test]
fn file_with_more_pointers_than_the_journal() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    const MIB: usize = 1 << 20;
    const COUNT: usize = 280;
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    let options = ["-t", "ext3", "-b", "1024", "-J", "size=1"];
    mke2fs(&image, "320M", &options);
    with_image(&image, false, |process| {
        let flags = OpenFlags::RDWR | OpenFlags::CREAT;
        let fd = process.open("/i/f", flags, 0o644).unwrap();
        for number in 0..COUNT {
            let chunk = vec![number as u8; MIB];
            let written = process.pwrite(fd, &chunk, (number * MIB) as u64).unwrap();
            assert_eq!(written, MIB);
        }
        process.fsync(fd).unwrap();
        process.close(fd).unwrap();
    });
    fsck(&image);
    with_image(&image, false, |process| {
        let fd = process.open("/i/f", OpenFlags::empty(), 0).unwrap();
        let mut buf = vec![0; MIB];
        for number in 0..COUNT {
            let at = (number * MIB) as u64;
            assert_eq!(process.pread(fd, &mut buf, at).unwrap(), MIB);
            assert!(buf.iter().all(|byte| *byte == number as u8), "MiB {number}");
        }
        process.close(fd).unwrap();
        process.truncate("/i/f", 100_000).unwrap();
    });
    fsck(&image);
}
