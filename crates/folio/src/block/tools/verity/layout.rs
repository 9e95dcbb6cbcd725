//! Where the levels of a hash tree are.

use super::DIGEST_BYTES;
use super::superblock::{BLOCK_BYTES, SUPERBLOCK_BYTES, VeritySuperblock};
use crate::base::{Error, Result};
use crate::block::Device;

/// One level of a tree: hash blocks, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeLevel {
    /// Offset on the hash device, in bytes.
    pub(super) start_bytes: u64,
    pub(super) blocks: u64,
}

/// The levels of a tree, that over the data first; none over a single block of data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TreeLayout {
    pub(super) levels: Vec<TreeLevel>,
    /// The end of the tree on the hash device.
    pub(super) end_bytes: u64,
}

impl TreeLayout {
    /// Returns the layout of the tree whose superblock is at `offset` of the hash device.
    ///
    /// # Errors
    ///
    /// EUCLEAN for more data than a device has.
    pub(super) fn new(superblock: &VeritySuperblock, offset: u64) -> Result<Self> {
        let too_large = || Error::corrupt("verity tree: more blocks than a device has");
        let block_bytes = u64::from(superblock.hash_block_bytes);
        let per_block = block_bytes / DIGEST_BYTES as u64;
        let mut counts = Vec::new();
        let mut blocks = superblock.data_blocks;
        while blocks > 1 {
            blocks = blocks.div_ceil(per_block);
            counts.push(blocks);
        }
        let mut end_bytes = offset
            .checked_add(SUPERBLOCK_BYTES)
            .and_then(|end| end.checked_next_multiple_of(block_bytes))
            .ok_or_else(too_large)?;
        let mut levels = Vec::with_capacity(counts.len());
        // The level of the root comes first.
        for blocks in counts.into_iter().rev() {
            levels.push(TreeLevel {
                start_bytes: end_bytes,
                blocks,
            });
            end_bytes = blocks
                .checked_mul(block_bytes)
                .and_then(|len| end_bytes.checked_add(len))
                .ok_or_else(too_large)?;
        }
        levels.reverse();
        Ok(Self { levels, end_bytes })
    }

    /// Returns the layout of a tree that `hash` has.
    ///
    /// # Errors
    ///
    /// EUCLEAN if it leaves the device.
    pub(super) fn on_device(
        superblock: &VeritySuperblock,
        hash: &dyn Device,
        offset: u64,
    ) -> Result<Self> {
        let layout = Self::new(superblock, offset)?;
        if layout.end_bytes > hash.len_bytes() {
            return Err(Error::corrupt("verity tree: it leaves the device"));
        }
        Ok(layout)
    }
}

/// Returns the bytes of superblock and tree over `data_blocks` blocks of 4096 bytes.
pub fn hash_area_bytes(data_blocks: u64) -> u64 {
    let per_block = BLOCK_BYTES / DIGEST_BYTES as u64;
    let (mut all, mut blocks) = (1_u64, data_blocks);
    while blocks > 1 {
        blocks = blocks.div_ceil(per_block);
        all += blocks;
    }
    all.saturating_mul(BLOCK_BYTES)
}

/// Returns the number of data blocks of an image of `len_bytes` bytes that ends with its hash area,
/// if there is such a number.
pub fn appended_data_blocks(len_bytes: u64) -> Option<u64> {
    let (mut low, mut high) = (1, len_bytes / BLOCK_BYTES);
    while low < high {
        let middle = low + (high - low) / 2;
        let data_bytes = middle * BLOCK_BYTES;
        if data_bytes.saturating_add(hash_area_bytes(middle)) < len_bytes {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let total = low.checked_mul(BLOCK_BYTES)?;
    (total.checked_add(hash_area_bytes(low)) == Some(len_bytes)).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(data_blocks: u64, offset: u64) -> Result<TreeLayout> {
        let superblock = VeritySuperblock::new([0; 16], data_blocks, Vec::new());
        TreeLayout::new(&superblock.unwrap(), offset)
    }

    #[test]
    fn root_level_precedes_level_of_the_data() {
        let tree = layout(129, 0).unwrap();
        let level = |block: u64, blocks| TreeLevel {
            start_bytes: block * BLOCK_BYTES,
            blocks,
        };
        assert_eq!(tree.levels, [level(2, 2), level(1, 1)]);
        assert_eq!(tree.end_bytes, 4 * BLOCK_BYTES);
        assert_eq!(layout(1, 8192).unwrap().levels, []);
        assert_eq!(layout(128, 8192).unwrap().levels, [level(3, 1)]);
        assert!(layout(u64::MAX, 0).is_err());
        assert!(layout(2, u64::MAX - 5).is_err());
    }

    #[test]
    fn appended_area_is_found_by_the_length() {
        for data_blocks in (1..700).chain([16_383, 16_384, 16_385, 1 << 40]) {
            let area = hash_area_bytes(data_blocks);
            assert_eq!(area, layout(data_blocks, 0).unwrap().end_bytes);
            let len = data_blocks * BLOCK_BYTES + area;
            assert_eq!(appended_data_blocks(len), Some(data_blocks));
            assert_eq!(appended_data_blocks(len + 1), None);
        }
        // Between one hash block and two.
        assert_eq!(appended_data_blocks(131 * BLOCK_BYTES), None);
        assert_eq!(appended_data_blocks(0), None);
        assert_eq!(appended_data_blocks(u64::MAX), None);
    }
}
