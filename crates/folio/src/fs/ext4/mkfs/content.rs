//! The least size of a file system for a known content: counts of inodes and blocks, added up
//! before the first write.
//!
//! ```text
//!   FileTreeSize   files, directories, links, attributes -> inodes, and blocks per block size
//!      v
//!   least_size     the smallest device whose layout has that many free blocks and inodes
//! ```
//!
//! Directories are counted by inserting their names into a model of the hash tree, because leaves
//! that split in phase are between half and almost full.

use super::geometry::{Geometry, INODE_LEN};
use super::layout::Layout;
use super::options::FormatOptions;
use super::write::EXTRA_LEN;
use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{
    EXTENT_ENTRY_LEN, EXTENT_LEN_MAX, FIRST_INODE, INODE_BASE_LEN,
};
use std::ops::Range;

const MIB: u64 = 1 << 20;
/// Block sizes that mke2fs chooses by the size of the device.
const DEFAULT_BLOCK_SIZES: [u32; 2] = [1024, 4096];
/// Devices from this size on get blocks of 4 KiB by default.
const LARGE_DEVICE_BYTES: u64 = 512 * MIB;
/// Extents in an inode.
const ROOT_EXTENTS_MAX: u64 = 4;
/// The longest target of a symbolic link that is stored in the inode, plus one.
const FAST_SYMLINK_MAX: u64 = 60;
/// `.` and `..` in a directory block.
const DOT_ENTRIES_LEN: usize = 24;
/// The checksum at the end of a directory block.
const DIRECTORY_TAIL_LEN: usize = 12;
/// Header of a directory entry.
const DIRECTORY_ENTRY_LEN: usize = 8;
/// Bytes of the attributes in an inode, without the magic number before and the zeros after them.
const XATTR_AREA_LEN: usize = INODE_LEN as usize - INODE_BASE_LEN - EXTRA_LEN as usize - 8;
/// Header of an extended attribute.
const XATTR_ENTRY_LEN: usize = 16;
/// Bytes of extra space per additional inode.
const EXTRA_INODE_RATIO: u64 = 16384;

/// Space beyond the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExtraSpace {
    /// No more than the content needs.
    #[default]
    None,
    /// A share of the least size, in percent.
    Percent(u32),
    /// A number of bytes.
    Bytes(u64),
}

/// The inodes and blocks of a tree of files in a new ext4.
#[derive(Debug, Clone)]
pub struct FileTreeSize {
    inodes: u64,
    /// For each possible block size.
    blocks: Vec<BlockCount>,
}

/// A number of blocks of one size.
#[derive(Debug, Clone, Copy)]
struct BlockCount {
    block_size: u32,
    count: u64,
}

/// The size of a file system for a known content.
#[derive(Debug, Clone)]
pub struct LeastSize {
    /// Bytes of the device.
    pub len_bytes: u64,
    /// Options for [`super::format`]: those given, with block size and number of inodes.
    pub options: FormatOptions,
}

impl FileTreeSize {
    /// Returns the size of an empty tree, for a file system with these options.
    pub fn new(options: &FormatOptions) -> Self {
        let sizes = match &options.block_size {
            Some(size) => std::slice::from_ref(size),
            None => &DEFAULT_BLOCK_SIZES[..],
        };
        Self {
            inodes: 0,
            blocks: sizes
                .iter()
                .map(|size| BlockCount {
                    block_size: *size,
                    count: 0,
                })
                .collect(),
        }
    }

    fn add(&mut self, count: impl Fn(u64) -> u64) {
        for blocks in &mut self.blocks {
            let more = count(u64::from(blocks.block_size));
            blocks.count = blocks.count.saturating_add(more);
        }
    }

    /// Adds a file with data in the byte ranges `data`, in ascending order; the rest are holes.
    pub fn add_file(&mut self, data: &[Range<u64>]) {
        self.inodes += 1;
        self.add(|block_size| file_blocks(data, block_size));
    }

