//! The journal (jbd2): what a dirty one holds is brought to its place before anything else is read.
//!
//! ```text
//!   log:  | superblock | D data data R C | D data C | ...        D descriptor, R revoke, C commit
//!           start, sequence --^                       ^-- the first block that continues nothing: the end
//! ```
//!
//! Neighbours: `Ext4::open` hands it the journal's blocks and a device, before any cache is filled. Transactions
//! are replayed here, not yet written. Format: the kernel's Documentation/filesystems/ext4/journal.rst.
//!
//! Invariants:
//! 1. Only transactions whose commit block is whole are replayed, in order, each block at most once per pass.
//! 2. The log is emptied only after everything replayed has been flushed.

mod disk;
mod recovery;
mod ring;

pub(super) use recovery::recover;
pub(super) use ring::JournalBlocks;
