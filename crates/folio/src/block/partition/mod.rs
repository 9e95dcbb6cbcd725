//! Partitions of a disk: the tables that describe them, and each partition as a device.
//!
//! ```text
//!   select.rs    the device that holds the file system
//!      |    \
//!   table.rs  window.rs      the list by GPT or MBR; a partition as a device
//!    |    \
//!    |    \  \__ change_table.rs  a partition added or enlarged
//!    |     \       |
//!   gpt.rs  mbr.rs  new_table.rs   with change_table.rs the only files that use the crates gptman
//!      \   /       |               and mbrman: tables read, and written
//!    entry.rs      |               one partition
//!        \         |
//!   types.rs  cursor.rs            partition types by name; a device as std::io has it
//! ```
//!
//! `no_table.rs` takes the place of `table.rs` in a build without the Cargo feature `partitions`.
//!
//! Invariant: a [`Partition`] is inside its disk; tables are hostile until checked.

#[cfg(feature = "partitions")]
mod change_table;
#[cfg(feature = "partitions")]
mod cursor;
mod entry;
#[cfg(feature = "partitions")]
mod gpt;
#[cfg(feature = "partitions")]
mod mbr;
mod name;
#[cfg(feature = "partitions")]
mod new_table;
mod select;
#[cfg_attr(not(feature = "partitions"), path = "no_table.rs")]
mod table;
#[cfg(all(test, feature = "partitions"))]
mod tests;
mod types;
mod window;

#[cfg(feature = "partitions")]
pub use change_table::{PartitionAddition, free_space, grow_partition};
pub use entry::{Partition, PartitionTable};
pub use name::{PartitionName, split_partition};
#[cfg(feature = "partitions")]
pub use new_table::{NewPartition, NewPartitionTable};
pub use select::{holds_ext4, select, selected};
pub use table::{partition_table, partitions};
pub use types::{PartitionType, TableScheme};
pub use window::PartitionDevice;
