//! The page cache: pages of files in memory. A cached page is read with one copy and no lock.
//!
//! ```text
//!   vfs (file data)          fs (metadata: one mapping per device)
//!        \                      /
//!         Mapping  (file, index) -> page                  mapping.rs read.rs page.rs
//!            |  page -> frame          index.rs             words that readers walk without a lock
//!            |  references, locks      folio_ref.rs locked.rs   copies: copy.rs
//!            |  reads without a copy   borrow.rs            writes: write.rs write_source.rs
//!            |  miss                   fill.rs readahead.rs readahead_threads.rs
//!            |  dirty                  flush.rs (one file) writeback.rs (one device)
//!            |  truncate, punch, evict shrink.rs
//!            v
//!        [store trait: store.rs]  Store                   the file system: location of each byte
//!
//!   PageCache   one budget of memory                      page_cache.rs
//!               frames, grace periods                     pool.rs folio.rs huge_pages.rs
//!               reclaim: allocation, choice of a page     reclaim.rs policy.rs
//!               counters                                  counters.rs
//!               memory of inodes and names                object_memory.rs
//! ```
//!
//! The files from page_cache.rs down, and writeback.rs, see a mapping only as a
//! `page_owner::PageOwner`; owner_glue.rs implements it.
//!
//! Boundary: pages, dirtiness and the file's size (`i_size`) belong to the cache; block mapping,
//! space and attributes to the file system. The cache knows no file system and no device; below it
//! are only `base` and the host's memory. docs/design/page-cache.md gives the reasons. Linux:
//! mm/filemap.c.
//!
//! Lock order: a page's bytes, then its mapping's state, then one of: the list of dirty mappings,
//! the pool's free list, reclaim's queues. A second page's bytes are only tried; but a borrower
//! locks its pages shared, in order, and frames that no other thread can find may be locked
//! together. Reclaim runs against that order and only tries locks. Cleaning the list of dirty
//! mappings runs against it too, but locks states of listed mappings only; a thread that locks the
//! list while it has a state locked has that of an unlisted mapping. A pin (`base::rcu`) is
//! not a lock, but no thread waits for bytes while pinned.
//!
//! | operation | concurrent with | ordered by |
//! |---|---|---|
//! | read | evict, truncate | the pin: a frame that was found is not recycled before the pin ends (C4) |
//! | read | write | nothing: each byte is an old or a new one, as in Linux |
//! | read | fill of the same page | BUSY: the page is in the index, bytes locked, before it is filled; a waiter looks again |
//! | write | evict, truncate | after locking the bytes, the writer checks that the page is still at its index |
//! | read, write | writeback | writeback has the bytes shared: readers continue, writers wait |
//! | fill | truncate, punch | they remove the page; the fill finds it removed and drops its frame |
//! | writeback | truncate, punch | they remove pages, then wait for the bytes; writeback checks again, bytes locked |
//! | write | truncate, punch, write | the inode lock, which the caller holds |
//! | fill | holes made in the block map | the file system: it drops pages after the map changed, before blocks are reused |
//! | evict | page handles | only clean pages with no reference but the index's; bytes and state are tried |
//!
//! Invariants:
//! - C1: a dirty page is counted by its mapping, and its mapping is in its device's list.
//! - C2: a mapping with dirty pages holds its store, so that the pages can be written.
//! - C3: bytes past the end of the file in the last page are zeros when the file grows over them.
//! - C4: a frame is recycled only after a grace period that began when no word named it and it had
//!   no reference.
//! - C5: a word without BUSY names a page whose bytes are complete.
//! - C6: the word of a large folio is set only while its sixteen pages are present, up to date, and
//!   in one frame group.
//! - C7: a page with a handle is not evicted: only truncation and punching remove it from the
//!   index.
//! - C8: DIRTY is cleared by a thread that has the bytes locked and writes them, or that removes
//!   the page; a failed write sets it again.
//! - C9: no thread waits for a grace period while pinned or with a state locked.
//! - C10: no thread waits for writeback to make room while it has a page's bytes or a state locked;
//!   allocations of metadata pages never wait.
//! - C11: new pages without a store never exceed the budget; other pages only while they are in
//!   use.

mod borrow;
mod copy;
mod counters;
mod fill;
mod flush;
mod folio;
mod folio_ref;
mod huge_pages;
mod index;
mod locked;
#[cfg(all(test, folio_loom))]
mod loom_check;
mod mapping;
#[cfg(all(test, folio_model_check))]
mod model_check;
mod object_memory;
mod owner_glue;
mod page;
mod page_cache;
mod page_owner;
mod policy;
mod pool;
mod read;
mod readahead;
mod readahead_threads;
mod reclaim;
mod shrink;
mod store;
#[cfg(test)]
mod tests;
mod write;
mod write_source;
mod writeback;

pub use borrow::{Borrowed, BorrowedRead};
pub use counters::Counters;
pub use huge_pages::inspect_machine;
pub use locked::{PageReadGuard, PageWriteGuard};
pub use mapping::Mapping;
pub use object_memory::{ObjectCharge, ObjectMemory};
pub use page::Page;
pub use page_cache::{CacheOptions, PageCache};
pub(crate) use read::PINNED_MAX;
pub use readahead::ReadPattern;
pub use store::Store;
pub use write_source::WriteSource;
pub use writeback::Writeback;
