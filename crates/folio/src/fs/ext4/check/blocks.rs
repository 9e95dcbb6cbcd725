//! Block ownership: counts each file's claims and reports blocks claimed twice.

use super::checker::Checker;
use super::facts::{BAD_BLOCKS_INODE, DirectoryBlock};
use super::fix::Fix;
use super::report::{CheckedStructure, FindingLocation};
use crate::block::Device;
use crate::fs::ext4::layout::features::RoCompat;
use std::ops::Range;

/// A file whose blocks are being claimed.
pub(super) struct BlockOwner {
    /// Inode number.
    pub(super) number: u32,
    /// The structure that maps the blocks.
    pub(super) structure: CheckedStructure,
    /// Seed of the checksums of its metadata blocks, with metadata_csum.
    pub(super) seed: Option<u32>,
    /// Whether the file is a directory.
    pub(super) is_directory: bool,
    /// Clusters claimed so far, the count in `i_blocks`.
    pub(super) clusters: u64,
    /// The last cluster claimed for data: its number in the file and on the device. Further blocks
    /// in it are not counted again.
    last: Option<(u64, u64)>,
    /// One past the last mapped file block.
    pub(super) end: u64,
    /// One past the last mapped file block that is not unwritten.
    pub(super) written_end: u64,
    /// The first device block of data.
    pub(super) first_data: Option<u64>,
    /// The mapping, for files that the check itself reads: (file block, device block, number of
    /// blocks).
    pub(super) runs: Option<Vec<(u64, u64, u64)>>,
    /// Whether the mapping has an error. Its block count is then not compared.
    pub(super) is_damaged: bool,
    /// Whether a repair may give it copies of data blocks that it shares.
    pub(super) may_be_copied: bool,
}

/// Blocks of a run that a repair copies, at most.
const COPIED_BLOCKS_MAX: u64 = 1 << 14;

/// Runs that the check stores per file, at most.
const RUNS_MAX: usize = 1 << 16;

impl BlockOwner {
    /// Creates the owner of no blocks.
    pub(super) fn new(number: u32, structure: CheckedStructure, seed: Option<u32>) -> Self {
        Self {
            number,
            structure,
            seed,
            is_directory: false,
            clusters: 0,
            last: None,
            end: 0,
            written_end: 0,
            first_data: None,
            runs: None,
            is_damaged: false,
            may_be_copied: false,
        }
    }

    /// Returns the inode as a location.
    pub(super) fn location(&self) -> FindingLocation {
        FindingLocation::inode(self.number)
    }
}

