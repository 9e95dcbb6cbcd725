//! Tar archives and container images, in and out of a mounted file system without a copy on the
//! host.
//!
//! ```text
//!   oci/             container images                   manifest/         owners and device nodes
//!   unpack/          entries become files              pack.rs           files become entries
//!   contents.rs      which files there will be
//!   tar/             headers to entries, and back
//!   read_ahead.rs    a thread that decompresses        write_behind.rs   a thread that compresses
//!   compression.rs   gzip, zstd, xz, bzip2
//!   entry.rs         one file of an archive            observer.rs       progress and failures
//!   mode.rs          modes as in chmod(1)              attributes.rs     owner, mode, times of a file
//! ```
//!
//! Each file uses only files below it. Neighbors: `folio-cli` above; below, [`folio::Process`] and
//! the crates flate2 (with zlib-rs), zstd, lzma-rust2 and bzip2.
//!
//! Invariants:
//! 1. Archives are hostile: whatever their bytes, nothing is written outside of the destination,
//!    memory is bounded, and damage is an error that names its offset.
//! 2. Content goes from the decompressor's buffer to the page cache without another copy.

#![deny(unsafe_code)]

mod attributes;
mod compression;
mod contents;
mod entry;
#[doc(hidden)]
pub mod fuzzing;
pub mod manifest;
mod mode;
mod observer;
pub mod oci;
mod pack;
mod read_ahead;
pub mod tar;
mod unpack;
mod write_behind;

pub use attributes::{AttributeFailures, NewAttributes, is_plain_directory};
pub use compression::{Compression, Encoder, decoder};
pub use contents::{Contents, ListedFile};
pub use entry::{Entry, EntryKind, Xattrs, is_whiteout};
pub use mode::parse_mode;
pub use observer::Observer;
pub use pack::{ContentReader, PackChoice, PackSelect, Packer};
pub use read_ahead::{InputProgress, MemoryBudget, ReadAhead};
pub use unpack::{Select, Unpacker};
pub use write_behind::WriteBehind;
