//! FAT12, FAT16 and FAT32: for EFI system partitions and other small file systems.
//!
//! ```text
//!   file_system.rs   FileSystem and Inode of the VFS: names, data, times
//!        v
//!   volume.rs        inodes in memory, and the lock over all that follows
//!   changes.rs       create, remove, rename          data.rs   reads, writes, sizes
//!        v                                              v
//!   directory.rs     slots, an index of the names
//!   names.rs         short and long names            entry.rs  an entry's fields
//!        v                                              v
//!   table.rs         links of clusters, free ones    chain.rs  the clusters of one file
//!   cache.rs         blocks of the device            layout.rs the boot sector
//!
//!   format.rs        a new FAT                       time.rs   timestamps
//!                                                    width.rs  12, 16 or 32 bits
//! ```
//!
//! One lock guards a mounted FAT. A change that has no space is refused before its first write.
//!
//! FAT has no owners, modes, links or extended attributes: owners and modes are accepted without
//! effect, as by the mount option `quiet` of Linux's vfat, and the rest is refused. Times are UTC.

mod cache;
mod chain;
mod changes;
mod data;
mod directory;
mod entry;
mod file_system;
mod format;
mod layout;
mod names;
mod table;
mod time;
mod volume;
mod width;

pub use file_system::FatFileSystem;
pub use format::{FatOptions, format};
pub use width::FatWidth;