    /// Adds a directory with entries of these names.
    pub fn add_directory<'a>(&mut self, names: impl IntoIterator<Item = &'a [u8]>) {
        self.inodes += 1;
        let names: Vec<DirectoryName> = names
            .into_iter()
            .map(|name| DirectoryName {
                hash: crc32c(!0, name),
                len: (DIRECTORY_ENTRY_LEN + name.len()).next_multiple_of(4),
            })
            .collect();
        self.add(|block_size| directory_blocks(&names, block_size as usize));
    }

    /// Adds a symbolic link with a target of this length in bytes.
    pub fn add_symlink(&mut self, target_len: u64) {
        self.inodes += 1;
        self.add(|_| u64::from(target_len >= FAST_SYMLINK_MAX));
    }

    /// Adds a device node, FIFO or socket.
    pub fn add_special(&mut self) {
        self.inodes += 1;
    }

    /// Adds the extended attributes of one file: pairs of name and value.
    pub fn add_xattrs(&mut self, xattrs: &[(Vec<u8>, Vec<u8>)]) {
        let stored = |(name, value): &(Vec<u8>, Vec<u8>)| {
            // The prefix of a name is stored as a number.
            let prefix = name
                .iter()
                .position(|byte| *byte == b'.')
                .map_or(0, |at| at + 1);
            (XATTR_ENTRY_LEN + name.len() - prefix).next_multiple_of(4)
                + value.len().next_multiple_of(4)
        };
        if xattrs.iter().map(stored).sum::<usize>() > XATTR_AREA_LEN {
            self.add(|_| 1);
        }
    }
}

impl LeastSize {
    /// Returns the number of inodes that the content needs, if a file system of `len_bytes` bytes
    /// has fewer by default; else `None`.
    pub fn inodes_beyond_default(&self, len_bytes: u64) -> Option<u32> {
        let needed = self.options.inode_count?;
        let default = Geometry::new(len_bytes, &FormatOptions::default());
        let has_enough = default.is_ok_and(|geometry| geometry.inode_count() >= needed);
        (!has_enough).then_some(needed)
    }
}

/// Returns the smallest size for an ext4 with this content and `extra` space, and the options to
/// format it with.
///
/// # Errors
///
/// EINVAL for an option that is out of range, and for a content that no ext4 can hold.
pub fn least_size(
    content: &FileTreeSize,
    extra: ExtraSpace,
    options: &FormatOptions,
) -> Result<LeastSize> {
    let of = |at: usize| {
        content
            .blocks
            .get(at)
            .map(|blocks| with_extra(content.inodes, *blocks, extra, options))
    };
    let small = of(0).unwrap_or_else(|| Err(Errno::INVAL.into()))?;
    if small.len_bytes < LARGE_DEVICE_BYTES {
        return Ok(small);
    }
    // Many inodes fill more of the smaller groups of small blocks.
    match of(1) {
        Some(Ok(large)) if large.len_bytes / 2 <= small.len_bytes => Ok(large),
        _ => Ok(small),
    }
}

fn with_extra(
    inodes: u64,
    blocks: BlockCount,
    extra: ExtraSpace,
    options: &FormatOptions,
) -> Result<LeastSize> {
    let least = search(inodes, blocks, options)?;
    let extra_bytes = match extra {
        ExtraSpace::None => return Ok(least),
        ExtraSpace::Percent(percent) => {
            u64::try_from(u128::from(least.len_bytes) * u128::from(percent) / 100)
                .unwrap_or(u64::MAX)
        }
        ExtraSpace::Bytes(bytes) => bytes,
    };
    let block_size = blocks.block_size;
    let count = blocks
        .count
        .saturating_add(extra_bytes / u64::from(block_size));
    let inodes = inodes.saturating_add(extra_bytes / EXTRA_INODE_RATIO);
    search(inodes, BlockCount { block_size, count }, options)
}

