//! What memory holds: the page cache. A page that is here is read with one copy and no lock.
//!
//! ```text
//!   vfs (file data)          fs (metadata: one mapping per device)
//!        \                      /
//!         Mapping  (file, index) -> page                  mapping.rs
//!            |  which frame            index.rs             words that readers walk without a lock
//!            |  handles, locked bytes  folio.rs locked.rs   copies: copy.rs
//!            |  read in place, write    borrow.rs write.rs
//!            |  miss                   fill.rs readahead.rs readahead_thread.rs
//!            |  dirty                  flush.rs (one file) writeback.rs (one device)
//!            |  truncate, punch, evict shrink.rs
//!            v
//!        [store seam: store.rs]  Store                    the file system: where a byte lives
//!
//!   PageCache   one budget: frames, grace periods         pool.rs
//!               which page goes, and its going            policy.rs reclaim.rs
//!               what was done so far                      counters.rs
//! ```
//!
//! Boundary: pages, dirtiness and the file's size (`i_size`) are the cache's; block mapping, space
//! and attributes are the file system's. The cache knows no file system and no device; below it are
//! `base` and the host's memory alone. Why it is so: docs/design/page-cache.md.
//!
//! Lock order: a page's bytes, then its mapping's table, then one of: the list of dirty mappings,
//! the pool's free list, reclaim's queues. A second page's bytes are only tried, but a borrower
//! locks its pages shared, in order, and frames that nobody else knows may be locked together.
//! Reclaim goes against that order and only tries. Tidying the list of dirty mappings goes against
//! it, too, but locks tables of listed mappings only, and whoever locks the list holds the table of
//! an unlisted one. A pin (`base::rcu`) is no lock, but nobody waits for bytes while pinned.
//!
//! | who | against whom | what orders them |
//! |---|---|---|
//! | read | evict, truncate | the pin: a frame that was found is not recycled before the pin ends (C4) |
//! | read | write | nothing: each byte is an old or a new one, as in Linux |
//! | read | fill of the same page | BUSY: the page is in the index, bytes locked, before it is filled; who waits looks again |
//! | write | evict, truncate | whoever has locked the bytes looks whether the page is still at its index |
//! | read, write | writeback | writeback has the bytes shared: readers pass, writers wait |
//! | fill | truncate, punch | they take the page out; the fill finds it gone and drops its frame |
//! | writeback | truncate, punch | they take pages out, then wait for the bytes; writeback looks again, bytes locked |
//! | write | truncate, punch, write | the inode lock, which the caller holds |
//! | fill | holes made in the block map | the file system: it drops pages after the map changed, before blocks are used again |
//! | evict | holders | only clean pages that nobody but the index counts; bytes and table are tried |
//! | swap | holders, truncate, write | bytes locked while written; the count frozen; read back as a fill (swap.rs) |
//!
//! Invariants:
//! - C1: a dirty page is counted by its mapping, and its mapping is in its device's list.
//! - C2: a mapping with dirty pages holds its store, so that the way to the device exists.
//! - C3: bytes past the end of the file in the last page are zeros when the file grows over them.
//! - C4: a frame is recycled only after a grace period that began when no word named it and nobody
//!   counted it.
//! - C5: a word without BUSY names a page whose bytes are complete.
//! - C6: the word of a block is set only while its sixteen pages are present, up to date, and in
//!   one group.
//! - C7: a page with a handle is not evicted: it leaves the index by truncation or punching alone.
//! - C8: DIRTY is cleared by who has the bytes locked and writes them, or who takes the page out; a
//!   failed write sets it again.
//! - C9: nobody waits for a grace period while pinned or with a table locked.
//! - C10: nobody waits for writeback to make room while holding a page's bytes or a table; metadata
//!   pages never do.
//! - C11: new pages without a store never take the cache above its budget; others only while they
//!   are in use.

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
mod swap;
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
pub use swap::Swap;
pub use writeback::Writeback;
