//! Lazy refcounts: a flush leaves them in memory, and a bit in the header says so until the image
//! is closed.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Lazy refcounts bit", "Dirty bit").

use super::super::image_file::ImageFile;
use super::flush::RefcountWrites;
use super::header::{DIRTY, Header, INCOMPATIBLE_FIELD};
use crate::base::Result;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the refcounts in the file are right, as the file itself says.
pub(super) struct DirtyBit {
    /// The image asks for lazy refcounts.
    is_lazy: bool,
    /// Incompatible features apart from the dirty bit.
    features: u64,
    is_set: AtomicBool,
}

impl DirtyBit {
    /// The bit as the header has it.
    pub(super) fn new(header: &Header) -> Self {
        Self {
            is_lazy: header.has_lazy_refcounts,
            features: header.incompatible & !DIRTY,
            is_set: AtomicBool::new(header.is_dirty()),
        }
    }

    /// What a flush does about refcounts.
    pub(super) fn at_flush(&self) -> RefcountWrites {
        if self.is_lazy {
            RefcountWrites::AtClose
        } else {
            RefcountWrites::Now
        }
    }

    /// Whether the file says that its refcounts are stale.
    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Says durably that the refcounts are stale, before they are.
    pub(super) fn set(&self, file: &dyn ImageFile) -> Result<()> {
        if self.is_set() {
            return Ok(());
        }
        self.write(file, self.features | DIRTY)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    /// Says that the refcounts in the file are right, once they are durable.
    pub(super) fn clear(&self, file: &dyn ImageFile) -> Result<()> {
        if !self.is_set() {
            return Ok(());
        }
        self.write(file, self.features)?;
        self.is_set.store(false, Ordering::Release);
        Ok(())
    }

    fn write(&self, file: &dyn ImageFile, features: u64) -> Result<()> {
        file.write(&[IoSlice::new(&features.to_be_bytes())], INCOMPATIBLE_FIELD)?;
        file.sync_data()
    }
}
