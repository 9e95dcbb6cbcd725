//! Reserves space of the host ahead of the file's end, so that new clusters get few, long extents.
//!
//! Without it the host allocates each new cluster separately at writeback: 50,000 clusters with one
//! written page each cost 50,000 allocations while the flush waits.

use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::{Errno, Result};
use crate::block::file::ImageFile;

/// Least and largest reservation, in bytes.
const STEP_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=64 << 20;

/// The end of the reserved space.
pub(crate) struct SpaceReserve {
    /// Up to this offset nothing needs to be reserved.
    end: AtomicU64,
    /// Held by the thread that reserves; other threads continue, and the host allocates as without
    /// a reservation.
    working: Mutex<()>,
    is_possible: AtomicBool,
}

impl SpaceReserve {
    /// Returns the state for a file of `len_bytes` bytes.
    pub(crate) fn new(len_bytes: u64) -> Self {
        Self {
            end: AtomicU64::new(len_bytes),
            working: Mutex::new(()),
            is_possible: AtomicBool::new(true),
        }
    }

    /// Whether space is reserved.
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_possible.load(Ordering::Relaxed)
    }

    /// Turns reservations off.
    pub(crate) fn disable(&self) {
        self.is_possible.store(false, Ordering::Relaxed);
    }

    /// Reserves space for clusters up to `end`, which are about to be written, and for a quarter of
    /// the file more.
    pub(crate) fn extend_to(&self, file: &dyn ImageFile, end: u64) -> Result<()> {
        if end <= self.end.load(Ordering::Relaxed) || !self.is_possible.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(_working) = self.working.try_lock() else {
            return Ok(());
        };
        let start = self.end.load(Ordering::Relaxed);
        let step = (end / 4).clamp(*STEP_BYTES.start(), *STEP_BYTES.end());
        let new_end = end.saturating_add(step);
        if !file.gains_from_reserve() {
            self.disable();
            return Ok(());
        }
        match file.reserve(start, new_end.saturating_sub(start)) {
            Ok(true) => self.end.store(new_end, Ordering::Relaxed),
            // The host is full or cannot reserve: the write itself fails if there is no space for
            // it.
            Ok(false) => self.is_possible.store(false, Ordering::Relaxed),
            Err(error) if matches!(error.errno(), Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                self.is_possible.store(false, Ordering::Relaxed);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Releases the space behind the end of the file, while no write is in flight.
    pub(crate) fn give_back(&self, file: &dyn ImageFile) -> Result<()> {
        let len_bytes = file.len_bytes()?;
        if self.end.swap(len_bytes, Ordering::Relaxed) > len_bytes && !file.is_read_only() {
            // ext4 punches no holes behind the end. A truncate to the same size does release them.
            file.set_len(len_bytes)?;
        }
        Ok(())
    }
}
