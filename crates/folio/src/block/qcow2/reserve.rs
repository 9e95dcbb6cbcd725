//! Space of the host reserved ahead of the file's end, so that new clusters lie in few, long
//! extents.
//!
//! Without it the host finds a place for each new cluster on its own when it writes it out; 50,000
//! clusters that hold one written page each are then 50,000 decisions under the flush that waits
//! for them.

use super::super::image_file::ImageFile;
use crate::base::{Errno, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Least and most that is reserved at once.
const STEP_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=64 << 20;

/// How far the file's space reaches.
pub(super) struct Reserve {
    /// Up to here nothing has to be reserved.
    end: AtomicU64,
    /// One reserves, the others go on: what they write finds its place as it would have without.
    working: Mutex<()>,
    is_possible: AtomicBool,
}

impl Reserve {
    /// For a file of `len_bytes`.
    pub(super) fn new(len_bytes: u64) -> Self {
        Self {
            end: AtomicU64::new(len_bytes),
            working: Mutex::new(()),
            is_possible: AtomicBool::new(true),
        }
    }

    /// Reserves nothing from now on.
    pub(super) fn disable(&self) {
        self.is_possible.store(false, Ordering::Relaxed);
    }

    /// Clusters up to `end` are about to be written: reserves space for them and for more, a
    /// quarter of the file.
    pub(super) fn extend_to(&self, file: &dyn ImageFile, end: u64) -> Result<()> {
        if end <= self.end.load(Ordering::Relaxed) || !self.is_possible.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(_working) = self.working.try_lock() else {
            return Ok(());
        };
        let start = self.end.load(Ordering::Relaxed);
        let step = (end / 4).clamp(*STEP_BYTES.start(), *STEP_BYTES.end());
        let new_end = end.saturating_add(step);
        match file.reserve(start, new_end.saturating_sub(start)) {
            Ok(true) => self.end.store(new_end, Ordering::Relaxed),
            // Full, or no such thing: the write itself will tell if there is no room even for it.
            Ok(false) => self.is_possible.store(false, Ordering::Relaxed),
            Err(error) if matches!(error.errno(), Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                self.is_possible.store(false, Ordering::Relaxed);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives back what lies behind the end of the file, which nobody is writing.
    pub(super) fn give_back(&self, file: &dyn ImageFile) -> Result<()> {
        let len_bytes = file.len_bytes()?;
        if self.end.swap(len_bytes, Ordering::Relaxed) > len_bytes && !file.is_read_only() {
            // ext4 punches no holes behind the end, but cuts off what is there, also when the end
            // stays where it is.
            file.set_len(len_bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Device, Qcow2Device};
    use super::super::CreateOptions;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn no_space_stays_behind_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let device = Qcow2Device::create(&path, 1 << 30, &CreateOptions::default()).unwrap();
        for cluster in 0..100 {
            device.write_at(&[1; 10], cluster << 20).unwrap();
        }
        device.flush().unwrap();
        drop(device);
        let found = std::fs::metadata(&path).unwrap();
        assert!(
            found.blocks() * 512 <= found.len().next_multiple_of(1 << 16),
            "{found:?}"
        );
    }
}
