//! The fuzz targets' functions: each builds an image or a program from its input and must end
//! without a panic for all inputs.
//!
//! ```text
//!   base.rs     an image with every kind of structure, and their offsets
//!   seal.rs     the update of checksums after a change
//!   edit.rs     changes to structures, given by the input
//!   journal.rs  a log to replay, given by the input
//!   exercise.rs mounts an image, reads all of it, makes changes of every kind
//!   operations.rs  the same system calls on ext4 and on a ramfs
//!   fat.rs      a FAT to mount, read and change
//!   rofs.rs     a squashfs or erofs to mount and read
//!   qcow2/      the same for disk images, with a separate exercise
//! ```
//!
//! The tests of the main workspace run the stored corpora through the same functions with stable
//! Rust.

mod base;
mod edit;
mod exercise;
pub mod fat;
mod journal;
mod operations;
mod qcow2;
mod rofs;
mod seal;

pub use journal::journal;
pub use operations::operations;
pub use qcow2::{
    qcow2_compressed, qcow2_header, qcow2_operations, qcow2_refcounts, qcow2_snapshots,
    qcow2_tables,
};
pub use rofs::{erofs, squashfs};

use base::StructureClass;

/// Damages the superblock, the group descriptors and the bitmaps.
pub fn superblock(data: &[u8]) {
    edit::run(
        data,
        &[
            StructureClass::Superblock,
            StructureClass::Group,
            StructureClass::Bitmap,
        ],
    );
}

/// Damages directories.
pub fn directory(data: &[u8]) {
    edit::run(
        data,
        &[StructureClass::Directory, StructureClass::DirectoryInode],
    );
}

/// Damages extent trees.
pub fn extent(data: &[u8]) {
    edit::run(
        data,
        &[StructureClass::ExtentBlock, StructureClass::FileInode],
    );
}

/// Damages extended attributes.
pub fn xattr(data: &[u8]) {
    edit::run(
        data,
        &[StructureClass::XattrBlock, StructureClass::XattrInode],
    );
}
