//! What memory holds: the page cache.
//!
//! ```text
//!   vfs (file data)     fs (metadata: one mapping per device)
//!        \                 /
//!         Mapping  (inode, index) -> folio              mapping.rs folio.rs
//!            |  hit: done
//!            |  miss (readahead.rs), writeback (writeback.rs)
//!            v
//!        [store seam: store.rs]  Store                  the file system: where a byte lives
//!
//!   PageCache   one budget of memory, reclaim           reclaim.rs pool.rs
//!   Writeback   the dirty mappings of one device, and the thread that writes them
//! ```
//!
//! Boundary: pages, dirtiness and the file's size (`i_size`) are the cache's; block mapping, space and
//! attributes are the file system's. The cache knows no file system and no device.
//!
//! Lock order: a folio's bytes, then its mapping's table, then the list of dirty mappings or of reclaim
//! candidates. Reclaim goes against that order and therefore only tries locks.
//!
//! | who | against whom | what orders them |
//! |---|---|---|
//! | read | fill of the same folio | the folio is in the table before it is filled, its bytes locked |
//! | read, write | writeback | writeback holds the bytes shared: readers pass, writers wait |
//! | fill, writeback | truncate, punch | they take folios out of the table first, then wait for the bytes |
//! | writeback | truncate | writeback looks again, bytes locked, whether the folio is still in the table |
//! | reclaim | everyone | only clean folios that nobody holds, checked with the table locked |
//!
//! Invariants:
//! 1. A dirty folio is in its mapping's dirty set, and its mapping in its device's list.
//! 2. A mapping with dirty folios holds its store, so that the way to the device exists.
//! 3. Bytes past the end of the file in the last folio are zeros.
//! 4. Nobody waits for writeback while holding a folio's bytes or a table; metadata pages never wait at all.

mod borrow;
mod copy;
mod counters;
mod fill;
mod flush;
mod folio;
mod index;
mod locked;
mod mapping;
#[cfg(all(test, folio_model_check))]
mod model_check;
mod policy;
mod pool;
mod readahead;
mod readahead_thread;
mod reclaim;
mod shrink;
mod store;
#[cfg(test)]
mod tests;
mod write;
mod writeback;

pub use borrow::{Borrowed, BorrowedRead, Source};
pub use counters::Counters;
pub use folio::Page;
pub use locked::{PageReadGuard, PageWriteGuard};
pub use mapping::Mapping;
pub use readahead::ReadPattern;
pub use reclaim::{CacheOptions, PageCache};
pub use store::Store;
pub use writeback::Writeback;