impl Checker<'_> {
    /// Returns whether `range` is inside the file system, so that a file may own it.
    pub(super) fn is_inside(&self, range: &Range<u64>) -> bool {
        range.start >= self.sb.first_data_block.max(1)
            && range.end <= self.sb.block_count
            && range.start < range.end
    }

    /// Returns the cluster number of a block: its bit in the concatenated bitmaps.
    pub(super) fn cluster_of(&self, block: u64) -> u64 {
        (block - self.sb.first_data_block) / u64::from(self.sb.cluster_blocks)
    }

    /// Claims the device blocks of `range` as data at file block `logical`. The range must pass
    /// [`Self::is_inside`].
    pub(super) fn claim_data(
        &mut self,
        owner: &mut BlockOwner,
        logical: u64,
        range: Range<u64>,
        is_written: bool,
    ) {
        let len = range.end - range.start;
        owner.end = owner.end.max(logical + len);
        if is_written {
            owner.written_end = owner.written_end.max(logical + len);
        }
        owner.first_data.get_or_insert(range.start);
        if let Some(runs) = &mut owner.runs
            && runs.len() < RUNS_MAX
        {
            runs.push((logical, range.start, len));
        }
        let ratio = u64::from(self.sb.cluster_blocks);
        let (mut first, end) = (
            self.cluster_of(range.start),
            self.cluster_of(range.end - 1) + 1,
        );
        if ratio > 1 {
            if logical % ratio != (range.start - self.sb.first_data_block) % ratio {
                let what = format_args!(
                    "file block {logical} and device block {} have different offsets in their clusters",
                    range.start
                );
                self.report.error(owner.structure, owner.location(), what);
            }
            if owner.last == Some((logical / ratio, first)) {
                first += 1;
            }
            owner.last = Some(((logical + len - 1) / ratio, end - 1));
        }
        owner.clusters += end - first;
        if owner.is_directory {
            // A directory block is read once, even if several directories claim it.
            for (block, logical) in range.clone().zip(logical..) {
                if self.directory_blocks_seen.insert(block) {
                    self.directory_blocks
                        .push(DirectoryBlock { logical, block });
                }
            }
        }
        let claimed = self.used.insert_range(first..end);
        self.report_double_claim(owner, claimed, &range);
        let may_be_copied = owner.may_be_copied && ratio == 1 && len <= COPIED_BLOCKS_MAX;
        if claimed > 0 && may_be_copied && self.system.next(range).is_none() {
            // Both owners then read what they read before.
            let blocks = u32::try_from(logical)
                .and_then(|first| u32::try_from(logical + len).map(|end| first..end));
            if let Ok(blocks) = blocks {
                self.report.fix(Fix::Unshare(owner.number, blocks));
            }
        }
    }

    /// Claims a metadata block of a file. Returns whether the block may be read as such: it is
    /// inside the file system and no other owner has claimed it.
    pub(super) fn claim_metadata(&mut self, owner: &mut BlockOwner, block: u64) -> bool {
        if !self.is_inside(&(block..block + 1)) {
            let what = format_args!("points to block {block}, outside the file system");
            self.report.error(owner.structure, owner.location(), what);
            owner.is_damaged = true;
            return false;
        }
        owner.clusters += 1;
        let cluster = self.cluster_of(block);
        let is_new = self.used.insert(cluster);
        self.report_double_claim(owner, u64::from(!is_new), &(block..block + 1));
        is_new
    }

    /// Returns whether a block is in the list of bad blocks.
    pub(super) fn is_bad_block(&self, block: u64) -> bool {
        self.bad_blocks.next(block..block + 1).is_some()
    }

    /// Reports `claimed` clusters of `range` that had an owner already.
    fn report_double_claim(&mut self, owner: &BlockOwner, claimed: u64, range: &Range<u64>) {
        if claimed == 0 || self.sb.features.ro_compat.contains(RoCompat::SHARED_BLOCKS) {
            return;
        }
        let is_metadata = self.system.next(range.clone()).is_some();
        let head = self.sb.head_of_group(0);
        let is_primary = range.start < head.end && head.start < range.end;
        if is_metadata && owner.number == BAD_BLOCKS_INODE && !is_primary {
            // A bad block of an inode table keeps its place.
            return;
        }
        let state = if is_metadata {
            "in use by file system metadata"
        } else {
            "claimed by another inode, or twice by this one"
        };
        let what = match range.end - range.start {
            1 => format!("block {} is {state}", range.start),
            len => format!(
                "{claimed} of the {len} blocks from {} are {state}",
                range.start
            ),
        };
        self.report.error(
            CheckedStructure::Blocks,
            owner.location(),
            format_args!("{what}"),
        );
    }

    /// Checks that the image can provide all blocks in use, without reading them. A qcow2 whose
    /// file was cut short maps some of them beyond its end.
    pub(super) fn check_stored(&mut self, device: &dyn Device) {
        let ratio = u64::from(self.sb.cluster_blocks);
        let cluster_bytes = ratio * self.sb.block_size as u64;
        let end = self.sb.block_count.div_ceil(ratio);
        let base = self.sb.first_data_block * self.sb.block_size as u64;
        let (mut lost, mut first_error, mut at) = (0, None, 0);
        while let Some(cluster) = self.used.next(at..end) {
            let offset = base + cluster * cluster_bytes;
            let left = device.len_bytes().saturating_sub(offset);
            if left == 0 {
                break;
            }
            at = cluster + 1;
            match device.allocation(offset, left) {
                // A part of a cluster is asked for again.
                Ok((_, count)) => at = at.max(cluster + count / cluster_bytes),
                Err(error) => {
                    lost += ratio;
                    let block = self.sb.first_data_block + cluster * ratio;
                    first_error.get_or_insert((block, error));
                }
            }
        }
        if let Some((block, error)) = first_error {
            let what = format_args!("{lost} blocks in use are missing from the image: {error}");
            self.report.error(
                CheckedStructure::Blocks,
                FindingLocation::block(block),
                what,
            );
        }
    }

    /// Reads a block into `bytes`; returns whether it could be read. An unreadable block is
    /// reported and leaves `bytes` zeroed.
    pub(super) fn read_block(
        &mut self,
        block: u64,
        bytes: &mut Vec<u8>,
        structure: CheckedStructure,
        location: FindingLocation,
    ) -> bool {
        let size = self.sb.block_size;
        bytes.clear();
        bytes.resize(size, 0);
        let Some(offset) = block.checked_mul(size as u64) else {
            return false;
        };
        match self.device.read_at(bytes, offset) {
            Ok(()) => true,
            Err(error) => {
                bytes.fill(0);
                self.report.error(
                    structure,
                    location.at_block(block),
                    format_args!("cannot be read: {error}"),
                );
                false
            }
        }
    }
}
