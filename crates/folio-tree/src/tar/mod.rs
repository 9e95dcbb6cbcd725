//! The tar format: a stream of headers of 512 bytes, each with its content after it.
//!
//! ```text
//!   reader.rs    headers and extended headers to entries      writer.rs    entries to headers
//!   acl.rs       ACLs as text
//!   sparse.rs    the data ranges of files with holes, in their four forms
//!   pax.rs       records of extended headers
//!   header.rs    the 512 bytes
//! ```
//!
//! Sources: POSIX.1-2017 pax, "pax Interchange Format"; the manual of GNU tar, chapter "Tar
//! Internals"; libarchive's tar(5). Read: v7, ustar, GNU and PAX. Written: ustar, with PAX records
//! where ustar has no room.
//!
//! The crate `tar` (0.4.46) reads neither the sparse files of PAX nor nanoseconds or times before
//! 1970, cuts extended attributes at line feeds and reports no holes, so this module is our own.
//!
//! Invariant: a header never makes the reader allocate more than its archive has bytes, and at most
//! [`HEADER_BYTES_MAX`] for one entry.

mod acl;
mod header;
mod pax;
mod reader;
mod sparse;
mod writer;

pub use reader::Reader;
pub use writer::Writer;

/// Bytes of a block: headers and contents begin at multiples of it.
pub const BLOCK_BYTES: usize = 512;
/// Most bytes of the extended headers of one entry.
pub const HEADER_BYTES_MAX: u64 = 8 << 20;
