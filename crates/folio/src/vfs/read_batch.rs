//! Many reads of one open file in one call, each of which prefetches for the next. Linux has no
//! such call: preadv2(2) has many buffers but one offset. Its shape is that of recvmmsg(2).

use super::file::{OFFSET_MAX, OpenFile};
use crate::base::rcu::Pin;
use crate::cache::PINNED_MAX;

/// One read of a batch. Linux: `struct mmsghdr` is its like for sockets.
#[derive(Debug)]
pub struct ReadAt<'a> {
    /// Byte offset in the file.
    pub offset: u64,
    /// Receives the bytes.
    pub buf: &'a mut [u8],
    /// The number of bytes read, set by the call; 0 at the end of the file.
    pub len: usize,
}

impl<'a> ReadAt<'a> {
    /// Creates a read of bytes from `offset` on into `buf`.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self {
            offset,
            buf,
            len: 0,
        }
    }
}

impl OpenFile {
    /// Makes reads in order, as long as all their bytes are in memory; returns the number of reads
    /// made. Stops early after [`PINNED_MAX`] bytes.
    pub(crate) fn read_batch_nowait(&self, reads: &mut [ReadAt<'_>], pin: &Pin) -> usize {
        let Some(mapping) = self.readable_mapping_nowait() else {
            return 0;
        };
        let validity = self.common().validity.as_ref();
        if validity.is_some_and(|validity| !validity.is_data_valid()) {
            return 0;
        }
        let mut copied = 0;
        for at in 0..reads.len() {
            let (current, later) = reads[at..].split_at_mut(1);
            let read = &mut current[0];
            if let Some(next) = later.first() {
                mapping.prefetch(next.offset, next.buf.len(), pin);
            }
            copied += read.buf.len();
            if read.offset > OFFSET_MAX || copied > PINNED_MAX {
                return at;
            }
            match mapping.read_cached(read.offset, read.buf, pin) {
                Some(len) => read.len = len,
                None => return at,
            }
        }
        reads.len()
    }
}
