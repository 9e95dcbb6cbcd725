//! The files of one mount whose pages are in device memory, by inode number.

use super::frame_file::{FrameFile, FramePages};
use super::frame_memory::FrameMemory;
use super::frame_slab::FrameSlab;
use crate::base::{InodeNumber, Limit};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The files of a mount whose pages are in device memory, for code that runs on the device.
#[derive(Clone)]
pub struct FrameFiles {
    slab: Arc<FrameSlab>,
    files: Arc<Mutex<HashMap<InodeNumber, Weak<FrameFile>>>>,
}

impl FrameFiles {
    pub(super) fn new(slab: Arc<FrameSlab>) -> Self {
        let files = Arc::default();
        Self { slab, files }
    }

    /// Creates the data of the regular file `number`.
    pub(super) fn new_file(&self, number: InodeNumber) -> Arc<FrameFile> {
        let file = Arc::new(FrameFile::new(self.slab.clone()));
        self.files.lock().insert(number, Arc::downgrade(&file));
        file
    }

    /// Removes the regular file `number`, whose inode is dropped.
    pub(super) fn forget(&self, number: InodeNumber) {
        self.files.lock().remove(&number);
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

    /// Returns the pages of the regular file with this inode number; `None` if the mount has no
    /// such file.
    pub fn pages(&self, number: InodeNumber) -> Option<FramePages> {
        let file = self.files.lock().get(&number)?.upgrade()?;
        Some(file.pages())
    }
}
