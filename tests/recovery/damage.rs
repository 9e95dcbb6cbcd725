//! Damaged journals: Folio refuses those that Linux refuses, and writes nothing then.

use super::{dirty_image, raw};
use crate::support::tools::{command, mke2fs};
use crate::support::{Mounted, requires};
use folio::syscall::Credentials;
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use std::fs::{self, File};
use std::path::Path;
use tempfile::TempDir;

const BLOCK: usize = 1024;
const MAGIC: [u8; 4] = 0xC03B_3998_u32.to_be_bytes();
const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const REVOKE: u32 = 5;
/// Offset of a commit block's checksum.
const COMMIT_CHECKSUM: usize = 16;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A block of the live part of the log.
#[derive(Debug, Clone, Copy)]
struct Block {
    kind: u32,
    sequence: u32,
    offset: usize,
}

/// Returns the descriptor, revoke and commit blocks of the transactions to be replayed.
fn log_blocks(image: &[u8]) -> Vec<Block> {
    let blocks = (0..image.len())
        .step_by(BLOCK)
        .filter(|at| image[*at..].starts_with(&MAGIC))
        .map(|offset| Block {
            kind: word(image, offset + 4),
            sequence: word(image, offset + 8),
            offset,
        });
    let blocks: Vec<_> = blocks.collect();
    let superblock = blocks.iter().find(|block| matches!(block.kind, 3 | 4));
    let first = word(image, superblock.expect("a journal").offset + 0x18);
    let is_live = |block: &Block| {
        block.sequence >= first && matches!(block.kind, DESCRIPTOR | REVOKE | COMMIT)
    };
    blocks.into_iter().filter(is_live).collect()
}

fn linux_mounts(image: &Path, work: &Path) -> bool {
    fs::copy(image, work).unwrap();
    let folder = TempDir::with_prefix("folio-mount-").unwrap();
    let output = command("mount")
        .args(["-t", "ext4", "-o", "loop"])
        .args([work, folder.path()])
        .output()
        .unwrap();
    if output.status.success() {
        let unmounted = command("umount").arg(folder.path()).status().unwrap();
        assert!(unmounted.success(), "umount of {work:?}");
    }
    output.status.success()
}

/// Mounts with the given options and unmounts; returns whether that succeeded.
fn folio_mounts(image: &Path, options: &str) -> bool {
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    let parsed = MountOptions::parse(options).unwrap();
    let mounted = kernel.mount_ext4(raw(image, options == "ro"), "/disk", &parsed);
    if mounted.is_ok() {
        drop(process);
        kernel.unmount("/disk").unwrap();
    }
    mounted.is_ok()
}

/// Changes a byte of an image, and compares the verdicts of Linux and Folio. Returns the verdict.
#[track_caller]
fn verdict(sound: &[u8], at: usize, folder: &Path, what: &str) -> bool {
    let (image, work) = (folder.join("damaged.img"), folder.join("work.img"));
    let mut bytes = sound.to_vec();
    bytes[at] ^= 0x55;
    fs::write(&image, &bytes).unwrap();
    let by_linux = linux_mounts(&image, &work);
    assert_eq!(folio_mounts(&image, "ro"), by_linux, "{what}, read-only");
    assert!(fs::read(&image).unwrap() == bytes, "{what}: written");
    assert_eq!(folio_mounts(&image, ""), by_linux, "{what}");
    let is_written = fs::read(&image).unwrap() != bytes;
    assert_eq!(is_written, by_linux, "{what}: writes of a refused mount");
    by_linux
}

/// Returns an image in use, with several transactions in its journal.
fn image_in_use(folder: &Path, features: &str, options: &str) -> Vec<u8> {
    let image = folder.join("in-use.img");
    mke2fs(&image, "40M", &["-b", "1024", "-O", features]);
    let mounted = Mounted::new(&image, options);
    for round in 0..4 {
        let path = mounted.path().join(format!("{round}"));
        fs::create_dir_all(path.join("removed")).unwrap();
        fs::write(path.join("file"), vec![7; 3000]).unwrap();
        if round > 0 {
            // Revokes the block of the directory.
            let before = mounted.path().join(format!("{}/removed", round - 1));
            fs::remove_dir(before).unwrap();
        }
        rustix::fs::syncfs(File::open(mounted.path()).unwrap()).unwrap();
    }
    let copy = fs::read(&image).unwrap();
    mounted.unmount();
    copy
}

