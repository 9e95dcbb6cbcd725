//! Autoclear features: header bits about other data that a change of the disk makes untrue. They
//! are cleared before the disk first changes.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("autoclear_features").

use crate::base::Result;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::bitmaps;
use crate::block::qcow2::layout::header::Header;
use crate::block::qcow2::layout::raw_header::AUTOCLEAR_FIELD;
use std::io::IoSlice;

/// The autoclear features, before and after the first change of the disk.
pub(crate) struct Autoclear {
    /// The features that stay set.
    kept: u64,
    has_unknown: bool,
    is_due: AtomicBool,
}

impl Autoclear {
    /// Takes the features from a header.
    pub(crate) fn new(header: &Header) -> Self {
        let kept = header.kept_autoclear;
        Self {
            kept,
            has_unknown: header.autoclear != kept,
            is_due: AtomicBool::new(header.autoclear != 0),
        }
    }

    /// Whether [`Autoclear::apply`] must run before the disk changes.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    /// Durably clears unknown features, and marks bitmaps as in-use.
    pub(crate) fn apply(&self, file: &dyn ImageFile) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        bitmaps::mark_in_use(file)?;
        if self.has_unknown {
            file.write(&[IoSlice::new(&self.kept.to_be_bytes())], AUTOCLEAR_FIELD)?;
            file.sync_data()?;
        }
        // Only once it is durable: a writer that sees false changes the disk at once.
        self.is_due.store(false, Ordering::Release);
        Ok(())
    }
}
