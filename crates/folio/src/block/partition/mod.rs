//! Partitions of a disk: the tables that describe them, and each partition as a device.
//!
//! ```text
//!   select.rs    the device that holds the file system
//!      |    \
//!   table.rs  window.rs      the list by GPT or MBR; a partition as a device
//!    |    \
//!   gpt.rs  mbr.rs           the only files that use the crates gptman and mbrman
//!      \   /
//!    entry.rs                one partition
//! ```
//!
//! Invariant: a [`Partition`] is inside its disk; tables are hostile until checked.

mod entry;
mod gpt;
mod mbr;
mod select;
mod table;
#[cfg(test)]
mod tests;
mod window;

pub use entry::Partition;
pub use select::{holds_ext4, select};
pub use table::partitions;
pub use window::PartitionDevice;
