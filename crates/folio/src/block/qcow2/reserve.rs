//! Space of the host reserved ahead of the file's end, so that new clusters lie in few, long extents.
//!
//! Without it the host finds a place for each new cluster on its own when it writes it out; 50,000 clusters that hold
//! one written page each are then 50,000 decisions under the flush that waits for them.

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
        Self { end: AtomicU64::new(len_bytes), working: Mutex::new(()), is_possible: AtomicBool::new(true) }
    }

    /// Reserves nothing from now on.
    pub(super) fn disable(&self) {
        self.is_possible.store(false, Ordering::Relaxed);
    }

    /// Clusters up to `end` are about to be written: reserves space for them and for more, a quarter of the file.
    pub(super) fn extend_to(&self, file: &dyn ImageFile, end: u64) -> Result<()> {
        if end <= self.end.load(Ordering::Relaxed) || !self.is_possible.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(_working) = self.working.try_lock() else { return Ok(()) };
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

    /// Gives back what lies behind `end`, where the file ends.
    pub(super) fn give_back(&self, file: &dyn ImageFile, end: u64) -> Result<()> {
        let reserved = self.end.swap(end, Ordering::Relaxed);
        if reserved > end && !file.is_read_only() {
            file.punch_hole(end, reserved - end)?;
        }
        Ok(())
    }
}
