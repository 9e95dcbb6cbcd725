//! File data: from the pages of a mapping to the blocks that hold them, and back.
//!
//! ```text
//!   write_begin                 writeback                      fallocate(2)
//!      | reserve                   | allocate in long runs        | fallocate.rs
//!   delalloc.rs ------------->  pages.rs                          | collapse_range.rs
//!                                  | bytes to the device, then the extents become visible
//!                               auto_da_alloc.rs   orders data before the commit that maps it
//! ```
//!
//! `inline_data.rs` has the files whose contents are in the inode.
//!
//! Neighbors: the VFS's calls above (operations/), commits, which write ordered files; the inode
//! below, which holds the block map, and the page cache beside.
//!
//! Lock order: pages; a store's handle (`OperationGate::start_store`); `Ext4Inode::state`;
//! `Volume::space`.
//!
//! Invariants:
//! 1. A block is reserved (`Space::reserve`) before a page that needs it becomes dirty.
//! 2. A transaction maps a block only after the block holds its data (`data=ordered`).
//! 3. Pages of removed blocks are dropped before the blocks are freed.

mod auto_da_alloc;
mod collapse_range;
mod delalloc;
mod fallocate;
mod inline_data;
mod pages;
