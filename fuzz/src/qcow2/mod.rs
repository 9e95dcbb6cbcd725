//! qcow2 images: what their targets run.
//!
//! ```text
//!   base.rs        images with every kind of structure, and where each lies
//!   edit.rs        changes to some of them, as an input asks for
//!   exercise.rs    opens an image, reads it, changes a little of everything
//!   operations.rs  what a disk is asked to do, compared with plain memory
//! ```

mod base;
mod edit;
mod exercise;
mod operations;

pub use operations::operations as qcow2_operations;

use base::Class;

/// Damage to the header and its extensions.
pub fn qcow2_header(data: &[u8]) {
    edit::run(data, &[Class::Header]);
}

/// Damage to the L1 table and the L2 tables.
pub fn qcow2_tables(data: &[u8]) {
    edit::run(data, &[Class::L1, Class::L2]);
}

/// Damage to the refcount table and its blocks, and to the L1 table.
pub fn qcow2_refcounts(data: &[u8]) {
    edit::run(
        data,
        &[Class::RefcountTable, Class::RefcountBlock, Class::L1],
    );
}

/// Damage to the snapshot table, to the tables of snapshots, and to what the header says of them.
pub fn qcow2_snapshots(data: &[u8]) {
    edit::run(data, &[Class::Snapshots, Class::SnapshotL1, Class::Header]);
}

/// Damage to compressed clusters and to the tables that lead there.
pub fn qcow2_compressed(data: &[u8]) {
    edit::run(data, &[Class::Compressed, Class::L2]);
}
