//! The topics that concern files and names, on a ramfs whose pages are in frame memory.

pub(crate) use super::{CREATE, READ, fails, list, mode, read, read_fd, tick, touch, user, write};
use folio::base::{Clock, Timespec};
use folio::ramfs::{FrameMemory, FrameRead, FrameWrite, HostFrames};
use folio::syscall::{Credentials, OpenFlags, Whence};
use folio::vfs::{FallocateMode, MountOptions};
use folio::{Errno, Kernel, Process, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[path = "attributes.rs"]
mod attributes;
#[path = "directory_ops.rs"]
mod directory_ops;
#[path = "files.rs"]
mod files;
#[path = "flock.rs"]
mod flock;
#[path = "vectored.rs"]
mod vectored;
#[path = "xattrs.rs"]
mod xattrs;

/// Mounts a gpufs over `/`; returns the kernel, and a superuser process with umask 0.
fn mounted(kernel: Arc<Kernel>, clock: Clock) -> (Arc<Kernel>, Process) {
    let memory = Arc::new(HostFrames::new(64 << 20));
    let options = MountOptions {
        clock,
        ..MountOptions::parse("size=100%,page=4k").unwrap()
    };
    kernel.mount_gpufs("/", memory, &options).unwrap();
    let root = kernel.process(Credentials::root());
    root.umask(0);
    (kernel, root)
}

fn world() -> (Arc<Kernel>, Process) {
    mounted(super::world().0, Clock::Fixed(Timespec::new(1000, 5)))
}

fn ticking_world() -> (Arc<Kernel>, Process) {
    mounted(super::ticking_world().0, Clock::System)
}

/// Mounts a gpufs of `memory` at `/g`, and returns a superuser process.
fn at_g(memory: Arc<dyn FrameMemory>, words: &str) -> (Arc<Kernel>, Process) {
    let (kernel, p) = super::world();
    p.mkdir("/g", 0o755).unwrap();
    let options = MountOptions::parse(words).unwrap();
    kernel.mount_gpufs("/g", memory, &options).unwrap();
    (kernel, p)
}

fn host_frames() -> Arc<HostFrames> {
    Arc::new(HostFrames::new(64 << 20))
}

#[test]
fn gpufs_limit_of_size_fails_with_enospc() {
    let (_kernel, p) = at_g(host_frames(), "size=64k,page=8k");
    let stat = p.statfs("/g").unwrap();
    assert_eq!(
        (stat.block_size, stat.blocks, stat.blocks_free),
        (8192, 8, 8)
    );
    let fd = p.open("/g/f", CREATE, 0o644).unwrap();
    assert_eq!(p.pwrite(fd, &[1; 100_000], 1000).unwrap(), 64_536);
    fails! {
        p.pwrite(fd, &[1], 65_536) => NOSPC,
        p.fallocate(fd, FallocateMode::Allocate, 0, 70_000) => NOSPC,
    }
    assert_eq!(p.fstat(fd).unwrap().size_bytes, 65_536);
    p.unlink("/g/f").unwrap();
    assert_eq!(p.statfs("/g").unwrap().blocks_free, 0);
    let mut bytes = [9; 2];
    assert_eq!(p.pread(fd, &mut bytes, 999).unwrap(), 2);
    assert_eq!(bytes, [0, 1]);
    p.close(fd).unwrap();
    assert_eq!(p.statfs("/g").unwrap().blocks_free, 8);
}

#[test]
fn gpufs_full_device_fails_with_enospc() {
    let memory = Arc::new(HostFrames::new(3 << 20));
    let (_kernel, p) = at_g(memory.clone(), "size=0");
    let fd = p.open("/g/f", CREATE, 0o644).unwrap();
    // Room for one chunk of 2 MiB, although the limit is higher.
    assert_eq!(p.pwrite(fd, &vec![1; 3 << 20], 0).unwrap(), 2 << 20);
    fails! { p.pwrite(fd, &[1], 2 << 20) => NOSPC }
    p.ftruncate(fd, 1 << 20).unwrap();
    assert_eq!(p.pwrite(fd, &vec![1; 1 << 20], 2 << 20).unwrap(), 1 << 20);
    p.ftruncate(fd, 0).unwrap();
    p.close(fd).unwrap();
    assert_eq!(memory.used_bytes(), 2 << 20);
}

#[test]
fn gpufs_holes_are_whole_pages() {
    let (_kernel, p) = at_g(host_frames(), "");
    let fd = p.open("/g/f", CREATE, 0o644).unwrap();
    p.pwrite(fd, &[1; 10], 100_000).unwrap();
    p.ftruncate(fd, 300_000).unwrap();
    let seek = |offset, whence| p.lseek(fd, offset, whence).unwrap();
    assert_eq!(seek(0, Whence::Data), 65_536);
    assert_eq!(seek(65_536, Whence::Hole), 131_072);
    fails! { p.lseek(fd, 131_072, Whence::Data) => NXIO }
    p.fallocate(fd, FallocateMode::PunchHole, 0, 131_072)
        .unwrap();
    assert_eq!(p.fstat(fd).unwrap().blocks_512, 0);
    let mut bytes = [9; 20];
    assert_eq!(p.pread(fd, &mut bytes, 99_990).unwrap(), 20);
    assert_eq!(bytes, [0; 20]);
}

#[test]
fn gpufs_fiemap_fails_with_eopnotsupp() {
    let (_kernel, p) = at_g(host_frames(), "");
    let fd = p.open("/g/f", CREATE, 0o644).unwrap();
    p.pwrite(fd, &[1; 10], 0).unwrap();
    fails! {
        p.fiemap(fd, 0..u64::MAX, false) => OPNOTSUPP,
        p.fiemap(fd, 0..u64::MAX, true) => OPNOTSUPP,
    }
}

#[test]
fn gpufs_copies_keep_every_byte() {
    let (_kernel, p) = at_g(host_frames(), "page=4k");
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|at| (at / 3) as u8).collect();
    write(&p, "/source", &bytes);
    let source = p.open("/source", READ, 0).unwrap();
    let device = p.open("/g/a", CREATE, 0o644).unwrap();
    assert_eq!(
        p.sendfile(device, source, None, 4 << 20).unwrap(),
        3_000_001
    );
    let back = p.open("/back", CREATE, 0o644).unwrap();
    assert_eq!(
        p.sendfile(back, device, Some(&mut 0), 4 << 20).unwrap(),
        3_000_001
    );
    assert!(read(&p, "/back") == bytes);
    let copy = p.open("/g/b", CREATE, 0o644).unwrap();
    let from = Some(&mut 7);
    assert_eq!(
        p.copy_file_range(device, from, copy, None, 2_000_000)
            .unwrap(),
        2_000_000
    );
    assert!(read(&p, "/g/b") == bytes[7..2_000_007]);
    fails! { p.copy_file_range(device, None, back, None, 1) => XDEV }
}

