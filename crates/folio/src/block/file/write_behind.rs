//! Write-behind: starts writeback of one stretch of a stream while the next is copied, so that the
//! final flush waits for little. Otherwise the host starts writeback when a tenth of its memory is
//! dirty.
//!
//! It applies to streams of large writes only: blocks that are overwritten repeatedly should reach
//! the disk once.

use crate::base::lock::Mutex;
use nix::libc;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Bytes after which writeback starts: enough for long extents and requests, little for the final
/// flush.
const STRETCH_BYTES: u64 = 8 << 20;
/// Smallest write, in bytes, that belongs to a stream.
const WRITE_BYTES_MIN: u64 = 64 << 10;
/// A stretch may span this multiple of its bytes, because several writers leave gaps.
const SPREAD_MAX: u64 = 2;

/// The writes whose writeback has not been started.
#[derive(Default)]
pub(crate) struct WriteBehind {
    stretch: Mutex<Stretch>,
}

#[derive(Default)]
struct Stretch {
    range: Range<u64>,
    bytes: u64,
}

impl WriteBehind {
    /// Records that `range` of `file` was written to the host's page cache.
    pub(crate) fn wrote(&self, file: &File, range: Range<u64>) {
        if range.end - range.start < WRITE_BYTES_MIN {
            return;
        }
        let full = self.stretch.lock().add(range);
        if let Some(range) = full {
            start_writeback(file, range);
        }
    }
}

impl Stretch {
    /// Adds a write; returns the range to write back once the stretch is full.
    fn add(&mut self, range: Range<u64>) -> Option<Range<u64>> {
        self.bytes += range.end - range.start;
        self.range = if self.range.is_empty() {
            range
        } else {
            self.range.start.min(range.start)..self.range.end.max(range.end)
        };
        if self.bytes < STRETCH_BYTES {
            return None;
        }
        let Self { range, bytes } = std::mem::take(self);
        (range.end - range.start <= bytes * SPREAD_MAX).then_some(range)
    }
}

/// Starts writeback of a range of a file without waiting. Linux: sync_file_range(2).
#[allow(unsafe_code)]
fn start_writeback(file: &File, range: Range<u64>) {
    let (Ok(start), Ok(len)) = (
        libc::off64_t::try_from(range.start),
        libc::off64_t::try_from(range.end - range.start),
    ) else {
        return;
    };
    // SAFETY: the call takes numbers only, and the descriptor is open while `file` is borrowed.
    let result =
        unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE) };
    // Only advice: if it fails, the flush does all the work, and the flush reports errors of the
    // disk.
    if result != 0 {
        tracing::trace!(error = %std::io::Error::last_os_error(), "sync_file_range");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn started(writes: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
        let mut stretch = Stretch::default();
        writes
            .into_iter()
            .filter_map(|range| stretch.add(range))
            .collect()
    }

    #[test]
    fn stream_is_written_back_by_stretches() {
        let stream = (0..20).map(|at| at * MIB..(at + 1) * MIB);
        assert_eq!(started(stream), [0..8 * MIB, 8 * MIB..16 * MIB]);
        // Two writers that alternate, and a writer that skips holes.
        let order = [1, 0, 3, 2, 5, 4, 7, 6];
        assert_eq!(
            started(order.map(|at| at * MIB..(at + 1) * MIB)).first(),
            Some(&(0..8 * MIB))
        );
        let gaps = (0..16).map(|at| at * MIB..at * MIB + MIB / 2);
        assert_eq!(started(gaps).len(), 1);
    }

    #[test]
    fn scattered_writes_wait_for_the_flush() {
        let scattered = (0..64).map(|at| at * 100 * MIB..at * 100 * MIB + MIB);
        assert!(started(scattered).is_empty());
    }
}
