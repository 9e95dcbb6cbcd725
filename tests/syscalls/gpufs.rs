//! The topics that concern files and names, on a ramfs whose pages are in frame memory.

pub(crate) use super::{CREATE, READ, fails, list, mode, read, read_fd, tick, touch, user, write};
use folio::base::{Clock, Timespec};
use folio::fs::ramfs::HostFrames;
use folio::syscall::Credentials;
use folio::vfs::MountOptions;
use folio::{Kernel, Process};
use std::sync::Arc;

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
