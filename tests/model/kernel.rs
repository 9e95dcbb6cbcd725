//! Concurrent programs on Folio's ext4 and, with equal calls, on the kernel's: equal answers and
//! trees.
//!
//! Each program works in its own directory, and under its own names in a shared one, so the result
//! does not depend on timing.

use crate::support::random::Random;
use crate::support::tools::{fsck, mke2fs};
use crate::support::{Manifest, Mounted, Scope};
use folio::block::{OpenOptions, open};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions, Process};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timestamps};
use std::path::Path;

const THREADS: usize = 4;
const CALLS: usize = 1500;

/// One call, with paths below the root of the tree.
#[derive(Debug)]
enum Call {
    Mkdir(String),
    Rmdir(String),
    /// Offset, length, fill byte; creates the file if needed.
    Write(String, u64, usize, u8),
    Truncate(String, u64),
    Unlink(String),
    Rename(String, String),
    Link(String, String),
    Symlink(String, String),
    Chmod(String, u16),
    Fsync(String),
    /// Length and checksum of the bytes.
    Read(String),
}

/// Returns a random name, shared or of the thread's own.
fn random_name(random: &mut Random, thread: usize) -> String {
    match random.below(4) {
        0 => format!("shared/t{thread}-{}", random.below(30)),
        1 => format!("own-{thread}/d{}", random.below(4)),
        2 => format!("own-{thread}/d{}/f{}", random.below(4), random.below(8)),
        _ => format!("own-{thread}/f{}", random.below(12)),
    }
}

/// Returns a random call of a thread.
fn random_call(random: &mut Random, thread: usize) -> Call {
    let (name, other) = (random_name(random, thread), random_name(random, thread));
    let place = random.below(60_000) as u64;
    match random.below(16) {
        0 | 1 => Call::Mkdir(name),
        2 => Call::Rmdir(name),
        3..=6 => Call::Write(name, place, 1 + random.below(9000), random.below(256) as u8),
        7 => Call::Truncate(name, place),
        8 => Call::Unlink(name),
        9 | 10 => Call::Rename(name, other),
        11 => Call::Link(name, other),
        12 => Call::Symlink(other, name),
        13 => Call::Chmod(name, random.below(0o1000) as u16 | 0o600),
        14 => Call::Fsync(name),
        _ => Call::Read(name),
    }
}

/// The result of a call: a number, or an errno.
type Answer = Result<u64, i32>;

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    })
}

fn on_folio(process: &Process, call: &Call) -> Answer {
    let at = |path: &String| format!("/disk/{path}");
    let with = |path: &String, flags, work: &dyn Fn(folio::syscall::Fd) -> folio::Result<u64>| {
        let fd = process.open(at(path), flags, 0o644)?;
        let worked = work(fd);
        process.close(fd)?;
        worked
    };
    let nothing = |()| 0;
    match call {
        Call::Mkdir(path) => process.mkdir(at(path), 0o755).map(nothing),
        Call::Rmdir(path) => process.rmdir(at(path)).map(nothing),
        Call::Write(path, offset, len, byte) => with(
            path,
            OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::NOFOLLOW,
            &|fd| {
                process
                    .pwrite(fd, &vec![*byte; *len], *offset)
                    .map(|count| count as u64)
            },
        ),
        Call::Truncate(path, size) => with(path, OpenFlags::WRONLY | OpenFlags::NOFOLLOW, &|fd| {
            process.ftruncate(fd, *size).map(nothing)
        }),
        Call::Unlink(path) => process.unlink(at(path)).map(nothing),
        Call::Rename(from, to) => process.rename(at(from), at(to)).map(nothing),
        Call::Link(from, to) => process.link(at(from), at(to)).map(nothing),
        Call::Symlink(target, path) => process.symlink(target, at(path)).map(nothing),
        Call::Chmod(path, mode) => with(path, OpenFlags::NOFOLLOW, &|fd| {
            process.fchmod(fd, *mode).map(nothing)
        }),
        Call::Fsync(path) => with(path, OpenFlags::NOFOLLOW, &|fd| {
            process.fsync(fd).map(nothing)
        }),
        Call::Read(path) => with(path, OpenFlags::NOFOLLOW, &|fd| {
            let mut bytes = vec![0; process.fstat(fd)?.size_bytes as usize];
            let count = process.pread(fd, &mut bytes, 0)?;
            Ok(sum(&bytes[..count]))
        }),
    }
    .map_err(|error| error.errno().raw_os_error())
}