/// Frames whose device fails on demand.
struct FailingFrames(HostFrames, AtomicBool);

impl FailingFrames {
    fn check(&self) -> Result<()> {
        if self.1.load(Ordering::Relaxed) {
            return Err(Errno::IO.into());
        }
        Ok(())
    }
}

impl FrameMemory for FailingFrames {
    fn len_bytes(&self) -> Result<u64> {
        self.check()?;
        self.0.len_bytes()
    }

    fn allocate(&self, len_bytes: u64) -> Result<u64> {
        self.0.allocate(len_bytes)
    }

    fn release(&self, address: u64) {
        self.0.release(address);
    }

    fn read(&self, parts: &mut [FrameRead<'_>]) -> Result<()> {
        self.check()?;
        self.0.read(parts)
    }

    fn write(&self, parts: &[FrameWrite<'_>]) -> Result<()> {
        self.check()?;
        self.0.write(parts)
    }

    fn zero(&self, runs: &[(u64, u64)]) -> Result<()> {
        self.check()?;
        self.0.zero(runs)
    }
}

#[test]
fn gpufs_mount_of_a_failing_device_fails_with_eio() {
    let memory = Arc::new(FailingFrames(
        HostFrames::new(64 << 20),
        AtomicBool::new(true),
    ));
    let (kernel, p) = super::world();
    p.mkdir("/g", 0o755).unwrap();
    fails! { kernel.mount_gpufs("/g", memory, &MountOptions::default()) => IO }
}

#[test]
fn hold_needs_an_open_regular_file() {
    let (kernel, p) = at_g(host_frames(), "");
    let folder = p.open("/g", READ, 0).unwrap();
    let file = p.open("/g/f", CREATE, 0o644).unwrap();
    let path = p.open("/g/f", OpenFlags::PATH, 0).unwrap();
    fails! {
        p.hold(folder) => ISDIR,
        p.hold(path) => BADF,
        p.hold(folio::syscall::Fd::from_raw(99)) => BADF,
    }
    let held = p.hold(file).unwrap();
    p.close(file).unwrap();
    p.close(folder).unwrap();
    p.close(path).unwrap();
    fails! { kernel.unmount("/g") => BUSY }
    drop(held);
    kernel.unmount("/g").unwrap();
}

#[test]
fn gpufs_failing_device_fails_calls_with_eio() {
    let memory = Arc::new(FailingFrames(
        HostFrames::new(64 << 20),
        AtomicBool::new(false),
    ));
    let (_kernel, p) = at_g(memory.clone(), "page=4k");
    let fd = p.open("/g/f", CREATE, 0o644).unwrap();
    p.pwrite(fd, &[1; 5000], 0).unwrap();
    memory.1.store(true, Ordering::Relaxed);
    fails! {
        p.pread(fd, &mut [0; 10], 0) => IO,
        p.pwrite(fd, &[2; 10_000], 5000) => IO,
        p.ftruncate(fd, 100) => IO,
        p.fallocate(fd, FallocateMode::Allocate, 0, 50_000) => IO,
    }
    memory.1.store(false, Ordering::Relaxed);
    let stat = p.fstat(fd).unwrap();
    assert_eq!((stat.size_bytes, stat.blocks_512), (5000, 16));
    assert_eq!(read(&p, "/g/f"), [1; 5000]);
    let free = p.statfs("/g").unwrap();
    assert_eq!(free.blocks - free.blocks_free, 2);
}
