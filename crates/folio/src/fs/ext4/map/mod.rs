//! Where a file's blocks are: its extents in memory, read from an extent tree or from a block map,
//! and the blocks that are delayed.
//!
//! ```text
//!   extent_map.rs   file block -> device block, in memory; loads and stores the tree on disk
//!   block_map.rs    the pointers of ext2 and ext3, walked once into an extent map, and stored
//!   pointer_slot.rs positions of pointer blocks: which of them a set of file blocks needs
//!   delayed.rs      file blocks that wait for writeback to get a place
//! ```
//!
//! Neighbors: an inode holds one of each and locks them; metadata blocks are read below. Has no
//! locks, and changes neither bitmaps nor reservations: the callers do.
//!
//! Invariants:
//! 1. Extents are sorted, do not overlap, and neighbors that continue each other are one.
//! 2. Delayed ranges are sorted, and neither overlap nor touch.

pub(super) mod block_map;
pub(super) mod delayed;
pub(super) mod extent_map;
pub(super) mod pointer_slot;