#[test]
fn damaged_journal_is_refused_as_by_linux() {
    requires!(root, loop_devices, linux(5, 10), tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    for (features, options) in [
        ("metadata_csum,64bit", "rw,commit=3000"),
        ("^metadata_csum", "rw,commit=3000"),
        ("^metadata_csum", "rw,commit=3000,journal_checksum"),
        (
            "metadata_csum",
            "rw,commit=3000,journal_async_commit,data=writeback",
        ),
    ] {
        let sound = image_in_use(folder.path(), features, options);
        let blocks = log_blocks(&sound);
        let mut kinds = [0; 2];
        for block in &blocks {
            let what = format!("{features} {options} {block:?}");
            let at = match block.kind {
                COMMIT => COMMIT_CHECKSUM,
                _ => BLOCK - 1,
            };
            let mounts = verdict(&sound, block.offset + at, folder.path(), &what);
            kinds[usize::from(mounts)] += 1;
            if block.kind == DESCRIPTOR {
                let what = format!("{what}: its data");
                let mounts = verdict(&sound, block.offset + 2 * BLOCK - 1, folder.path(), &what);
                kinds[usize::from(mounts)] += 1;
            }
        }
        assert!(blocks.len() >= 9, "{features}: {blocks:?}");
        let has_checksums = options.contains("check") || features.starts_with("metadata");
        assert_eq!(kinds[0] > 0, has_checksums, "{features} {options}");
    }
}

/// A power cut may write a part of a commit block: its fields are in the first sector.
#[test]
fn commit_block_partly_written_is_replayed() {
    requires!(root, loop_devices, linux(5, 10), tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let sound = image_in_use(folder.path(), "metadata_csum", "rw,commit=3000");
    let blocks = log_blocks(&sound);
    let commit = blocks.iter().rfind(|block| block.kind == COMMIT).unwrap();
    let image = folder.path().join("partly.img");
    let mut bytes = sound.clone();
    bytes[commit.offset + 600] = 1;
    fs::write(&image, &bytes).unwrap();
    assert!(folio_mounts(&image, "ro"));
    bytes[commit.offset + 50] ^= 1;
    fs::write(&image, &bytes).unwrap();
    assert!(!folio_mounts(&image, "ro"));
}

#[test]
fn damaged_fast_commit_is_refused_as_by_linux() {
    requires!(root, loop_devices, linux(5, 10), tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    // The last commit may be a full one, made for a sync(2): fast commits before it are not read.
    let is_refused = |seed| !damaged_head_is_mounted(folder.path(), seed);
    assert!((3..13).any(is_refused), "no image has a fast commit last");
}

/// Damages the first fast commit of an image in several ways; returns whether the image is mounted
/// if the content of that commit is damaged.
fn damaged_head_is_mounted(folder: &Path, seed: u64) -> bool {
    let (image, work) = (folder.join("dirty.img"), folder.join("w.img"));
    let (_, commits) = dirty_image(&image, &work, &["-b", "1024"], seed);
    assert!(commits > 1, "{commits} fast commits");
    let sound = fs::read(&image).unwrap();
    // The tag of a HEAD and its length.
    let head = (0..sound.len())
        .step_by(BLOCK)
        .find(|at| sound[*at..].starts_with(&[9, 0, 8, 0]))
        .expect("a fast commit");
    for (at, what) in [
        (head, "no HEAD"),
        (head + 8, "HEAD of another transaction"),
        (head + 12, "first tag"),
    ] {
        verdict(&sound, at, folder, what);
    }
    verdict(&sound, head + 20, folder, "first fast commit")
}
