//! The store seam: where the cache gets pages from and brings them to.

use crate::base::Result;
use std::io::{IoSlice, IoSliceMut};

/// What lies behind a mapping. Linux: `struct address_space_operations`.
///
/// Called without any lock of the mapping held except on the pages named, from any thread, also
/// from the writeback thread and from memory reclaim. An implementation must not read or write the
/// same mapping's pages.
pub trait Store: Send + Sync {
    /// Fills `bufs` with the file's bytes from `offset`. Offset and total length are multiples of
    /// the page size. Holes and everything past the end of the file read as zeros.
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()>;

    /// Writes one contiguous run of dirty pages from `offset`. Offset and total length are
    /// multiples of the page size; bytes past the end of the file are zeros and need not be stored.
    /// The pages are stable meanwhile.
    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()>;
}
