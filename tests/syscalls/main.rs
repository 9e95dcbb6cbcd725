//! System calls, topic by topic, on a fresh ramfs. Expectations were checked on a Linux 6.18 tmpfs.

mod advice;
mod allocations;
mod attributes;
mod directory_ops;
mod files;
mod flock;
#[expect(
    clippy::duplicate_mod,
    reason = "the same tests on another file system"
)]
mod gpufs;
mod host_names;
mod journal;
mod mount_options;
mod paths;
mod processes;
mod record_locks;
mod speed;
mod stress;
#[path = "../support/mod.rs"]
mod support;
mod vectored;
mod writeback;
mod xattrs;

use folio::base::{Clock, Timespec};
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::{Kernel, KernelOptions, Process};
use std::sync::Arc;

/// Checks that calls fail, each with its errno.
#[macro_export]
macro_rules! fails {
    ($($call:expr => $errno:ident),* $(,)?) => {
        $(
            assert_eq!(
                $call.map(|_| ()).map_err(|error| error.errno()),
                Err(folio::Errno::$errno),
                stringify!($call)
            );
        )*
    };
}

/// Returns a kernel with a fixed clock, and a superuser process with umask 0.
fn world() -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 64 << 20,
        background_writeback: false,
        clock: Clock::Fixed(Timespec::new(1000, 5)),
        ..KernelOptions::default()
    });
    let root = kernel.process(Credentials::root());
    root.umask(0);
    (kernel, root)
}

/// Returns a kernel with the host's clock, and a superuser process with umask 0.
fn ticking_world() -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions {
        background_writeback: false,
        ..KernelOptions::default()
    });
    let root = kernel.process(Credentials::root());
    root.umask(0);
    (kernel, root)
}

/// Waits until the clock advances: inodes get the time of the host's last timer tick.
fn tick(process: &Process) {
    let before = process.now();
    while process.now() == before {
        std::thread::yield_now();
    }
}

/// Returns a process of an ordinary user, with umask 0.
fn user(kernel: &Arc<Kernel>, uid: u32, gid: u32, groups: &[u32]) -> Process {
    let process = kernel.process(Credentials::user(uid, gid, groups.to_vec()));
    process.umask(0);
    process
}

const CREATE: OpenFlags = OpenFlags::CREAT.union(OpenFlags::RDWR);
const READ: OpenFlags = OpenFlags::empty();

/// Creates an empty file.
fn touch(process: &Process, path: &str, mode: u16) {
    let fd = process.open(path, CREATE | OpenFlags::EXCL, mode).unwrap();
    process.close(fd).unwrap();
}

/// Creates or replaces a file with these bytes.
fn write(process: &Process, path: &str, bytes: &[u8]) {
    let fd = process
        .open(path, CREATE | OpenFlags::TRUNC, 0o644)
        .unwrap();
    assert_eq!(process.write(fd, bytes).unwrap(), bytes.len());
    process.close(fd).unwrap();
}

/// Returns the contents of a file.
fn read(process: &Process, path: &str) -> Vec<u8> {
    let fd = process.open(path, READ, 0).unwrap();
    let bytes = read_fd(process, fd);
    process.close(fd).unwrap();
    bytes
}

fn read_fd(process: &Process, fd: Fd) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buf = [0; 1000];
    loop {
        match process.read(fd, &mut buf).unwrap() {
            0 => return bytes,
            count => bytes.extend_from_slice(&buf[..count]),
        }
    }
}

/// Returns the names in a directory, sorted, without `.` and `..`.
fn list(process: &Process, path: &str) -> Vec<String> {
    let fd = process.open(path, OpenFlags::DIRECTORY, 0).unwrap();
    let mut names = Vec::new();
    loop {
        let entries = process.getdents(fd, 3).unwrap();
        if entries.is_empty() {
            break;
        }
        names.extend(
            entries
                .into_iter()
                .map(|entry| String::from_utf8(entry.name).unwrap()),
        );
    }
    process.close(fd).unwrap();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

fn mode(process: &Process, path: &str) -> u16 {
    process.lstat(path).unwrap().mode
}
