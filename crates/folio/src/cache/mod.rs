//! What memory holds: the page cache.
//!
//! ```text
//!   vfs (file data)     fs (metadata: one mapping per device)
//!        \                 /
//!         Mapping  (inode, index) -> folio          mapping.rs
//!            |  hit: done
//!            |  miss, writeback
//!            v
//!        [store seam: store.rs]  Store              the file system: where a byte lives
//!
//!   PageCache   one budget of memory for all mappings, reclaim        pool.rs reclaim.rs
//!   Writeback   the dirty mappings of one backing device              writeback.rs
//! ```
//!
//! Boundary: pages, dirtiness and the file's size (`i_size`) are the cache's; block mapping, space and
//! attributes are the file system's. The cache knows no file system and no device.

mod mapping;
mod store;
mod writeback;

pub use mapping::{Mapping, Page, PageReadGuard, PageWriteGuard};
pub use store::Store;
pub use writeback::{CacheOptions, Counters, PageCache, Writeback};