fn on_kernel(root: &Path, call: &Call) -> Answer {
    let at = |path: &String| root.join(path);
    let opened = |path: &String, flags| {
        rustix::fs::open(
            at(path),
            flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o644),
        )
    };
    let nothing = |()| 0;
    match call {
        Call::Mkdir(path) => rustix::fs::mkdir(at(path), Mode::from_raw_mode(0o755)).map(nothing),
        Call::Rmdir(path) => rustix::fs::rmdir(at(path)).map(nothing),
        Call::Write(path, offset, len, byte) => opened(path, OFlags::CREATE | OFlags::WRONLY)
            .and_then(|fd| rustix::io::pwrite(fd, &vec![*byte; *len], *offset))
            .map(|count| count as u64),
        Call::Truncate(path, size) => opened(path, OFlags::WRONLY)
            .and_then(|fd| rustix::fs::ftruncate(fd, *size))
            .map(nothing),
        Call::Unlink(path) => rustix::fs::unlink(at(path)).map(nothing),
        Call::Rename(from, to) => rustix::fs::rename(at(from), at(to)).map(nothing),
        Call::Link(from, to) => rustix::fs::link(at(from), at(to)).map(nothing),
        Call::Symlink(target, path) => rustix::fs::symlink(target, at(path)).map(nothing),
        Call::Chmod(path, mode) => opened(path, OFlags::RDONLY)
            .and_then(|fd| rustix::fs::fchmod(fd, Mode::from_raw_mode((*mode).into())))
            .map(nothing),
        Call::Fsync(path) => opened(path, OFlags::RDONLY)
            .and_then(rustix::fs::fsync)
            .map(nothing),
        Call::Read(path) => opened(path, OFlags::RDONLY).and_then(|fd| {
            let mut bytes = vec![0; rustix::fs::fstat(&fd)?.st_size as usize];
            let count = rustix::io::pread(fd, &mut bytes, 0)?;
            Ok(sum(&bytes[..count]))
        }),
    }
    .map_err(|error| error.raw_os_error())
}

/// Runs the calls of all threads concurrently; returns the results.
fn run(seed: u64, answer: impl Fn(&Call) -> Answer + Sync) -> Vec<Vec<(String, Answer)>> {
    answer(&Call::Mkdir("shared".to_owned())).unwrap();
    let work = |thread: usize| {
        answer(&Call::Mkdir(format!("own-{thread}"))).unwrap();
        let mut random = Random::new(seed ^ (thread as u64 + 1) << 32);
        let mut answers = Vec::new();
        for _ in 0..CALLS {
            let call = random_call(&mut random, thread);
            answers.push((format!("{call:?}"), answer(&call)));
        }
        answers
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Returns the tree with all times made equal.
fn manifest(root: &Path) -> Manifest {
    let mut open = vec![root.to_path_buf()];
    let zero = rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let zero = Timestamps {
        last_access: zero,
        last_modification: zero,
    };
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            rustix::fs::utimensat(CWD, entry.path(), &zero, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
        }
    }
    Manifest::of(
        root,
        Scope {
            holes: false,
            below_root: true,
        },
    )
}

#[test]
fn concurrent_results_match_the_kernel() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    let folder = tempfile::TempDir::new().unwrap();
    for seed in 1..=3 {
        let (ours, theirs) = (
            folder.path().join("ours.img"),
            folder.path().join("theirs.img"),
        );
        for image in [&ours, &theirs] {
            let _ = std::fs::remove_file(image);
            mke2fs(image, "64M", &[]);
        }
        let mounted = Mounted::new(&theirs, "rw");
        let (root, old) = (mounted.path(), rustix::process::umask(Mode::empty()));
        let expected = run(seed, |call| on_kernel(&root, call));
        rustix::process::umask(old);
        let expected_tree = manifest(&root);
        mounted.unmount();

        // A small cache, so that writeback and reclaim run meanwhile.
        let kernel = Kernel::new(KernelOptions {
            cache_bytes: 2 << 20,
            ..KernelOptions::default()
        });
        let process = kernel.process(Credentials::root());
        process.umask(0);
        process.mkdir("/disk", 0o755).unwrap();
        let device = open(&ours, &OpenOptions::default()).unwrap();
        kernel
            .mount_ext4(device, "/disk", &MountOptions::default())
            .unwrap();
        let answers = run(seed, |call| on_folio(&process, call));
        drop(process);
        kernel.unmount("/disk").unwrap();
        drop(kernel);
        let done = expected
            .iter()
            .flatten()
            .filter(|(_, answer)| answer.is_ok())
            .count();
        assert!(done > THREADS * CALLS / 4, "{done} calls did anything");
        for (thread, (answers, expected)) in answers.iter().zip(&expected).enumerate() {
            for (count, (got, want)) in answers.iter().zip(expected).enumerate() {
                assert_eq!(got, want, "seed {seed}, thread {thread}, call {count}");
            }
        }
        fsck(&ours);
        let mounted = Mounted::new(&ours, "rw");
        expected_tree.assert_same(&manifest(&mounted.path()), &format!("seed {seed}"));
        mounted.unmount();
        fsck(&ours);
    }
}
