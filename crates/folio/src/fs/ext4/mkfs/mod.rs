//! The ext4 formatter: writes an empty file system with the default layout of mke2fs 1.47.
//!
//! ```text
//!   FormatOptions + device size
//!      |
//!   geometry.rs   counts of blocks, groups and inodes; sizes of journal and reserves
//!      |
//!   layout.rs     the block numbers of all metadata and files
//!      |
//!   write.rs      the bytes, superblock last
//! ```
//!
//! Neighbors: `layout::disk` and `layout::checksum` for the bytes, the device trait below. Uses no
//! cache and no VFS. No locks.
//!
//! The layout is complete before the first write. Every used block is then zeroed, with one call
//! per run of used blocks, and only nonzero blocks are written. docs/design/mkfs.md lists the
//! choices of mke2fs that Folio follows and those it does not.

mod geometry;
mod layout;
mod write;

use crate::base::{Clock, Errno, Error, Result};
use crate::block::Device;
use geometry::Geometry;
use layout::Layout;

/// Longest label, in bytes (`s_volume_name`).
const LABEL_LEN_MAX: usize = 16;

/// Options of a new ext4. The defaults are those of `mke2fs -t ext4` 1.47 for the device's size.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Volume label, at most 16 bytes (`mke2fs -L`).
    pub label: String,
    /// UUID of the file system (`mke2fs -U`); `None` for a random one. With a UUID and a fixed
    /// clock, two runs write the same bytes.
    pub uuid: Option<[u8; 16]>,
    /// Block size in bytes: 1024, 2048 or 4096 (`mke2fs -b`). `None`: 1024 below 512 MiB, else
    /// 4096.
    pub block_size: Option<u32>,
    /// Bytes of the device per inode, 1024 to 67108864 (`mke2fs -i`). `None`: 4096 to 65536 by the
    /// device's size.
    pub inode_ratio: Option<u32>,
    /// Number of inodes, rounded up to fill inode tables (`mke2fs -N`); overrides `inode_ratio`.
    pub inode_count: Option<u32>,
    /// User and group id of the root directory (`mke2fs -E root_owner=`).
    pub root_owner: (u32, u32),
    /// Percentage of the blocks reserved for root, 0 to 50 (`mke2fs -m`).
    pub reserved_percent: f64,
    /// The source of all timestamps.
    pub clock: Clock,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            label: String::new(),
            uuid: None,
            block_size: None,
            inode_ratio: None,
            inode_count: None,
            root_owner: (0, 0),
            reserved_percent: 5.0,
            clock: Clock::System,
        }
    }
}

/// The properties of a new ext4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatReport {
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Bytes per block.
    pub block_size: u32,
    /// Number of blocks.
    pub block_count: u64,
    /// Number of free blocks.
    pub free_block_count: u64,
    /// Number of blocks reserved for root.
    pub reserved_block_count: u64,
    /// Number of inodes.
    pub inode_count: u32,
    /// Number of block groups.
    pub group_count: u32,
    /// Length of the journal in blocks; 0 on devices below 2048 blocks, which get no journal.
    pub journal_block_count: u32,
}

/// Writes an empty ext4 to `device`, over its old contents, and flushes the device.
///
/// # Errors
/// - EINVAL for an option that is out of range or does not fit the device's size.
/// - EROFS for a read-only device.
/// - The device's error if a write fails; the device then has no valid ext4.
///
/// Counterpart: mke2fs(8).
pub fn format(device: &dyn Device, options: &FormatOptions) -> Result<FormatReport> {
    format_device(device, options).map_err(|e| e.at("mkfs.ext4"))
}

fn format_device(device: &dyn Device, options: &FormatOptions) -> Result<FormatReport> {
    if device.is_read_only() {
        return Err(Error::new(Errno::ROFS, "the image is read-only"));
    }
    if options.label.len() > LABEL_LEN_MAX {
        let what = format!(
            "invalid label {:?}: {} bytes long, at most {LABEL_LEN_MAX} allowed",
            options.label,
            options.label.len()
        );
        return Err(Error::new(Errno::INVAL, what));
    }
    let geometry = Geometry::new(device.len_bytes(), options)?;
    let layout = Layout::new(geometry)?;
    let identity = Identity::new(options);
    write::write(device, &layout, &identity)?;
    let geometry = &layout.geometry;
    Ok(FormatReport {
        uuid: identity.uuid,
        block_size: geometry.block_size,
        block_count: geometry.block_count,
        free_block_count: layout.free_block_count(),
        reserved_block_count: geometry.reserved_block_count,
        inode_count: geometry.inode_count(),
        group_count: geometry.group_count,
        journal_block_count: geometry.journal_block_count,
    })
}

/// The values that differ between file systems of the same geometry.
struct Identity {
    uuid: [u8; 16],
    /// Key of the directory hash (`s_hash_seed`).
    hash_seed: [u8; 16],
    label: [u8; LABEL_LEN_MAX],
    root_owner: (u32, u32),
    /// Seconds since 1970, never negative: the superblock's times are unsigned.
    now_secs: i64,
}

impl Identity {
    fn new(options: &FormatOptions) -> Self {
        let (uuid, hash_seed) = match options.uuid {
            Some(uuid) => (uuid, derived_hash_seed(&uuid)),
            None => (random_uuid(), random_uuid()),
        };
        let mut label = [0; LABEL_LEN_MAX];
        label[..options.label.len()].copy_from_slice(options.label.as_bytes());
        let now_secs = options.clock.now().secs.max(0);
        Self {
            uuid,
            hash_seed,
            label,
            root_owner: options.root_owner,
            now_secs,
        }
    }
}

fn random_uuid() -> [u8; 16] {
    uuid::Uuid::new_v4().into_bytes()
}

/// Derives the hash seed from the UUID, so that images are reproducible.
fn derived_hash_seed(uuid: &[u8; 16]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (word, chunk) in (1_u32..).zip(bytes.chunks_exact_mut(4)) {
        chunk.copy_from_slice(&super::layout::checksum::crc32c(word, uuid).to_le_bytes());
    }
    uuid::Builder::from_random_bytes(bytes)
        .into_uuid()
        .into_bytes()
}
