//! An open file system: its superblock, groups, inode tables and bitmaps.

use crate::base::lock::Mutex;
use crate::base::{Error, PhysicalBlock, Result};
use crate::block::Device;
use crate::cache::{CacheOptions, PageCache};
use crate::fs::ext4::journal::metadata::Metadata;
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::space::group::{Group, load_groups};
use crate::fs::ext4::space::inode_place;
use std::ops::Range;
use std::sync::Arc;

/// The blocks of a group that its bitmap has in use.
#[derive(Debug)]
pub struct UsedBlocks {
    /// The group on the device, in bytes. The first group includes what precedes it.
    pub group: Range<u64>,
    /// The parts in use, in order.
    pub ranges: Vec<Range<u64>>,
    /// Error of a damaged or unreadable bitmap: all of the group counts as in use.
    pub damage: Option<Error>,
}

/// Reads the structures of an unmounted ext4. Counterpart: debugfs(8).
pub struct Ext4Inspector {
    pub(super) device: Arc<dyn Device>,
    pub(super) superblock: Superblock,
    pub(super) metadata: Metadata,
    pub(super) groups: Mutex<Vec<Group>>,
}

impl Ext4Inspector {
    /// Opens the file system on `device`, without a replay of its journal.
    ///
    /// # Errors
    /// EUCLEAN for a damaged superblock or group descriptor, EOPNOTSUPP for an unknown feature.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        let open = || {
            let superblock = Superblock::load(&*device)?;
            let cache = PageCache::new(CacheOptions {
                background_writeback: false,
                ..CacheOptions::default()
            });
            let metadata = Metadata::new(
                &cache.writeback(),
                device.clone(),
                superblock.block_size,
                superblock.block_count,
            );
            let groups = Mutex::new(load_groups(&superblock, &metadata)?);
            Ok((superblock, metadata, groups))
        };
        let (superblock, metadata, groups) = open().map_err(|e: Error| e.at("ext4"))?;
        Ok(Self {
            device,
            superblock,
            metadata,
            groups,
        })
    }

    /// Returns the number of bytes per block.
    pub fn block_size(&self) -> u64 {
        self.superblock.block_size as u64
    }

    /// Returns the number of blocks.
    pub fn block_count(&self) -> u64 {
        self.superblock.block_count
    }

    /// Returns the bytes of inode `number`.
    pub(super) fn inode_bytes(&self, number: u32) -> Result<Vec<u8>> {
        let superblock = &self.superblock;
        superblock.check_inode_number(number.into())?;
        let (group, index) = inode_place(superblock, number);
        let table = self.groups.lock()[group as usize].inode_table();
        let mut bytes = vec![0; superblock.inode_size];
        let offset = table * self.block_size() + u64::from(index) * superblock.inode_size as u64;
        self.device
            .read_at(&mut bytes, offset)
            .map_err(|e| e.at(format!("inode {number}")))?;
        Ok(bytes)
    }

    /// Reads one block.
    pub(super) fn block(&self, number: u64) -> Result<Vec<u8>> {
        let block = self.metadata.block(PhysicalBlock(number))?;
        let bytes = block.read().to_vec();
        Ok(bytes)
    }

    /// Whether the bitmap of inodes has `number` in use. debugfs: `testi`.
    ///
    /// # Errors
    /// EUCLEAN for an inode number that does not exist, and for a damaged bitmap.
    pub fn is_inode_used(&self, number: u32) -> Result<bool> {
        self.superblock.check_inode_number(number.into())?;
        let (group, index) = inode_place(&self.superblock, number);
        let mut groups = self.groups.lock();
        let bitmap = groups[group as usize].load_inodes(group, &self.superblock, &self.metadata)?;
        Ok(bitmap.is_set(index))
    }

    /// Whether the bitmap of blocks has `block` in use. debugfs: `testb`.
    ///
    /// # Errors
    /// EUCLEAN for a block that does not exist, and for a damaged bitmap.
    pub fn is_block_used(&self, block: u64) -> Result<bool> {
        let superblock = &self.superblock;
        if !(superblock.first_data_block..superblock.block_count).contains(&block) {
            let (first, end) = (superblock.first_data_block, superblock.block_count);
            return Err(Error::corrupt(format!(
                "block {block} is outside of the blocks {first} to {}",
                end - 1
            )));
        }
        let (group, index) = superblock.group_of(block);
        let mut groups = self.groups.lock();
        let bitmap = groups[group as usize].load_blocks(group, superblock, &self.metadata)?;
        Ok(bitmap.is_set(index / superblock.cluster_blocks))
    }

    /// Returns the blocks that the bitmaps have in use, group by group; reads one bitmap each.
    /// Counterpart: dumpe2fs(8), "Free blocks".
    pub fn used_blocks(&self) -> impl Iterator<Item = UsedBlocks> {
        (0..self.superblock.group_count).map(|number| self.used_in_group(number))
    }

    fn used_in_group(&self, number: u32) -> UsedBlocks {
        let (superblock, size) = (&self.superblock, self.block_size());
        let (start, len) = (superblock.group_start(number), superblock.group_len(number));
        let on_device = |run: Range<u32>| {
            let place = |cluster: u32| {
                let block = cluster.saturating_mul(superblock.cluster_blocks).min(len);
                (start + u64::from(block)) * size
            };
            place(run.start)..place(run.end)
        };
        let first = if number == 0 { 0 } else { start * size };
        let mut used = UsedBlocks {
            group: first..on_device(0..len).end,
            ranges: Vec::new(),
            damage: None,
        };
        let mut groups = self.groups.lock();
        let group = &mut groups[number as usize];
        match group.load_blocks(number, superblock, &self.metadata) {
            Ok(bitmap) => {
                // What precedes the first group, such as a boot sector.
                used.ranges
                    .extend((first < start * size).then_some(first..start * size));
                used.ranges.extend(bitmap.set_runs().map(on_device));
            }
            Err(error) => {
                used.ranges.push(used.group.clone());
                used.damage = Some(error.at("ext4"));
            }
        }
        // All bitmaps of a large file system would take much memory.
        group.blocks = None;
        used
    }
}
