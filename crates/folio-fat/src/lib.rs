//! FAT12, FAT16 and FAT32 in Folio's VFS, by the crate `fatfs`: for EFI system partitions and other
//! small file systems.
//!
//! ```text
//!   file_system.rs   FileSystem and Inode of the VFS: names, data, times
//!        v
//!   volume.rs        the thread that owns the file system of `fatfs`, which is bound to one
//!        v
//!   cursor.rs        the device as `std::io` has it, with a cache of blocks
//!
//!   format.rs        a new FAT         time.rs   timestamps
//! ```
//!
//! FAT has no owners, modes, links or extended attributes: owners and modes are accepted without
//! effect, as by the mount option `quiet` of Linux's vfat, and the rest is refused. Times are UTC.

mod cursor;
mod file_system;
mod format;
mod time;
mod volume;

pub use file_system::FatFileSystem;
pub use format::{FatOptions, FatWidth, format};
