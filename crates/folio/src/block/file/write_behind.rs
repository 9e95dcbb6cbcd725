//! Write-behind: what is written in one stretch goes to the disk while the next is still being
//! copied, so that the flush in the end has little to wait for. Else the host would begin no
//! earlier than a tenth of its memory is dirty.
//!
//! Only streams of large writes take part: blocks that are written again and again shall reach the
//! disk once.

use nix::libc;
use parking_lot::Mutex;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Bytes after which the host is told to begin: enough for long extents and requests, little to
/// wait for in the end.
const STRETCH_BYTES: u64 = 8 << 20;
/// Shorter writes are no stream.
const WRITE_BYTES_MIN: u64 = 64 << 10;
/// A stretch may have gaps, for several writers and what lies between, up to this multiple of its
/// bytes.
const SPREAD_MAX: u64 = 2;

/// What was written and not yet given to the disk.
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
    /// `range` of `file` was written to the host's memory.
    pub(crate) fn wrote(&self, file: &File, range: Range<u64>) {
        if range.end - range.start < WRITE_BYTES_MIN {
            return;
        }
        let full = self.stretch.lock().add(range);
        if let Some(range) = full {
            begin(file, range);
        }
    }
}

impl Stretch {
    /// Adds a write; what the disk is to be given, if that is enough by now.
    fn add(&mut self, range: Range<u64>) -> Option<Range<u64>> {
        self.bytes += range.end - range.start;
        self.range = match self.range.is_empty() {
            true => range,
            false => self.range.start.min(range.start)..self.range.end.max(range.end),
        };
        if self.bytes < STRETCH_BYTES {
            return None;
        }
        let Self { range, bytes } = std::mem::take(self);
        (range.end - range.start <= bytes * SPREAD_MAX).then_some(range)
    }
}

/// Has the host begin to write a range of a file, without waiting: sync_file_range(2).
#[allow(unsafe_code)]
fn begin(file: &File, range: Range<u64>) {
    let (Ok(start), Ok(len)) = (
        libc::off64_t::try_from(range.start),
        libc::off64_t::try_from(range.end - range.start),
    ) else {
        return;
    };
    // SAFETY: numbers alone, and a descriptor that is open as long as `file` is borrowed.
    let begun =
        unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE) };
    // Advice: where the host does not take it, the flush does all the work. Errors of the disk are
    // the flush's to tell.
    if begun != 0 {
        tracing::trace!(error = %std::io::Error::last_os_error(), "sync_file_range");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn begun(writes: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
        let mut stretch = Stretch::default();
        writes
            .into_iter()
            .filter_map(|range| stretch.add(range))
            .collect()
    }

    #[test]
    fn a_stream_is_given_to_the_disk_stretch_by_stretch() {
        let stream = (0..20).map(|at| at * MIB..(at + 1) * MIB);
        assert_eq!(begun(stream), [0..8 * MIB, 8 * MIB..16 * MIB]);
        // Two that take turns, and one that leaves out what is not there.
        let order = [1, 0, 3, 2, 5, 4, 7, 6];
        assert_eq!(
            begun(order.map(|at| at * MIB..(at + 1) * MIB)).first(),
            Some(&(0..8 * MIB))
        );
        let gaps = (0..16).map(|at| at * MIB..at * MIB + MIB / 2);
        assert_eq!(begun(gaps).len(), 1);
    }

    #[test]
    fn what_is_scattered_is_left_to_the_flush() {
        let scattered = (0..64).map(|at| at * 100 * MIB..at * 100 * MIB + MIB);
        assert!(begun(scattered).is_empty());
    }
}
