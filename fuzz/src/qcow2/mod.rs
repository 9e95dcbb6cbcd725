//! The functions of the qcow2 targets.
//!
//! ```text
//!   base.rs        images with every kind of structure, and their offsets
//!   edit.rs        changes to structures, given by the input
//!   exercise.rs    opens an image, reads it, makes changes of every kind
//!   operations.rs  disk operations, compared with plain memory
//! ```

mod base;
mod edit;
mod exercise;
mod operations;

pub use operations::operations as qcow2_operations;

use base::StructureClass;

/// Damages the header and its extensions.
pub fn qcow2_header(data: &[u8]) {
    edit::run(data, &[StructureClass::Header]);
}

/// Damages the L1 table and the L2 tables.
pub fn qcow2_tables(data: &[u8]) {
    edit::run(data, &[StructureClass::L1, StructureClass::L2]);
}

/// Damages the refcount table and its blocks, and to the L1 table.
pub fn qcow2_refcounts(data: &[u8]) {
    edit::run(
        data,
        &[
            StructureClass::RefcountTable,
            StructureClass::RefcountBlock,
            StructureClass::L1,
        ],
    );
}

/// Damages the snapshot table, the tables of snapshots, and the header's fields of them.
pub fn qcow2_snapshots(data: &[u8]) {
    edit::run(
        data,
        &[
            StructureClass::Snapshots,
            StructureClass::SnapshotL1,
            StructureClass::Header,
        ],
    );
}

/// Damages compressed clusters and the tables that point to them.
pub fn qcow2_compressed(data: &[u8]) {
    edit::run(data, &[StructureClass::Compressed, StructureClass::L2]);
}
