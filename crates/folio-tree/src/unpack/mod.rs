//! Unpacking: entries of an archive become files of a mounted file system.
//!
//! ```text
//!   unpacker.rs      one entry after another; hard links, default ACLs and times that must wait
//!   layer.rs         whiteouts and opaque directories of container layers
//!   directories.rs   names to open directories, within the destination
//! ```
//!
//! The destination confines every name of an archive: `..` is refused, `/` at the start is dropped,
//! and a symbolic link below it is followed as if the destination were the root directory.
//!
//! Invariants:
//! 1. Files are created, removed and linked in an open directory by a name of one component, and
//!    that directory was reached from the destination without following a link.
//! 2. A directory's times and default ACL are set after the last file in it, at the end.

mod directories;
mod layer;
mod unpacker;

pub(crate) use directories::Directories;
pub use unpacker::{Select, Unpacker};
