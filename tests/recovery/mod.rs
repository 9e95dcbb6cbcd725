//! Replay of dirty journals written by the kernel, mainly fast commits: all synced changes are
//! present, and e2fsck finds nothing.

mod damage;

use crate::support;

use folio::block::{Device, MemoryDevice, OverlayDevice, RawDevice};
use folio::syscall::{AT_FDCWD, AtFlags, Credentials, OpenFlags};
use folio::testing::RecordDevice;
use folio::vfs::{FileType, MountOptions};
use folio::{Kernel, KernelOptions, Process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::random::Random;
use support::tools::{fsck, mke2fs};
use support::{Mounted, requires};
use tempfile::TempDir;

/// Files by path: mode with type, link count (0 for directories), contents or target.
type Tree = BTreeMap<String, (u32, u64, Vec<u8>)>;

fn host_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap() {
            let inside = folder.join(entry.unwrap().file_name());
            let path = root.join(&inside);
            let found = fs::symlink_metadata(&path).unwrap();
            let (links, bytes) = if found.is_dir() {
                waiting.push(inside.clone());
                (0, Vec::new())
            } else if found.is_symlink() {
                (
                    found.nlink(),
                    fs::read_link(&path)
                        .unwrap()
                        .into_os_string()
                        .into_encoded_bytes(),
                )
            } else {
                (found.nlink(), fs::read(&path).unwrap())
            };
            tree.insert(inside.display().to_string(), (found.mode(), links, bytes));
        }
    }
    tree
}

fn folio_tree(process: &Process) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![String::new()];
    while let Some(folder) = waiting.pop() {
        let dir = process
            .open(format!("/disk/{folder}"), OpenFlags::DIRECTORY, 0)
            .unwrap();
        for entry in process.getdents(dir, usize::MAX).unwrap() {
            let name = String::from_utf8(entry.name).unwrap();
            if matches!(name.as_str(), "." | "..") {
                continue;
            }
            let inside = if folder.is_empty() {
                name
            } else {
                format!("{folder}/{name}")
            };
            let path = format!("/disk/{inside}");
            let found = process
                .fstatat(AT_FDCWD, &path, AtFlags::SYMLINK_NOFOLLOW)
                .unwrap();
            let (kind, links, bytes) = match found.file_type {
                FileType::Directory => {
                    waiting.push(inside.clone());
                    (0o040_000, 0, Vec::new())
                }
                FileType::Symlink => (
                    0o120_000,
                    found.link_count,
                    process.readlink(&path).unwrap(),
                ),
                _ => {
                    let fd = process.open(&path, OpenFlags::empty(), 0).unwrap();
                    let mut bytes = vec![0; found.size_bytes as usize];
                    let count = process.pread(fd, &mut bytes, 0).unwrap();
                    assert_eq!(count, bytes.len());
                    process.close(fd).unwrap();
                    (0o100_000, found.link_count, bytes)
                }
            };
            tree.insert(inside, (kind | u32::from(found.mode), links.into(), bytes));
        }
        process.close(dir).unwrap();
    }
    tree
}

fn raw(image: &Path, read_only: bool) -> Arc<dyn Device> {
    Arc::new(RawDevice::open(image, read_only).unwrap())
}

/// Mounts the image, which replays its journal, reads the tree, and unmounts.
fn replayed(device: Arc<dyn Device>, options: &str) -> Tree {
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    let options = MountOptions::parse(options).unwrap();
    kernel.mount_ext4(device, "/disk", &options).unwrap();
    let tree = folio_tree(&process);
    drop(process);
    kernel.unmount("/disk").unwrap();
    tree
}

/// Asserts that two trees are equal; the message lists the names that differ.
#[track_caller]
fn assert_same(want: &Tree, got: &Tree, what: &str) {
    let short = |entry: Option<&(u32, u64, Vec<u8>)>| {
        entry.map(|(mode, links, bytes)| {
            format!(
                "{mode:o} links {links} size {} {:?}",
                bytes.len(),
                &bytes[..bytes.len().min(8)]
            )
        })
    };
    let names: std::collections::BTreeSet<_> = want.keys().chain(got.keys()).collect();
    let differing: Vec<_> = names
        .iter()
        .filter(|name| want.get(**name) != got.get(**name))
        .map(|name| {
            format!(
                "{name}: want {:?}, got {:?}",
                short(want.get(*name)),
                short(got.get(*name))
            )
        })
        .collect();
    assert!(
        differing.is_empty(),
        "{what}: {} of {} differ:\n{}",
        differing.len(),
        names.len(),
        differing.join("\n")
    );
}

