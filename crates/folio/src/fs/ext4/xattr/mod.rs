//! Extended attributes: their format on disk, their place in an inode, and ACLs.
//!
//! ```text
//!   store.rs    the attributes of one inode: in it, in a shared block
//!   values.rs   large values, in inodes of their own
//!      |
//!   format.rs   entries and values as bytes          acl.rs   ACLs as bytes
//! ```
//!
//! Neighbors: the VFS's calls above; files above, whose contents `system.data` may continue; the
//! inode below. The check reads blocks of attributes through format.rs.
//!
//! Lock order: `Ext4Inode::state`, then metadata pages.
//!
//! Invariants:
//! 1. A block of attributes with more than one reference is never changed: a changed set of
//!    attributes goes to a new block.
//! 2. The reference count of a value's inode is the number of entries that lead to it: in inodes,
//!    and in blocks, however many inodes share a block.
//! 3. A change is checked and encoded (`plan_xattr`) before the inode is changed.

mod acl;
pub(super) mod format;
mod store;
mod values;

#[cfg(test)]
mod tests;
