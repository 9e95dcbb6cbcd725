//! A buffer that begins at a page boundary.

use super::PAGE_SIZE;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes that begin at a page boundary, for reads and writes of a host's file or of a page cache.
///
/// Large allocations of the C library begin 16 bytes after a page boundary. A copy from the start
/// of a page to such an address is slow on processors that take it for an overlap, because the low
/// 12 bits of both addresses are nearly the same: AMD EPYC (Zen 3), Linux 6.18, read(2) of cached
/// pages with 2.2 GB/s instead of 7.5. O_DIRECT (open(2)) asks for aligned memory too.
///
/// ```
/// let mut buffer = folio::AlignedBuffer::new(1 << 20);
/// buffer[..5].copy_from_slice(b"folio");
/// assert_eq!((buffer.len(), buffer.as_ptr().align_offset(4096)), (1 << 20, 0));
/// ```
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len_bytes: usize,
}

impl AlignedBuffer {
    /// Allocates `len_bytes` zeros.
    pub fn new(len_bytes: usize) -> Self {
        let bytes = vec![0_u8; len_bytes + PAGE_SIZE - 1];
        // Only the compile-time interpreter may return more, and then no address is aligned.
        let start = bytes.as_ptr().align_offset(PAGE_SIZE).min(PAGE_SIZE - 1);
        Self {
            bytes,
            start,
            len_bytes,
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len_bytes]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len_bytes]
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer")
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_buffer_begins_at_a_page() {
        for len_bytes in [0, 1, 4095, 4096, 1 << 20] {
            let buffer = AlignedBuffer::new(len_bytes);
            assert_eq!(buffer.as_ptr() as usize % PAGE_SIZE, 0, "{len_bytes}");
            assert!(buffer.len() == len_bytes && buffer.iter().all(|byte| *byte == 0));
        }
    }
}
