//! The store trait: the source and target of cached pages.

use crate::base::Result;
use std::io::{IoSlice, IoSliceMut};

/// The storage of a mapping's pages. Linux: `struct address_space_operations`.
///
/// The cache calls it from any thread, also from the writeback thread and from reclaim, with no
/// lock of the mapping but those of the pages concerned. An implementation must not read or write
/// pages of the same mapping.
pub trait Store: Send + Sync {
    /// Fills `bufs` with the file's bytes from byte `offset`. Offset and total length are multiples
    /// of the page size. Holes, and all bytes past the end of the file, read as zeros.
    ///
    /// # Errors
    /// Any; the reader gets the error. Linux: `readahead`, `read_folio`.
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()>;

    /// Writes one contiguous run of dirty pages from byte `offset`. Offset and total length are
    /// multiples of the page size. Bytes past the end of the file are zeros and need not be stored.
    /// The pages do not change meanwhile.
    ///
    /// # Errors
    /// Any; the pages stay dirty, and [`super::Mapping::check_error`] reports the error. Linux:
    /// `writepages`.
    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()>;
}
