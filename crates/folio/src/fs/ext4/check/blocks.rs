//! Who owns which block: claims of files, counted per file, and blocks claimed twice.

use super::Checker;
use super::directories::DirectoryBlock;
use super::report::{Place, Structure};
use crate::fs::ext4::layout::features::RoCompat;
use std::ops::Range;

/// A file while its blocks are claimed.
pub(super) struct Owner {
    /// The inode.
    pub(super) number: u32,
    /// By what it maps its blocks.
    pub(super) structure: Structure,
    /// Seed of the checksums of its metadata blocks, with metadata_csum.
    pub(super) seed: Option<u32>,
    /// Whether the blocks are a directory's.
    pub(super) is_directory: bool,
    /// Clusters claimed so far, which is what `i_blocks` counts.
    pub(super) clusters: u64,
    /// The cluster claimed last for data, in the file and on the device: its next block costs
    /// nothing.
    last: Option<(u64, u64)>,
    /// One past the last file block that is mapped.
    pub(super) end: u64,
    /// One past the last file block that is mapped and written.
    pub(super) written_end: u64,
    /// The first device block of data.
    pub(super) first_data: Option<u64>,
    /// Where the data lies, for files that the check itself reads: (file block, device block,
    /// number).
    pub(super) runs: Option<Vec<(u64, u64, u64)>>,
    /// Whether anything was wrong with the map: sums of its blocks then mean nothing.
    pub(super) is_damaged: bool,
}

/// Runs of one file that the check remembers.
const RUNS_MAX: usize = 1 << 16;

impl Owner {
    /// A file that has claimed nothing yet.
    pub(super) fn new(number: u32, structure: Structure, seed: Option<u32>) -> Self {
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
        }
    }

    /// The file as a place.
    pub(super) fn place(&self) -> Place {
        Place::inode(self.number)
    }
}

impl Checker<'_> {
    /// Whether a file may have blocks of `range` at all.
    pub(super) fn is_inside(&self, range: &Range<u64>) -> bool {
        range.start >= self.sb.first_data_block.max(1)
            && range.end <= self.sb.block_count
            && range.start < range.end
    }

    /// The cluster of a block: the bit of its group's bitmap, counted from group 0.
    pub(super) fn cluster_of(&self, block: u64) -> u64 {
        (block - self.sb.first_data_block) / u64::from(self.sb.cluster_blocks)
    }

    /// Claims data: `range` of device blocks, which must lie inside, at file block `logical`.
    pub(super) fn claim_data(
        &mut self,
        owner: &mut Owner,
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
                    "file block {logical} and device block {} differ in their place in a cluster",
                    range.start
                );
                self.report.error(owner.structure, owner.place(), what);
            }
            if owner.last == Some((logical / ratio, first)) {
                first += 1;
            }
            owner.last = Some(((logical + len - 1) / ratio, end - 1));
        }
        owner.clusters += end - first;
        if owner.is_directory {
            // Each block is read as a directory's once, however many claim it.
            for (block, logical) in range.clone().zip(logical..) {
                if self.directory_blocks_seen.insert(block) {
                    self.directory_blocks
                        .push(DirectoryBlock { logical, block });
                }
            }
        }
        let known = self.used.insert_range(first..end);
        self.report_known(owner, known, &range);
    }

    /// Claims a block of metadata; whether it may be read as such: it lies inside and nobody had
    /// it.
    pub(super) fn claim_metadata(&mut self, owner: &mut Owner, block: u64) -> bool {
        if !self.is_inside(&(block..block + 1)) {
            let what = format_args!("points to block {block}, outside the file system");
            self.report.error(owner.structure, owner.place(), what);
            owner.is_damaged = true;
            return false;
        }
        owner.clusters += 1;
        let cluster = self.cluster_of(block);
        let known = u64::from(!self.used.insert(cluster));
        self.report_known(owner, known, &(block..block + 1));
        known == 0
    }

    fn report_known(&mut self, owner: &Owner, known: u64, range: &Range<u64>) {
        if known == 0 || self.sb.features.ro_compat.contains(RoCompat::SHARED_BLOCKS) {
            return;
        }
        let whose = if self.system.next(range.clone()).is_some() {
            "the file system's own"
        } else {
            "claimed by another, or twice by this one"
        };
        let what = match range.end - range.start {
            1 => format!("block {} is {whose}", range.start),
            len => format!(
                "{known} of the {len} blocks from {} are {whose}",
                range.start
            ),
        };
        self.report
            .error(Structure::Blocks, owner.place(), format_args!("{what}"));
    }

    /// Reads a block into `bytes`; whether it could be read. What could not is told, and reads as
    /// zeros.
    pub(super) fn read_block(
        &mut self,
        block: u64,
        bytes: &mut Vec<u8>,
        structure: Structure,
        place: Place,
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
                    place.at_block(block),
                    format_args!("cannot be read: {error}"),
                );
                false
            }
        }
    }
}
