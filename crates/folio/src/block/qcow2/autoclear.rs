//! Autoclear features: what an image's header says about other data, made true before the disk
//! first changes.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("autoclear_features").

use super::super::image_file::ImageFile;
use super::bitmaps;
use super::header::{AUTOCLEAR_FIELD, Header};
use crate::base::Result;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};

/// The features, until the first change of the disk and after it.
pub(super) struct Autoclear {
    /// Those that stay.
    kept: u64,
    has_unknown: bool,
    is_due: AtomicBool,
}

impl Autoclear {
    /// As a header has them.
    pub(super) fn new(header: &Header) -> Self {
        let kept = header.kept_autoclear;
        Self {
            kept,
            has_unknown: header.autoclear != kept,
            is_due: AtomicBool::new(header.autoclear != 0),
        }
    }

    /// Whether [`Autoclear::tell`] has to be called before the disk changes.
    pub(super) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    /// Clears what nobody here knows and marks what nobody here keeps up, durably.
    pub(super) fn tell(&self, file: &dyn ImageFile) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        bitmaps::mark_in_use(file)?;
        if self.has_unknown {
            file.write(&[IoSlice::new(&self.kept.to_be_bytes())], AUTOCLEAR_FIELD)?;
            file.sync_data()?;
        }
        self.is_due.store(false, Ordering::Release);
        Ok(())
    }
}
