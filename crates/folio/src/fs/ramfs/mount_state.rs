//! The state that all inodes of a mount share: limits, clock, inode numbers.

use super::frame_files::FrameFiles;
use crate::base::{Clock, Limit, Result};
use crate::cache::{ObjectMemory, PageCache, Writeback};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state that all inodes of a mount share.
pub(super) struct MountState {
    pub(super) writeback: Arc<Writeback>,
    pub(super) clock: Clock,
    next_number: AtomicU64,
    /// Size of the page cache in bytes; all file systems share it.
    pub(super) cache_bytes: u64,
    pub(super) limits: Limits,
    /// The memory of regular files, if it is not the page cache.
    pub(super) frames: Option<FrameFiles>,
    /// The memory that inodes and names are charged to.
    pub(super) objects: Arc<ObjectMemory>,
}

/// The limits of a mount; a ramfs has none. Only pages that count against a limit may be swapped.
#[derive(Default)]
pub(super) struct Limits {
    pub(super) pages: Option<Arc<Limit>>,
    pub(super) inodes: Option<Limit>,
}

impl Limits {
    pub(super) fn take_pages(&self, count: u64) -> Result<()> {
        self.pages
            .as_ref()
            .map_or(Ok(()), |pages| pages.take(count))
    }

    pub(super) fn release_pages(&self, count: u64) {
        if let Some(pages) = &self.pages {
            pages.give_back(count);
        }
    }

    pub(super) fn take_inode(&self) -> Result<()> {
        self.inodes.as_ref().map_or(Ok(()), |inodes| inodes.take(1))
    }

    pub(super) fn release_inode(&self) {
        if let Some(inodes) = &self.inodes {
            inodes.give_back(1);
        }
    }
}

impl MountState {
    pub(super) fn new(
        cache: &Arc<PageCache>,
        clock: Clock,
        limits: Limits,
        frames: Option<FrameFiles>,
    ) -> Self {
        Self {
            writeback: cache.writeback(),
            clock,
            next_number: AtomicU64::new(1),
            cache_bytes: cache.budget_bytes(),
            limits,
            frames,
            objects: cache.objects().clone(),
        }
    }

    /// Returns a number that no inode of this file system has had.
    pub(super) fn take_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }
}
