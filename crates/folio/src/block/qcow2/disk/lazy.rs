//! The dirty bit in the header, set from the first change of a table until the image is closed.
//!
//! A program that is killed between the writes of refcounts and tables leaks clusters. The next
//! program that opens a dirty image for writing corrects its refcounts, Folio and QEMU alike. With
//! lazy refcounts a flush does not write them at all, so that the bit must be durable before.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Lazy refcounts bit", "Dirty bit").

use crate::base::Result;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::features::DIRTY;
use crate::block::qcow2::layout::header::Header;
use crate::block::qcow2::layout::raw_header::INCOMPATIBLE_FIELD;
use std::io::IoSlice;

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
    /// Version 2 has no such bit.
    exists: bool,
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
            exists: header.version >= 3,
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

    /// Sets the bit before a table changes. Without lazy refcounts it is durable with the next
    /// sync. A power cut before that leaks clusters at worst.
    pub(crate) fn set(&self, file: &dyn ImageFile) -> Result<()> {
        if self.is_set() || !self.exists {
            return Ok(());
        }
        self.write(file, self.features | DIRTY)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    /// Clears the bit, once all refcounts are written.
    pub(crate) fn clear(&self, file: &dyn ImageFile) -> Result<()> {
        if !self.is_set() {
            return Ok(());
        }
        if self.is_lazy {
            // The last refcounts must be durable before the bit says so.
            file.sync_data()?;
        }
        self.write(file, self.features)?;
        self.is_set.store(false, Ordering::Release);
        Ok(())
    }

    fn write(&self, file: &dyn ImageFile, features: u64) -> Result<()> {
        file.write(&[IoSlice::new(&features.to_be_bytes())], INCOMPATIBLE_FIELD)?;
        if self.is_lazy {
            file.sync_data()?;
        }
        Ok(())
    }
}
