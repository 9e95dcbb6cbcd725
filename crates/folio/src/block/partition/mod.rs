//! Partitions of a disk: the tables that describe them, and each partition as a device.
//!
//! ```text
//!   select.rs    the device that holds the file system
//!      |    \
//!   table.rs  window.rs        the list by GPT or MBR; a partition as a device
//!      |
//!      |   change_table.rs     a partition added or enlarged
//!      |      |          \
//!      |   gpt_change.rs  mbr_change.rs   both copies of a GPT; entries and records of an MBR
//!      |      |          /
//!      |      |         /    new_table.rs   a new table
//!      |      |        /        |
//!   gpt.rs        mbr.rs     the structures on the disk: read, checked, encoded
//!       \        /
//!   entry.rs  types.rs       one partition; partition types by name
//! ```
//!
//! `no_table.rs` takes the place of `table.rs` in a build without the Cargo feature `partitions`.
//!
//! Invariant: a [`Partition`] is inside its disk; tables are hostile until checked.

#[cfg(feature = "partitions")]
mod change_table;
mod entry;
#[cfg(feature = "partitions")]
mod gpt;
#[cfg(feature = "partitions")]
mod gpt_change;
#[cfg(feature = "partitions")]
mod mbr;
#[cfg(feature = "partitions")]
mod mbr_change;
mod name;
#[cfg(feature = "partitions")]
mod new_table;
mod select;
#[cfg_attr(not(feature = "partitions"), path = "no_table.rs")]
mod table;
#[cfg(all(test, feature = "partitions"))]
mod tests;
#[cfg(feature = "partitions")]
mod types;
mod window;

#[cfg(feature = "partitions")]
pub use change_table::{PartitionAddition, free_space, grow_partition};
pub use entry::{Partition, PartitionTable, TableScheme};
pub use name::{PartitionName, split_partition};
#[cfg(feature = "partitions")]
pub use new_table::{NewPartition, NewPartitionTable};
pub use select::{select, selected};
pub use table::{partition_table, partitions};
#[cfg(feature = "partitions")]
pub use types::PartitionType;
pub use window::PartitionDevice;