/// Returns the least size for these counts: found by growing from a size that is too small, and
/// halving the last step.
fn search(inodes: u64, blocks: BlockCount, options: &FormatOptions) -> Result<LeastSize> {
    let BlockCount {
        block_size,
        count: blocks,
    } = blocks;
    let too_large = || Error::new(Errno::INVAL, "content too large for an ext4");
    let page = PAGE_SIZE as u64;
    let inodes32 = u32::try_from(inodes).map_err(|_| too_large())?;
    // Counts are rounded down to whole bytes of each group's bitmap.
    let layout = |pages: u64| {
        let mut inode_count = inodes32.saturating_add(FIRST_INODE + 1);
        inode_count = inode_count.max(options.inode_count.unwrap_or(0));
        loop {
            let options = FormatOptions {
                block_size: Some(block_size),
                inode_count: Some(inode_count),
                ..options.clone()
            };
            let layout = Geometry::new(pages * page, &options).and_then(Layout::new)?;
            let free = layout.geometry.inode_count() - layout.used_inode_count();
            if free >= inodes32 {
                return Ok((layout, options));
            }
            inode_count = inode_count
                .checked_add((inodes32 - free).max(8))
                .ok_or_else(too_large)?;
        }
    };
    let fits = |pages: u64| {
        layout(pages).is_ok_and(|(layout, _)| {
            let slack = 3 * u64::from(layout.geometry.group_count) + blocks / 500 + 4;
            layout.free_block_count() >= blocks.saturating_add(slack)
        })
    };
    let bytes =
        u128::from(blocks) * u128::from(block_size) + u128::from(inodes) * u128::from(INODE_LEN);
    let mut below = u64::try_from(bytes).map_err(|_| too_large())? / page;
    // A group has room for one inode per block.
    let most = (4 * (u128::from(blocks) + u128::from(inodes)) * u128::from(block_size)
        + u128::from(64 * MIB))
        / u128::from(page);
    let mut enough = below + 8;
    while !fits(enough) {
        if u128::from(enough) > most {
            return Err(layout(enough).err().unwrap_or_else(too_large));
        }
        below = enough;
        enough += enough / 100 + 1;
    }
    while enough - below > 1 {
        let middle = below + (enough - below) / 2;
        if fits(middle) {
            enough = middle;
        } else {
            below = middle;
        }
    }
    Ok(LeastSize {
        len_bytes: enough * page,
        options: layout(enough)?.1,
    })
}

/// Returns the blocks of a file: data, and the nodes of its extent tree.
fn file_blocks(data: &[Range<u64>], block_size: u64) -> u64 {
    let (mut blocks, mut extents, mut next) = (0, 0, 0);
    for range in data {
        let first = (range.start / block_size).max(next);
        next = range.end.div_ceil(block_size).max(first);
        blocks += next - first;
        // An extent ends with its group, whose first blocks may be in use.
        let len_max = u64::from(EXTENT_LEN_MAX).min(8 * block_size - block_size / 4);
        extents += (next - first).div_ceil(len_max);
    }
    let per_node = (block_size / EXTENT_ENTRY_LEN as u64 - 2) * 9 / 10;
    let mut nodes = extents;
    while nodes > ROOT_EXTENTS_MAX {
        nodes = nodes.div_ceil(per_node);
        blocks += nodes;
    }
    blocks
}

/// A name in the model of a hash tree.
#[derive(Clone, Copy)]
struct DirectoryName {
    /// Any uniform hash has the statistics of the real one.
    hash: u32,
    /// Bytes of the entry.
    len: usize,
}

/// A leaf of the model.
#[derive(Default)]
struct DirectoryLeaf {
    /// The lowest hash that belongs here.
    first_hash: u32,
    used: usize,
    names: Vec<DirectoryName>,
}

impl DirectoryLeaf {
    fn push(&mut self, name: DirectoryName) {
        self.used += name.len;
        self.names.push(name);
    }

