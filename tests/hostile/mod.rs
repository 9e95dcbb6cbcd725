//! Damaged ext4 images: every call returns a result or an error, without a panic, a hang or a huge
//! allocation.
//!
//! Each case damages a small image with every kind of structure, then walks and reads all of it,
//! and in a second pass changes it. `FOLIO_HOSTILE_CASES` sets the number of cases.

use crate::support::random::Random;
use crate::support::rounds;
use crate::support::{self, requires};

use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{AT_FDCWD, AtFlags, Credentials, OpenFlags, Process};
use folio::vfs::{DeviceNumber, FallocateMode, FileType, MountOptions, XattrFlags};
use folio::{Errno, Kernel, KernelOptions};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

const IMAGE_BYTES: u64 = 12 << 20;
/// The byte of all file data, so that only metadata is damaged.
const DATA: u8 = 0xDA;
/// Names visited in one walk, at most: a directory may contain itself.
const NAMES_MAX: usize = 4000;
/// Timeout of a case, far above the normal duration.
const CASE_TIMEOUT: Duration = Duration::from_secs(600);

fn kernel() -> (Arc<Kernel>, Process) {
    let options = KernelOptions {
        cache_bytes: 1 << 20,
        background_writeback: false,
        ..KernelOptions::default()
    };
    let kernel = Kernel::new(options);
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    (kernel, process)
}

/// Creates every kind of structure in the file system on `device`.
fn fill(device: &Arc<MemoryDevice>) {
    let (kernel, process) = kernel();
    kernel
        .mount_ext4(device.clone(), "/disk", &MountOptions::default())
        .unwrap();
    process.mkdir("/disk/many", 0o755).unwrap();
    for i in 0..400 {
        let fd = process.open(
            format!("/disk/many/a-rather-long-name-{i}"),
            OpenFlags::CREAT | OpenFlags::WRONLY,
            0o644,
        );
        process.close(fd.unwrap()).unwrap();
    }
    let flags = OpenFlags::CREAT | OpenFlags::RDWR;
    let fd = process.open("/disk/fragments", flags, 0o644).unwrap();
    for i in 0..300 {
        process.pwrite(fd, &[DATA; 1024], i * 8192).unwrap();
    }
    process
        .fallocate(fd, FallocateMode::Allocate, 4 << 20, 64 << 10)
        .unwrap();
    process.close(fd).unwrap();
    let fd = process.open("/disk/file", flags, 0o644).unwrap();
    process.write(fd, &vec![DATA; 100_000]).unwrap();
    process.close(fd).unwrap();
    process
        .setxattr("/disk/file", b"user.small", b"value", XattrFlags::empty())
        .unwrap();
    process
        .setxattr("/disk/file", b"user.large", &[7; 600], XattrFlags::empty())
        .unwrap();
    process.link("/disk/file", "/disk/hard").unwrap();
    process.symlink("file", "/disk/short").unwrap();
    process.symlink("x/".repeat(200), "/disk/long").unwrap();
    process
        .mknodat(
            AT_FDCWD,
            "/disk/node",
            FileType::BlockDevice,
            0o600,
            DeviceNumber::new(8, 1),
        )
        .unwrap();
    for depth in 1..8 {
        process
            .mkdir(format!("/disk{}", "/deep".repeat(depth)), 0o755)
            .unwrap();
    }
    drop(process);
    kernel.unmount("/disk").unwrap();
}

fn contents(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.len_bytes() as usize];
    device.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Reads all files and attributes, ignoring errors. Returns the number of names found.
fn read_all(process: &Process) -> usize {
    let mut waiting = vec!["/disk".to_owned()];
    let mut names_left = NAMES_MAX;
    let mut buf = vec![0; 64 << 10];
    while let Some(path) = waiting.pop() {
        let Ok(dir) = process.open(&path, OpenFlags::DIRECTORY, 0) else {
            continue;
        };
        while let Ok(entries) = process.getdents(dir, 100) {
            if entries.is_empty() || names_left == 0 {
                break;
            }
            for entry in entries {
                names_left = names_left.saturating_sub(1);
                let Ok(name) = String::from_utf8(entry.name) else {
                    continue;
                };
                let at = format!("{path}/{name}");
                let Ok(found) = process.fstatat(AT_FDCWD, &at, AtFlags::SYMLINK_NOFOLLOW) else {
                    continue;
                };
                for xattr in process.llistxattr(&at).unwrap_or_default() {
                    let _ = process.lgetxattr(&at, &xattr);
                }
                match found.file_type {
                    FileType::Directory if name != "." && name != ".." && path.len() < 400 => {
                        waiting.push(at)
                    }
                    FileType::Symlink => drop(process.readlink(&at)),
                    FileType::Regular => {
                        if let Ok(fd) = process.open(&at, OpenFlags::empty(), 0) {
                            for offset in [0, 8192, 1 << 20, found.size_bytes.saturating_sub(10)] {
                                let _ = process.pread(fd, &mut buf, offset);
                            }
                            let _ = process.close(fd);
                        }
                    }
                    _ => {}
                }
            }
        }
        let _ = process.close(dir);
    }
    NAMES_MAX - names_left
}

