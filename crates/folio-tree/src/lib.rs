//! Trees of files between the host, mounted file systems, tar archives and container images,
//! without a copy on the host.
//!
//! ```text
//!   new_image.rs     a new image with a tree in it
//!   copy/            the engine: a thread that reads, a thread that writes
//!   source/          the host, a mount                 target/           the host, a mount
//!
//!   oci/             container images
//!   unpack/          entries become files              pack.rs           files become entries
//!   contents.rs      which files there will be
//!   tar/             headers to entries, and back
//!   read_ahead.rs    a thread that decompresses        write_behind.rs   a thread that compresses
//!   compression.rs   gzip, zstd, xz, bzip2
//!
//!   rules.rs         owners and modes for all files    manifest/         for single files
//!   options.rs       what a copy keeps                 excludes.rs       what it leaves out
//!   owners.rs        names of users and groups         mode.rs           modes as in chmod(1)
//!   attributes.rs    owner, mode, times of a file      entry.rs          one file of an archive
//!   observer.rs      progress and failures             base64.rs         of extended attributes
//!   content_sink.rs  contents apart from their names
//! ```
//!
//! Each file uses only files below it. Neighbors: the command, C and Python above; below,
//! [`folio::Process`] and, with the feature `archive`, of compressed archives and container
//! images, the crates flate2 (with zlib-rs), zstd,
//! lzma-rust2 and bzip2.
//!
//! Invariants:
//! 1. Images and archives are hostile: whatever their bytes, no link that they make leads out of
//!    the destination, memory is bounded, and damage is an error that names its offset.
//! 2. Content goes from the decompressor's buffer to the page cache without another copy.

#![deny(unsafe_code)]

mod attributes;
mod base64;
#[cfg(feature = "archive")]
mod compression;
mod content_sink;
mod contents;
mod copy;
mod entry;
mod excludes;
#[cfg(feature = "archive")]
#[doc(hidden)]
pub mod fuzzing;
pub mod manifest;
mod mode;
mod new_image;
mod observer;
#[cfg(feature = "archive")]
pub mod oci;
mod options;
mod owners;
mod pack;
#[cfg(feature = "archive")]
mod read_ahead;
mod rules;
mod source;
pub mod tar;
mod target;
mod unpack;
#[cfg(feature = "archive")]
mod write_behind;

pub use attributes::{
    AttributeFailures, NewAttributes, NewOwnerAndMode, Xattrs, is_plain_directory,
};
#[cfg(feature = "archive")]
pub use compression::{Compression, Encoder, decoder};
pub use content_sink::ContentSink;
pub use contents::{Contents, ListedFile};
pub use copy::{CopiedContent, CopyJob, CopyTree, copy, copy_in, copy_out};
pub use entry::{Entry, EntryKind, is_whiteout, read_file};
pub use excludes::Excludes;
pub use mode::parse_mode;
pub use new_image::{NewImage, NewSize, fitting_size, parse_size};
pub use observer::{CopyFailure, FirstFailure, Observer, Side};
pub use options::CopyOptions;
pub use owners::Owners;
pub use pack::{ContentReader, PackChoice, PackSelect, Packer};
#[cfg(feature = "archive")]
pub use read_ahead::{InputProgress, MemoryBudget, ReadAhead};
pub use rules::{FileRules, OwnerRules, Table, find_number, split_last};
pub use source::{FileId, FoundFile, HostSource, MountSource, OpenMode, Source, SourceName};
pub use target::{FileMeta, HostTarget, MountTarget, Target, WrittenFile, check_fakeroot};
pub use unpack::{Select, Unpacker};
#[cfg(feature = "archive")]
pub use write_behind::WriteBehind;
