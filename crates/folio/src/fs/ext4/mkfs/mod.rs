//! Makes a fresh ext4 on a device, laid out as mke2fs 1.47 lays it out by default.
//!
//! ```text
//!   FormatOptions + device size
//!      |
//!   geometry.rs   how many blocks, groups, inodes; how large journal and reserve
//!      |
//!   layout.rs     which block holds what
//!      |
//!   write.rs      the bytes, superblock last
//! ```
//!
//! Neighbours: `disk` and `checksum` for the bytes, the device seam below. Knows no cache and no
//! VFS. No locks.
//!
//! What a block must read as is decided before anything is written: every used block is zeroed
//! first (one call per run of used blocks), then only blocks that are not zeros are written. See
//! docs/design/mkfs.md for what is chosen as mke2fs does and what is not.

mod geometry;
mod layout;
mod write;

use crate::base::{Clock, Errno, Error, Result};
use crate::block::Device;
use geometry::Geometry;
use layout::Layout;

/// Longest label, in bytes (`s_volume_name`).
const LABEL_LEN_MAX: usize = 16;

/// What a new ext4 shall be. The default is that of `mke2fs -t ext4` 1.47 for the device's size.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Volume label, at most 16 bytes (`mke2fs -L`).
    pub label: String,
    /// Identity of the file system (`mke2fs -U`). `None` draws a random one; with one given, and a
    /// fixed clock, everything else follows from it: two runs write the same bytes.
    pub uuid: Option<[u8; 16]>,
    /// 1024, 2048 or 4096 bytes (`mke2fs -b`). `None`: 1024 below 512 MiB, else 4096.
    pub block_size: Option<u32>,
    /// Bytes of device per inode (`mke2fs -i`). `None`: by the device's size, 4096 to 65536.
    pub inode_ratio: Option<u32>,
    /// Inodes in all, rounded up to fill inode tables (`mke2fs -N`); wins over `inode_ratio`.
    pub inode_count: Option<u32>,
    /// Owner and group of the root directory (`mke2fs -E root_owner=`).
    pub root_owner: (u32, u32),
    /// Percentage of the blocks kept for root, 0 to 50 (`mke2fs -m`).
    pub reserved_percent: f64,
    /// Where the timestamps come from.
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

/// What was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatReport {
    /// Identity of the file system.
    pub uuid: [u8; 16],
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks in all.
    pub block_count: u64,
    /// Blocks that nothing uses yet.
    pub free_block_count: u64,
    /// Blocks only root may take.
    pub reserved_block_count: u64,
    /// Inodes in all.
    pub inode_count: u32,
    /// Block groups.
    pub group_count: u32,
    /// Blocks of the journal; 0 where the device is too small for one (below 2048 blocks).
    pub journal_block_count: u32,
}

/// Writes a fresh, empty ext4 over whatever `device` holds, flushed when this returns. Linux:
/// mke2fs(8).
///
/// EINVAL for options that contradict each other or the device's size; EROFS for a read-only
/// device.
pub fn format(device: &dyn Device, options: &FormatOptions) -> Result<FormatReport> {
    format_device(device, options).map_err(|e| e.at("mkfs.ext4"))
}

fn format_device(device: &dyn Device, options: &FormatOptions) -> Result<FormatReport> {
    if device.is_read_only() {
        return Err(Errno::ROFS.into());
    }
    if options.label.len() > LABEL_LEN_MAX {
        let what = format!(
            "label is {} bytes long, more than {LABEL_LEN_MAX}",
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

/// What sets this file system apart from another of the same size.
struct Identity {
    uuid: [u8; 16],
    /// Key of the directory hash (`s_hash_seed`).
    hash_seed: [u8; 16],
    label: [u8; LABEL_LEN_MAX],
    root_owner: (u32, u32),
    /// Seconds since the epoch, never negative: the superblock's times are unsigned.
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

/// A hash seed that follows from the identity, for images that must come out the same each time.
fn derived_hash_seed(uuid: &[u8; 16]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (word, chunk) in (1_u32..).zip(bytes.chunks_exact_mut(4)) {
        chunk.copy_from_slice(&super::layout::checksum::crc32c(word, uuid).to_le_bytes());
    }
    uuid::Builder::from_random_bytes(bytes)
        .into_uuid()
        .into_bytes()
}