/// Makes a few changes of every kind.
fn change(process: &Process) {
    for i in 0..20 {
        if let Ok(fd) = process.open(
            format!("/disk/many/new-{i}"),
            OpenFlags::CREAT | OpenFlags::RDWR,
            0o644,
        ) {
            let _ = process.write(fd, &[DATA; 5000]);
            let _ = process.close(fd);
        }
        let _ = process.unlink(format!("/disk/many/a-rather-long-name-{i}"));
    }
    let _ = process.truncate("/disk/fragments", 100_000);
    let _ = process.truncate("/disk/file", 0);
    let _ = process.rename("/disk/many", "/disk/deep/many");
    let _ = process.setxattr("/disk/file", b"user.more", &[1; 300], XattrFlags::empty());
    let _ = process.unlink("/disk/hard");
    let _ = process.unlink("/disk/long");
    let _ = process.rmdir("/disk/deep/deep/deep/deep/deep/deep/deep");
    let _ = process.mkdir("/disk/fresh", 0o755);
    let _ = process.sync();
}

/// Mounts the image `bytes` read-only and reads all of it, then mounts it for writing and changes
/// it. Returns the number of names found.
fn exercise(bytes: &[u8]) -> usize {
    let mut names = 0;
    for read_only in [true, false] {
        let device = Arc::new(MemoryDevice::new(bytes.len() as u64));
        for (chunk, offset) in bytes.chunks(64 << 10).zip((0..).step_by(64 << 10)) {
            if chunk.iter().any(|byte| *byte != 0) {
                device.write_at(chunk, offset).unwrap();
            }
        }
        let (kernel, process) = kernel();
        let options = MountOptions {
            read_only,
            ..MountOptions::default()
        };
        let Err(error) = kernel.mount_ext4(device, "/disk", &options) else {
            names += read_all(&process);
            if !read_only {
                change(&process);
            }
            drop(process);
            let _ = kernel.unmount("/disk");
            continue;
        };
        assert!(
            error.to_string().contains("ext4"),
            "the error names no structure: {error}"
        );
    }
    names
}

/// Runs `case` for each seed. Prints the seed and aborts the program if a case takes too long.
fn run_with_timeout(what: &str, seeds: std::ops::Range<u64>, mut case: impl FnMut(u64)) {
    let (heartbeat, beats) = channel::<u64>();
    let name = what.to_owned();
    let watch = std::thread::spawn(move || {
        let mut last = None;
        loop {
            match beats.recv_timeout(CASE_TIMEOUT) {
                Ok(seed) => last = Some(seed),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("{name}: seed {last:?} hangs");
                    std::process::abort();
                }
            }
        }
    });
    for seed in seeds {
        heartbeat.send(seed).unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(seed)));
        assert!(outcome.is_ok(), "{what}: seed {seed} panics");
    }
    drop(heartbeat);
    watch.join().unwrap();
}

fn cases() -> u64 {
    std::env::var("FOLIO_HOSTILE_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(rounds::cases(250))
}

/// Damages one to four words of metadata.
fn damage(bytes: &mut [u8], interesting: &[usize], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let block = interesting[random.below(interesting.len())];
        let at = block + random.below(256) * 4;
        let word: [u8; 4] = match random.below(7) {
            0 => [0; 4],
            1 => [0xFF; 4],
            2 => 1_u32.to_le_bytes(),
            3 => 0x7FFF_FFFF_u32.to_le_bytes(),
            4 => (random.below(IMAGE_BYTES as usize / 1024) as u32).to_le_bytes(),
            _ => {
                let bit = random.below(32) as u32;
                let old =
                    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
                (old ^ 1 << bit).to_le_bytes()
            }
        };
        bytes[at..at + 4].copy_from_slice(&word);
    }
}

