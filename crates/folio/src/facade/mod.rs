//! The front door: `std::fs`'s names over an image, a host directory or memory.
//!
//! ```text
//!   Image ---- mount() ----> Fs ---- open() ----> File       Read, Write, Seek, FileExt
//!   image.rs                 |  fs.rs             file.rs
//!                            |---- open_options() OpenOptions
//!                            |---- read_dir()     ReadDir, DirEntry
//!                            `---- walk()         Walk
//!                            v
//!                         syscall/  Process       one process with the credentials of the Fs
//!                         kernel.rs Kernel        one kernel for each mounted Image
//! ```
//!
//! Neighbors: programs above; `syscall` and `kernel.rs` below. No storage logic and no state
//! besides the open files. Calls that have no counterpart in `std::fs` (`fallocate`, extended
//! attributes, `renameat2`) are made through [`Fs::process`].
//!
//! Errors are [`std::io::Error`]. Its kind follows the errno, [`crate::errno_of`] returns it, and
//! the text begins with the path; [`crate::Error`], with the place of the failure, is found by
//! [`std::io::Error::get_ref`] and a downcast.
//!
//! Locks: none.

mod directory;
mod file;
mod fs;
mod image;
mod metadata;
mod open_options;

pub use directory::{DirEntry, ReadDir, Walk};
pub use file::File;
pub use fs::Fs;
pub use image::Image;
pub use metadata::Metadata;
pub use open_options::OpenOptions;
