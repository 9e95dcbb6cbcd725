//! Limits of the tables in memory, and the preconditions of a write.

use super::device::Qcow2Device;
use super::lazy::RefcountWrites;
use crate::base::sync::atomic::Ordering;
use crate::base::{Errno, Result};

impl Qcow2Device {
    /// Checks the preconditions of a write before its first change: the image is writable, the
    /// range is inside the disk, and the header's autoclear features no longer promise an unchanged
    /// disk.
    ///
    /// # Errors
    ///
    /// EROFS, or EIO for a range that leaves the disk.
    pub(super) fn begin_write(&self, offset: u64, len_bytes: u64) -> Result<()> {
        if self.file.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        self.check(offset, len_bytes)?;
        if self.autoclear.is_due() {
            let _one_at_a_time = self.flushing.lock();
            self.autoclear.apply(&*self.file)?;
        }
        Ok(())
    }

    /// Evicts clean tables from memory until the limits hold; writes dirty ones back first if it
    /// must.
    pub(super) fn make_room(&self) -> Result<()> {
        if !self.published.is_crowded.load(Ordering::Acquire) {
            return Ok(());
        }
        let fits = {
            let mut metadata = self.metadata.lock();
            metadata.shrink()
        };
        if fits || self.file.is_read_only() {
            return Ok(());
        }
        // The rest is dirty: write-back makes it clean.
        self.write_back(RefcountWrites::Now)?;
        self.metadata.lock().shrink();
        Ok(())
    }
}
