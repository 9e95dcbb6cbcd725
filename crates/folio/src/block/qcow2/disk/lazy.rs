//! Lazy refcounts: a flush does not write them, and the dirty bit in the header is set until the
//! image is closed.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Lazy refcounts bit", "Dirty bit").

use crate::base::Result;
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::features::DIRTY;
use crate::block::qcow2::layout::header::Header;
use crate::block::qcow2::layout::raw_header::INCOMPATIBLE_FIELD;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a write-back does with refcounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefcountWrites {
    /// Writes them.
    Now,
    /// Leaves them to the close, and marks the image dirty.
    AtClose,
}

/// The dirty bit: whether the refcounts in the file may be stale.
pub(crate) struct DirtyBit {
    /// The image has the feature.
    is_lazy: bool,
    /// Incompatible features apart from the dirty bit.
    features: u64,
    is_set: AtomicBool,
}

impl DirtyBit {
    /// Takes the bit from a header.
    pub(crate) fn new(header: &Header) -> Self {
        Self {
            is_lazy: header.has_lazy_refcounts,
            features: header.incompatible & !DIRTY,
            is_set: AtomicBool::new(header.is_dirty()),
        }
    }

    /// Returns whether a flush writes refcounts.
    pub(crate) fn at_flush(&self) -> RefcountWrites {
        if self.is_lazy {
            RefcountWrites::AtClose
        } else {
            RefcountWrites::Now
        }
    }

    /// Whether the bit is set in the file.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Sets the bit durably, before the refcounts become stale.
    pub(crate) fn set(&self, file: &dyn ImageFile) -> Result<()> {
        if self.is_set() {
            return Ok(());
        }
        self.write(file, self.features | DIRTY)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    /// Clears the bit, once the refcounts are durable.
    pub(crate) fn clear(&self, file: &dyn ImageFile) -> Result<()> {
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
