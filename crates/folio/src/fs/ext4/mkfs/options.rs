//! Options of a new file system, and the values that they determine.

use crate::base::{Clock, Owner};
use crate::fs::ext4::layout::checksum::crc32c;

/// Longest label, in bytes (`s_volume_name`).
pub(super) const LABEL_LEN_MAX: usize = 16;

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
    /// Owner of the root directory (`mke2fs -E root_owner=`).
    pub root_owner: Owner,
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
            root_owner: Owner::ROOT,
            reserved_percent: 5.0,
            clock: Clock::System,
        }
    }
}

/// The values that differ between file systems of the same geometry.
pub(super) struct Identity {
    pub(super) uuid: [u8; 16],
    /// Key of the directory hash (`s_hash_seed`).
    pub(super) hash_seed: [u8; 16],
    pub(super) label: [u8; LABEL_LEN_MAX],
    pub(super) root_owner: Owner,
    /// Seconds since 1970, never negative: the superblock's times are unsigned.
    pub(super) now_secs: i64,
}

impl Identity {
    /// Returns the values for `options`; random ones where those leave a choice.
    pub(super) fn new(options: &FormatOptions) -> Self {
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
        chunk.copy_from_slice(&crc32c(word, uuid).to_le_bytes());
    }
    uuid::Builder::from_random_bytes(bytes)
        .into_uuid()
        .into_bytes()
}
