//! Finds zeros in memory, at the speed of memory reads.

use std::ops::Range;

/// Whether all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // Most data differs from zero in its first bytes. The strides let the compiler use vectors.
    let (strides, rest) = bytes.as_chunks::<256>();
    rest.iter().all(|byte| *byte == 0)
        && strides
            .iter()
            .all(|stride| stride.iter().fold(0, |any, byte| any | byte) == 0)
}

/// Splits a buffer into runs of zeros and runs of data: (is zero, range). A run of zeros has at
/// least `grain` bytes, and starts at a multiple of `grain` on the device.
pub(super) struct ZeroRuns<'a> {
    buf: &'a [u8],
    grain: usize,
    /// Bytes up to the first multiple of the grain.
    head: usize,
    at: usize,
    /// Whether the block at `at` is zero, if it was examined already.
    known: Option<bool>,
}

impl<'a> ZeroRuns<'a> {
    /// Returns the runs of `buf`, whose first byte is at `offset` of the device.
    pub(super) fn new(buf: &'a [u8], offset: u64, grain: usize) -> Self {
        let head = (offset.next_multiple_of(grain as u64) - offset) as usize;
        Self {
            buf,
            grain,
            head: head.min(buf.len()),
            at: 0,
            known: None,
        }
    }

    /// Returns the end of the block that starts at `at`.
    fn block_end(&self, at: usize) -> usize {
        if at < self.head {
            self.head
        } else {
            (at + self.grain).min(self.buf.len())
        }
    }
}

impl Iterator for ZeroRuns<'_> {
    type Item = (bool, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.at;
        if start >= self.buf.len() {
            return None;
        }
        let mut end = self.block_end(start);
        let kind = self
            .known
            .take()
            .unwrap_or_else(|| is_zero(&self.buf[start..end]));
        while end < self.buf.len() {
            let next = self.block_end(end);
            let is_zero = is_zero(&self.buf[end..next]);
            if is_zero != kind {
                self.known = Some(is_zero);
                break;
            }
            end = next;
        }
        self.at = end;
        Some((kind, start..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nonzero_byte_is_not_zero() {
        for len in [0, 1, 255, 256, 4096, 5000] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes));
            for at in [0, len / 2, len.saturating_sub(1)] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = 128;
                    assert!(!is_zero(&bytes));
                    bytes[at] = 0;
                }
            }
        }
    }

    #[test]
    fn runs_cover_the_buffer_and_align_to_grain() {
        let mut bytes = vec![0; 10_000];
        bytes[5000] = 1;
        let runs: Vec<_> = ZeroRuns::new(&bytes, 1000, 1024).collect();
        // The device's multiples of 1024 are at 24, 1048, ... of the buffer.
        assert_eq!(
            runs,
            [(true, 0..4120), (false, 4120..5144), (true, 5144..10_000)]
        );
        bytes.fill(7);
        assert_eq!(
            ZeroRuns::new(&bytes, 0, 512).collect::<Vec<_>>(),
            [(false, 0..10_000)]
        );
    }
}