/// Returns the offsets of metadata: pieces of 1 KiB that are neither zeros nor file data. The empty
/// journal is not included.
fn interesting(bytes: &[u8]) -> Vec<usize> {
    let mut found: Vec<usize> = bytes
        .chunks(1024)
        .enumerate()
        .filter(|(_, piece)| {
            piece.iter().any(|byte| *byte != 0) && piece.iter().any(|byte| *byte != DATA)
        })
        .map(|(index, _)| index * 1024)
        .collect();
    // The superblock has the most fields, so give it more weight.
    found.extend([1024; 8]);
    found
}

fn bit_flips(what: &str, device: &Arc<MemoryDevice>) {
    let intact = contents(device);
    assert!(
        exercise(&intact) > 800,
        "the intact image must be read completely, twice"
    );
    let offsets = interesting(&intact);
    run_with_timeout(what, 0..cases(), |seed| {
        let mut bytes = intact.clone();
        damage(&mut bytes, &offsets, &mut Random::new(seed));
        exercise(&bytes);
    });
}

#[test]
fn damage_with_checksums_is_survived() {
    let device = Arc::new(MemoryDevice::new(IMAGE_BYTES));
    ext4::format(&*device, &FormatOptions::default()).unwrap();
    fill(&device);
    bit_flips("with checksums", &device);
}

/// Loads an image made by mke2fs.
fn foreign(options: &[&str]) -> Arc<MemoryDevice> {
    let file = tempfile::NamedTempFile::new().unwrap();
    support::tools::mke2fs(file.path(), "12M", options);
    let bytes = std::fs::read(file.path()).unwrap();
    let device = Arc::new(MemoryDevice::new(IMAGE_BYTES));
    device.write_at(&bytes, 0).unwrap();
    device
}

#[test]
fn damage_without_checksums_is_survived() {
    requires!(tool("mke2fs"));
    let device = foreign(&["-O", "^metadata_csum,^metadata_csum_seed,^64bit"]);
    fill(&device);
    bit_flips("without checksums", &device);
}

#[test]
fn damage_without_checksums_in_4k_is_survived() {
    requires!(tool("mke2fs"));
    let device = foreign(&[
        "-b",
        "4096",
        "-O",
        "^metadata_csum,^metadata_csum_seed,^flex_bg",
    ]);
    fill(&device);
    bit_flips("4 KiB blocks", &device);
}

#[test]
fn damage_with_inline_data_is_survived() {
    requires!(tool("mke2fs"));
    let device = foreign(&[
        "-O",
        "inline_data,^metadata_csum,^metadata_csum_seed",
        "-I",
        "512",
    ]);
    fill(&device);
    bit_flips("inline data", &device);
}

#[test]
fn extreme_superblock_fields_are_survived() {
    requires!(tool("mke2fs"));
    let device = foreign(&["-O", "^metadata_csum,^metadata_csum_seed"]);
    fill(&device);
    let intact = contents(&device);
    run_with_timeout("superblock fields", 0..256, |field| {
        let values = [0_u32, 1, 0x7FFF_FFFF, 0xFFFF_FFFF];
        // In a short run each field has one of them.
        let first = field as usize % rounds::step(values.len());
        for value in values.into_iter().skip(first).step_by(rounds::step(4)) {
            let mut bytes = intact.clone();
            let at = 1024 + field as usize * 4;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            exercise(&bytes);
        }
    });
}

#[test]
fn truncated_images_are_rejected_or_read() {
    let device = Arc::new(MemoryDevice::new(IMAGE_BYTES));
    ext4::format(&*device, &FormatOptions::default()).unwrap();
    fill(&device);
    let intact = contents(&device);
    run_with_timeout("truncation", 0..12, |step| {
        exercise(&intact[..(step as usize) << 20]);
    });
    let short = Arc::new(MemoryDevice::new(IMAGE_BYTES / 2));
    short
        .write_at(&intact[..(IMAGE_BYTES / 2) as usize], 0)
        .unwrap();
    let (kernel, _process) = kernel();
    let error = kernel
        .mount_ext4(short, "/disk", &MountOptions::default())
        .unwrap_err();
    assert_eq!(error.errno(), Errno::UCLEAN);
    assert!(
        error.to_string().contains("superblock") && error.to_string().contains("truncated"),
        "{error}"
    );
}