/// Makes one random change to the tree at `root` that a fast commit can record.
fn change(root: &Path, random: &mut Random) {
    let folder = |random: &mut Random| root.join(["", "d0", "d1"][random.below(3)]);
    let name = |random: &mut Random| folder(random).join(format!("f{}", random.below(8)));
    let path = name(random);
    // A change may fail, for example on a missing name.
    let _ = match random.below(10) {
        0..=3 => File::options()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| {
                let len = 1 + random.below(20_000);
                file.write_all(&vec![random.below(256) as u8; len])
            }),
        4 => File::options().write(true).open(&path).and_then(|file| {
            let offset = random.below(100_000) as u64;
            file.write_all_at(&[random.below(256) as u8; 3000], offset)
        }),
        5 => File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(random.below(30_000) as u64)),
        6 => fs::rename(&path, name(random)),
        7 => fs::hard_link(&path, name(random)),
        8 => fs::remove_file(&path),
        _ => match random.below(3) {
            0 => symlink("x".repeat(1 + random.below(100)), &path),
            1 => fs::create_dir(folder(random).join(format!("n{}", random.below(4)))),
            _ => fs::remove_dir(folder(random).join(format!("n{}", random.below(4)))),
        },
    };
}

/// Creates an image with fast commits in its journal. Returns the synced tree, and the number of
/// fast commits that the kernel made.
fn dirty_image(image: &Path, work: &Path, options: &[&str], seed: u64) -> (Tree, u64) {
    let options: Vec<_> = ["-O", "fast_commit"]
        .iter()
        .chain(options)
        .copied()
        .collect();
    mke2fs(work, "64M", &options);
    let mounted = Mounted::new(work, "rw,commit=3000");
    let root = mounted.path();
    let mut random = Random::new(seed);
    for folder in ["d0", "d1"] {
        fs::create_dir(root.join(folder)).unwrap();
    }
    for _ in 0..random.below(30) {
        change(&root, &mut random);
    }
    // A full commit; fast commits follow.
    rustix::fs::syncfs(File::open(&root).unwrap()).unwrap();
    let last = File::create(root.join("last")).unwrap();
    last.sync_all().unwrap();
    for round in 0..1 + random.below(12_u64) {
        for _ in 0..random.below(12) {
            change(&root, &mut random);
        }
        last.write_all_at(&round.to_le_bytes(), round * 8).unwrap();
        last.sync_all().unwrap();
    }
    // Sync all files, because sizes and data of unsynced files may be missing. Names may not.
    let tree = host_tree(&root);
    for (path, (mode, ..)) in &tree {
        if mode & 0o170_000 == 0o100_000 {
            File::open(root.join(path)).unwrap().sync_all().unwrap();
        }
    }
    last.write_all_at(b"end", 1000).unwrap();
    let tree = host_tree(&root);
    last.sync_all().unwrap();
    // A sync(2) by any program of the machine would make a full commit.
    shut_down(&last);
    fs::copy(work, image).unwrap();
    let commits = fast_commits(&root);
    drop(last);
    mounted.unmount();
    (tree, commits)
}

/// Ends all writes to the file system of `file` at once: `EXT4_GOING_FLAGS_NOLOGFLUSH` of Linux's
/// fs/ext4/ioctl.c.
fn shut_down(file: &File) {
    use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
    const SHUTDOWN: Opcode = opcode::read::<u32>(b'X', 125);
    const NO_LOG_FLUSH: u32 = 2;
    // SAFETY: EXT4_IOC_SHUTDOWN reads one 32-bit number.
    let request = unsafe { Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH) };
    // SAFETY: as above.
    unsafe { ioctl(file, request) }.unwrap();
}

