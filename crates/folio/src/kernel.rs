//! The composition root: the only file that names concrete file systems and devices.

use crate::base::{Clock, Result};
use crate::block::Device;
use crate::cache::Counters;
use crate::syscall::{Credentials, Process};
use crate::vfs::MountOptions;
use std::path::Path;
use std::sync::Arc;

pub use crate::fs::ext4::mkfs::{FormatOptions, FormatReport, format as format_ext4};

/// Limits and sources of a [`Kernel`].
#[derive(Debug, Clone)]
pub struct KernelOptions {
    /// Memory for the page cache, in bytes.
    pub cache_bytes: u64,
    /// Whether dirty pages are written by threads of their own.
    pub background_writeback: bool,
    /// Where timestamps come from.
    pub clock: Clock,
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self { cache_bytes: 256 << 20, background_writeback: true, clock: Clock::System }
    }
}

/// Mounts and caches: what all processes share. Starts with an empty ramfs as `/`.
pub struct Kernel {}

#[allow(unused_variables)]
impl Kernel {
    /// A kernel with an empty ramfs as its root.
    pub fn new(options: KernelOptions) -> Arc<Self> {
        todo!()
    }

    /// A new program, whose root and working directory are `/`.
    pub fn process(self: &Arc<Self>, credentials: Credentials) -> Process {
        Process::new(self.clone(), credentials)
    }

    /// Mounts the ext4 file system on `device` over the directory `target`.
    pub fn mount_ext4(
        self: &Arc<Self>,
        device: Arc<dyn Device>,
        target: impl AsRef<Path>,
        options: &MountOptions,
    ) -> Result<()> {
        todo!()
    }

    /// Mounts a new, empty ramfs over the directory `target`.
    pub fn mount_ramfs(self: &Arc<Self>, target: impl AsRef<Path>, options: &MountOptions) -> Result<()> {
        todo!()
    }

    /// Syncs and detaches what is mounted at `target`; EBUSY while files below it are open.
    pub fn unmount(&self, target: impl AsRef<Path>) -> Result<()> {
        todo!()
    }

    /// What the page cache has done so far.
    pub fn counters(&self) -> Counters {
        todo!()
    }
}
