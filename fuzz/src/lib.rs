//! What the fuzz targets run: each takes bytes, makes an image or a program of them, and must come
//! to an end without a panic, whatever they are.
//!
//! ```text
//!   base.rs     an image with every kind of structure, and where each lies
//!   seal.rs     the checksums of those structures, made anew after a change
//!   edit.rs     changes to some of them, as an input asks for
//!   journal.rs  a log that is waiting to be replayed, as an input asks for
//!   exercise.rs mounts an image, looks at all of it, changes a little of everything
//!   operations.rs  the same system calls on ext4 and on a ramfs
//!   qcow2/      the same for disk images, with an exercise of their own
//! ```
//!
//! The tests of the main workspace run the stored corpora through the same functions with stable
//! Rust.

mod base;
mod edit;
mod exercise;
mod journal;
mod operations;
mod qcow2;
mod seal;

pub use journal::journal;
pub use operations::operations;
pub use qcow2::{
    qcow2_compressed, qcow2_header, qcow2_operations, qcow2_refcounts, qcow2_snapshots,
    qcow2_tables,
};

use base::Class;

/// Damage to the superblock, the group descriptors and the bitmaps.
pub fn superblock(data: &[u8]) {
    edit::run(data, &[Class::Superblock, Class::Group, Class::Bitmap]);
}

/// Damage to directories.
pub fn directory(data: &[u8]) {
    edit::run(data, &[Class::Directory, Class::DirectoryInode]);
}

/// Damage to extent trees.
pub fn extent(data: &[u8]) {
    edit::run(data, &[Class::ExtentBlock, Class::FileInode]);
}

/// Damage to extended attributes.
pub fn xattr(data: &[u8]) {
    edit::run(data, &[Class::XattrBlock, Class::XattrInode]);
}