    /// Moves the upper half of the bytes to a new leaf.
    fn split(&mut self) -> Self {
        self.names.sort_unstable_by_key(|name| name.hash);
        let mut upper = Self::default();
        while self.names.len() > 1 && upper.used < self.used {
            if let Some(name) = self.names.pop() {
                self.used -= name.len;
                upper.first_hash = name.hash;
                upper.push(name);
            }
        }
        upper
    }
}

/// Returns the blocks of a directory with these entries, inserted in this order.
fn directory_blocks(names: &[DirectoryName], block_size: usize) -> u64 {
    let room = block_size - DIRECTORY_TAIL_LEN;
    let all: usize = names.iter().map(|name| name.len).sum();
    if all + DOT_ENTRIES_LEN <= room {
        return 1;
    }
    let mut leaves = vec![DirectoryLeaf::default()];
    for name in names {
        let after = leaves.partition_point(|leaf| leaf.first_hash <= name.hash);
        let at = after.saturating_sub(1);
        if leaves[at].used + name.len > room {
            let upper = leaves[at].split();
            leaves.insert(at + 1, upper);
        }
        let at = if leaves
            .get(at + 1)
            .is_some_and(|upper| upper.first_hash <= name.hash)
        {
            at + 1
        } else {
            at
        };
        leaves[at].push(*name);
    }
    let mut blocks = leaves.len() as u64 + 1;
    // Nodes split in halves.
    let (root_max, node_min) = (block_size as u64 / 8 - 5, block_size as u64 / 16 - 1);
    if leaves.len() as u64 > root_max {
        blocks += (leaves.len() as u64).div_ceil(node_min);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_file_have_its_tree() {
        assert_eq!(file_blocks(&[], 4096), 0);
        assert_eq!(file_blocks(std::slice::from_ref(&(0..1)), 4096), 1);
        assert_eq!(file_blocks(&[0..4097, 8000..9000], 4096), 3);
        let holes: Vec<_> = (0..400).map(|at| at * 8192..at * 8192 + 1).collect();
        assert_eq!(file_blocks(&holes, 4096), 402);
        assert_eq!(file_blocks(&holes[..4], 4096), 4);
    }

    #[test]
    fn blocks_of_a_directory_grow_with_its_names() {
        let blocks = |count: u32| {
            let mut tree = FileTreeSize::new(&FormatOptions::default());
            let names: Vec<_> = (0..count).map(|n| format!("name {n:06}")).collect();
            tree.add_directory(names.iter().map(String::as_bytes));
            tree.blocks[1].count
        };
        assert_eq!((blocks(0), blocks(100)), (1, 1));
        // 20 bytes per entry, leaves between half and full.
        for count in [1000, 30_000] {
            let full = u64::from(count) * 20 / 4084;
            assert!(
                (full + 1..=2 * full + 12).contains(&blocks(count)),
                "{count}"
            );
        }
    }

    #[test]
    fn least_size_has_room_for_the_content() {
        for (files, len) in [(0, 0), (1, 100 << 20), (20_000, 300), (400, 4 << 20)] {
            let mut tree = FileTreeSize::new(&FormatOptions::default());
            (0..files).for_each(|_| tree.add_file(std::slice::from_ref(&(0..len))));
            let least = |extra| least_size(&tree, extra, &FormatOptions::default()).unwrap();
            let size = least(ExtraSpace::None);
            assert!(
                size.len_bytes >= files * len.next_multiple_of(1024),
                "{files} of {len}"
            );
            let content_bytes = files * len.next_multiple_of(1024);
            let with_fifth = least(ExtraSpace::Percent(20)).len_bytes;
            assert!(with_fifth >= size.len_bytes + content_bytes * 19 / 100);
            assert!(least(ExtraSpace::Bytes(64 << 20)).len_bytes >= size.len_bytes + (63 << 20));
        }
        let mut tree = FileTreeSize::new(&FormatOptions::default());
        tree.inodes = u64::MAX;
        assert!(least_size(&tree, ExtraSpace::None, &FormatOptions::default()).is_err());
    }
}