/// Returns the kernel's count of fast commits on the file system at `root`.
fn fast_commits(root: &Path) -> u64 {
    let device = fs::metadata(root).unwrap().dev();
    let name = fs::read_link(format!("/sys/dev/block/{}:{}", device >> 8, device & 0xFF)).unwrap();
    let name = name.file_name().unwrap().to_string_lossy().into_owned();
    let Ok(info) = fs::read_to_string(format!("/proc/fs/ext4/{name}/fc_info")) else {
        return 0;
    };
    let line = info.lines().find(|line| line.contains("commits"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[test]
fn kernel_fast_commits_are_replayed() {
    requires!(
        root,
        loop_devices,
        linux(5, 10),
        tool("mke2fs"),
        tool("e2fsck")
    );
    let scratch = TempDir::new().unwrap();
    let cases = std::env::var("FOLIO_FAST_COMMIT_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(12);
    let mut commits_total = 0;
    for seed in 1..=cases {
        let (image, work) = (
            scratch.path().join("dirty.img"),
            scratch.path().join("work.img"),
        );
        let options: &[&str] = match seed % 3 {
            0 => &["-b", "4096"],
            1 => &["-b", "1024"],
            _ => &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        };
        let (want, commits) = dirty_image(&image, &work, options, seed);
        commits_total += commits;
        let before = fs::read(&image).unwrap();
        assert_same(
            &want,
            &replayed(raw(&image, true), "ro"),
            &format!("seed {seed}, read-only"),
        );
        assert!(
            fs::read(&image).unwrap() == before,
            "seed {seed}: a read-only mount changed the image"
        );
        assert_same(
            &want,
            &replayed(raw(&image, false), ""),
            &format!("seed {seed}"),
        );
        fsck(&image);
        assert_same(
            &want,
            &replayed(raw(&image, true), "ro"),
            &format!("seed {seed}, again"),
        );
    }
    assert!(commits_total > 0, "the kernel made no fast commit");
}

/// The superblock of a mounted file system has the totals of the mount's begin.
#[test]
fn mount_without_changes_corrects_the_totals() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let (image, work) = (
        scratch.path().join("dirty.img"),
        scratch.path().join("work.img"),
    );
    mke2fs(&work, "64M", &[]);
    let mounted = Mounted::new(&work, "rw,commit=3000");
    for name in 0..30 {
        let folder = mounted.path().join(format!("d{name}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), vec![1; 20_000]).unwrap();
    }
    rustix::fs::syncfs(File::open(mounted.path()).unwrap()).unwrap();
    fs::copy(&work, &image).unwrap();
    mounted.unmount();
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    let options = MountOptions::default();
    kernel
        .mount_ext4(raw(&image, false), "/disk", &options)
        .unwrap();
    drop(process);
    kernel.unmount("/disk").unwrap();
    fsck(&image);
}

/// A power cut after each write of a replay: the next replay gives the same tree.
#[test]
fn interrupted_replay_is_repeated() {
    requires!(root, loop_devices, linux(5, 10), tool("mke2fs"));
    let scratch = TempDir::new().unwrap();
    let (image, work) = (
        scratch.path().join("dirty.img"),
        scratch.path().join("work.img"),
    );
    let (want, _) = dirty_image(&image, &work, &["-b", "1024"], 3);
    let bytes = fs::read(&image).unwrap();
    let fresh = || -> Arc<dyn Device> {
        let device = MemoryDevice::new(bytes.len() as u64);
        for (chunk, offset) in bytes.chunks(64 << 10).zip((0..).step_by(64 << 10)) {
            if chunk.iter().any(|byte| *byte != 0) {
                device.write_at(chunk, offset).unwrap();
            }
        }
        Arc::new(device)
    };
    let recording = Arc::new(RecordDevice::new(fresh()));
    assert_same(&want, &replayed(recording.clone(), ""), "whole");
    let record = recording.recorded();
    assert!(record.len() > 20, "{} writes", record.len());
    let cut = fresh();
    for (entry, index) in record.iter().zip(1..) {
        entry.replay(&*cut).unwrap();
        // Each replay writes to its own overlay, so that the cuts are independent.
        let layer: Arc<dyn Device> = Arc::new(OverlayDevice::new(cut.clone()));
        assert_same(
            &want,
            &replayed(layer, ""),
            &format!("cut after write {index} of {}", record.len()),
        );
    }
}
