//! Directories: names in blocks, in hash trees and in the inode itself.
//!
//! ```text
//!   blocks.rs        the inode's operations on names; its blocks
//!      |                  |
//!   names.rs         inline_data.rs    entries in the inode
//!      |
//!   htree.rs         the index: finds the leaf of a name by its hash
//!      |             linear_index.rs   the same in memory, for directories without one
//!      |
//!   leaf.rs          one block: finds names, and room for new ones
//!      |
//!   index_block.rs   one block of the index as bytes
//!      |
//!   block.rs         one block of entries as bytes
//!      |
//!   context.rs       properties of the directory; the trait for its blocks
//!      |
//!   fold.rs          names without case             hash.rs
//! ```
//!
//! Neighbors: the VFS's calls and the fast-commit replay above; the inode below, with its block
//! map. The code below blocks.rs knows no inode: tests run it on memory.
//!
//! Lock order: the VFS holds the inode lock, exclusively around changes. `Ext4Inode::state` is
//! locked only while a block is mapped or appended; metadata pages one at a time.
//!
//! Invariants:
//! 1. A name that stays is listed exactly once by a series of `read_directory` calls.
//! 2. Every number in a block is checked before use; a forged index cannot cause an endless loop.
//! 3. A block is allocated before an existing one is changed, so that ENOSPC leaves no trace.

pub(super) mod block;
mod blocks;
pub(super) mod context;
pub(super) mod fold;
pub(super) mod hash;
mod htree;
pub(super) mod index_block;
mod inline_data;
mod leaf;
mod linear_index;
mod names;

#[cfg(test)]
mod tests;
