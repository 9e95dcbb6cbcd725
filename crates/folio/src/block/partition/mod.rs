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
//!   contents.rs              names of other formats, for messages
//! ```
//!
//! `no_table.rs` takes the place of `table.rs` in a build without the Cargo feature `partitions`.
//!
//! Invariant: a [`Partition`] is inside its disk; tables are hostile until checked.

mod contents;
mod entry;
#[cfg(feature = "partitions")]
mod gpt;
#[cfg(feature = "partitions")]
mod mbr;
mod select;
#[cfg_attr(not(feature = "partitions"), path = "no_table.rs")]
mod table;
#[cfg(all(test, feature = "partitions"))]
mod tests;
mod window;

pub use contents::contents;
pub use entry::{Partition, PartitionTable};
pub use select::{holds_ext4, select, split_partition};
pub use table::{partition_table, partitions};
pub use window::PartitionDevice;
