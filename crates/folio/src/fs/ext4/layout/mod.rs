//! The bytes of ext4 on disk: structures, features, checksums and the superblock.
//!
//! ```text
//!   superblock.rs   the superblock, checked
//!      |
//!   extent.rs       extents and nodes of their tree
//!   quota.rs        quota files
//!   features.rs     feature flags, and which of them Folio reads and writes
//!   checksum.rs     crc32c and crc16 over structures
//!      |
//!   disk.rs         raw on-disk structures
//! ```
//!
//! Neighbors: used by every other folder of ext4; uses only the block layer. Has no locks.

pub(super) mod checksum;
pub(super) mod disk;
pub(super) mod extent;
pub(super) mod features;
pub(super) mod quota;
pub(super) mod superblock;
