//! The files of one mount whose pages are in device memory.

use super::frame_file::FrameFile;
use super::frame_memory::FrameMemory;
use super::frame_slab::FrameSlab;
use crate::base::Limit;
use std::sync::Arc;

/// The files of a mount whose pages are in device memory, for code that runs on the device.
#[derive(Clone)]
pub struct FrameFiles {
    slab: Arc<FrameSlab>,
}

impl FrameFiles {
    pub(super) fn new(slab: Arc<FrameSlab>) -> Self {
        Self { slab }
    }

    /// Creates the data of a regular file.
    pub(super) fn new_file(&self) -> Arc<FrameFile> {
        Arc::new(FrameFile::new(self.slab.clone()))
    }

    /// Returns whether the data is of a file of this mount.
    pub(super) fn has(&self, file: &FrameFile) -> bool {
        file.is_in(&self.slab)
    }

    /// Returns the limit of the mount, in pages.
    pub(super) fn limit(&self) -> &Limit {
        &self.slab.limit
    }

    /// Returns the memory that the frames are in.
    pub fn memory(&self) -> &Arc<dyn FrameMemory> {
        &self.slab.memory
    }

    /// Returns the size of a page in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.slab.page_bytes()
    }
}
