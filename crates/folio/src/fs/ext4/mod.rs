//! ext4: a file system on a device, compatible both ways with mke2fs 1.47 and the kernel.
//!
//! ```text
//!   vfs_glue.rs   the VFS's calls, in ext4's words
//!      |
//!   dir.rs htree.rs   xattr.rs acl.rs   file.rs (delayed allocation)   symlink.rs
//!      |                 |                 |
//!   inode.rs  (an inode in memory)      extent.rs  (file block -> device block)
//!      |                                   |
//!   inode_alloc.rs                      block_alloc.rs
//!      \___________ group.rs ______________/
//!                      |
//!   metadata.rs   metadata blocks in the page cache        superblock.rs disk.rs checksum.rs features.rs
//!                      |
//!                 [device seam]
//! ```

#![allow(dead_code)] // until the parts are joined

mod acl;
mod bitmap;
mod checksum;
mod dir;
mod dir_block;
mod disk;
mod extent;
mod features;
mod hash;
mod htree;
mod inline_data;
mod metadata;
pub mod mkfs;
mod xattr;
