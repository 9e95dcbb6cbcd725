//! dm-verity: the hash tree that lets a kernel verify each block of a read-only device.
//!
//! ```text
//!   format.rs   verify.rs        a new tree; data and tree against a root hash
//!         \      /
//!         input.rs               digests of a run of blocks, piece by piece
//!            |
//!         layout.rs              where the levels of a tree are
//!            |
//!        superblock.rs           what precedes the tree on its device
//! ```
//!
//! The tree has version 1 of the format, with SHA-256. Each hash block has the digests of as many
//! blocks of the level below; the block of the root comes first on the device, the level over the
//! data last. All cores hash, each one hash block at a time, so that memory is constant: a level
//! is read back from the device to compute the one above it.
//!
//! Linux: Documentation/admin-guide/device-mapper/verity.rst, drivers/md/dm-verity-target.c.
//! cryptsetup: lib/verity/.

mod format;
mod input;
mod layout;
mod superblock;
mod verify;

pub use format::format;
pub use input::HashOptions;
pub use layout::{appended_data_blocks, hash_area_bytes};
pub use superblock::{BLOCK_BYTES, VeritySuperblock};
pub use verify::{VerityArea, VerityMismatch, VerityReport, verify};

/// The SHA-256 of the top block of a tree, which vouches for all data.
pub type RootHash = [u8; DIGEST_BYTES];

/// Bytes of a SHA-256 digest.
const DIGEST_BYTES: usize = 32;
