//! A writer of EROFS images, of trees, archives and container images in one pass, and their check.
//!
//! ```text
//!   new_erofs.rs     a new image                         target.rs      the target of a copy
//!     v
//!   state.rs         the tree, and the file that is open
//!     v
//!   image.rs         directories, inodes, superblock     content.rs     a file: blocks and tail
//!   layout.rs        where each inode is                 duplicates.rs  equal files share blocks
//!   directory.rs     sorted names in blocks              pieces.rs      compressed files, in order
//!   tree.rs          names and attributes                compress.rs    threads that compress
//!   xattr.rs         shared attributes                   output.rs      the file as blocks
//!   compaction.rs    removes unused blocks
//!   compression_index.rs    which blocks a compressed file has
//!     v
//!   format.rs        the structures on disk
//!
//!   check/           the check of an image, which uses only format.rs and the name filter
//! ```
//!
//! Above: the command. Below: the copy engine of [`folio_tree`]. Linux: Documentation/filesystems/
//! erofs.rst; the tool is mkfs.erofs(1).
//!
//! Invariants:
//! 1. Contents are written in the order in which they come; the superblock is written last.
//! 2. Equal trees with the same UUID give equal bytes.
//! 3. In memory are names, attributes, and what is less than a block of each file.

#![deny(unsafe_code)]

#[cfg(feature = "check")]
pub mod check;
mod compaction;
mod compress;
mod compression_index;
mod content;
mod directory;
mod duplicates;
mod format;
#[cfg(feature = "check")]
#[doc(hidden)]
pub mod fuzzing;
mod image;
mod layout;
mod new_erofs;
mod output;
mod pieces;
mod state;
mod target;
mod tree;
mod xattr;

pub use compress::Compression;
pub use new_erofs::{ErofsOptions, NewErofs};
pub use target::{ErofsDir, ErofsFile};
