//! Changes that no flush has made durable yet: two layers over the map.
//!
//! ```text
//!   pending     blocks that changed since the last flush began
//!   flushing    blocks of the flush that runs; none else
//!   map         the last flush
//! ```
//!
//! A block is read from the first line that has it.

use crate::format::{BLOCK_BYTES, BlockRef, GROUP_BLOCKS, Place, SEGMENT_BLOCKS};
use crate::map::VolumeMap;
use bytes::Bytes;
use folio::{Errno, Error, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Blocks of which the state knows that a write changed them in part.
const PARTIAL_BLOCKS_MAX: usize = 64;

/// A changed block.
#[derive(Clone)]
pub(crate) enum Slot {
    /// In memory. The version differs for each content of the block.
    Data { bytes: Bytes, version: u64 },
    /// Uploaded; not in the map.
    Stored(BlockRef),
    /// Removed.
    Zero,
}

/// Changed blocks by number.
pub(crate) type Layer = BTreeMap<u64, Slot>;

/// A block on its way into a segment.
pub(crate) struct Outgoing {
    pub(crate) block: u64,
    pub(crate) version: u64,
    pub(crate) bytes: Bytes,
}

/// The source of a block's bytes.
pub(crate) enum Source {
    Bytes(Bytes),
    Stored(BlockRef),
    Zero,
}

/// The volume's content in memory: the map and the changes over it.
pub(crate) struct State {
    pub(crate) map: VolumeMap,
    pub(crate) pending: Layer,
    pub(crate) flushing: Layer,
    /// Blocks of `pending` that no upload has.
    fresh: BTreeSet<u64>,
    versions: u64,
    /// Blocks that a write changed in part, the last ones.
    partial: VecDeque<u64>,
    /// The number of flushes that began.
    pub(crate) generation: u64,
    /// Uploads under way, by the generation they began in.
    uploads: BTreeMap<u64, usize>,
    /// The failure after which nothing more is acknowledged.
    failure: Option<(Errno, String)>,
    /// The map names this writer.
    pub(crate) is_recorded: bool,
}

impl State {
    /// Returns the state after a load.
    pub(crate) fn new(map: VolumeMap) -> Self {
        Self {
            map,
            pending: Layer::new(),
            flushing: Layer::new(),
            fresh: BTreeSet::new(),
            versions: 0,
            partial: VecDeque::new(),
            generation: 0,
            uploads: BTreeMap::new(),
            failure: None,
            is_recorded: false,
        }
    }

    /// Replaces the content by that of a map this writer committed. Versions and generations go on,
    /// so that an upload under way cannot be taken for one of the new content.
    pub(crate) fn replace(&mut self, map: VolumeMap) {
        self.map = map;
        self.pending.clear();
        self.flushing.clear();
        self.fresh.clear();
        self.is_recorded = true;
    }

    /// Returns the failure of an earlier flush or upload.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some((errno, reason)) => Err(Error::new(*errno, reason.clone())),
        }
    }

    /// Returns the failure if the store did not answer: a read would take the I/O timeout too.
    pub(crate) fn check_answering(&self) -> Result<()> {
        match &self.failure {
            Some((Errno::TIMEDOUT | Errno::HOSTUNREACH, _)) => self.check(),
            _ => Ok(()),
        }
    }

    /// Records a failure: from now on every change and every flush fails with it.
    pub(crate) fn fail(&mut self, error: &Error) {
        if self.failure.is_none() {
            self.failure = Some((error.errno(), error.to_string()));
        }
    }

    /// Sets a block's bytes. Zeros are not stored.
    pub(crate) fn set(&mut self, block: u64, bytes: Bytes) {
        if bytes.iter().all(|&byte| byte == 0) {
            self.clear(block);
            return;
        }
        self.versions += 1;
        let version = self.versions;
        self.pending.insert(block, Slot::Data { bytes, version });
        // Also if an upload has older bytes of it: `end_upload` knows them by their version.
        self.fresh.insert(block);
    }

    /// Notes that a write changed a part of a block: more such writes are likely.
    pub(crate) fn note_partial(&mut self, block: u64) {
        if self.is_partial(block) {
            return;
        }
        self.partial.push_back(block);
        if self.partial.len() > PARTIAL_BLOCKS_MAX {
            self.partial.pop_front();
        }
    }

    /// Returns whether a write changed a part of the block lately.
    pub(crate) fn is_partial(&self, block: u64) -> bool {
        self.partial.contains(&block)
    }

    /// Removes a block's bytes.
    pub(crate) fn clear(&mut self, block: u64) {
        self.fresh.remove(&block);
        if self.flushing.contains_key(&block) || self.map.blocks(block, 1)[0].is_some() {
            // Without an entry the layers below would show their bytes again.
            self.pending.insert(block, Slot::Zero);
        } else {
            self.pending.remove(&block);
        }
    }

    /// Removes the bytes of `first..end`, at a cost that grows with what is stored there.
    pub(crate) fn clear_range(&mut self, first: u64, end: u64) {
        let mut stored: BTreeSet<u64> = self.pending.range(first..end).map(|(b, _)| *b).collect();
        stored.extend(self.flushing.range(first..end).map(|(b, _)| *b));
        let mut group = first / GROUP_BLOCKS;
        while let Some(next) = self.map.next_group(group) {
            let start = next * GROUP_BLOCKS;
            if start >= end {
                break;
            }
            let blocks = self.map.group(next);
            let numbers = (start..).zip(blocks);
            stored.extend(
                numbers
                    .filter(|(block, found)| found.is_some() && (first..end).contains(block))
                    .map(|(block, _)| block),
            );
            group = next + 1;
        }
        for block in stored {
            self.clear(block);
        }
    }

    /// Returns the number of blocks in memory that no upload has.
    #[cfg(test)]
    pub(crate) fn fresh_blocks(&self) -> usize {
        self.fresh.len()
    }

    /// Begins an upload and takes its blocks, if enough for a segment wait.
    pub(crate) fn full_segment(&mut self) -> Option<(u64, Vec<Outgoing>)> {
        if self.fresh.len() < SEGMENT_BLOCKS {
            return None;
        }
        self.begin_upload(self.generation);
        Some((self.generation, self.take_fresh(SEGMENT_BLOCKS)))
    }

    /// Takes up to `limit` blocks that no upload has.
    fn take_fresh(&mut self, limit: usize) -> Vec<Outgoing> {
        let blocks: Vec<u64> = self.fresh.iter().copied().take(limit).collect();
        let mut taken = Vec::with_capacity(blocks.len());
        for block in blocks {
            self.fresh.remove(&block);
            if let Some(Slot::Data { bytes, version }) = self.pending.get(&block) {
                taken.push(Outgoing {
                    block,
                    version: *version,
                    bytes: bytes.clone(),
                });
            }
        }
        taken
    }

    /// Begins a flush and returns the blocks that no upload has.
    pub(crate) fn begin_flush(&mut self) -> Vec<Outgoing> {
        // First: it finds the bytes in the pending layer.
        let rest = self.take_fresh(usize::MAX);
        self.flushing = std::mem::take(&mut self.pending);
        self.generation += 1;
        rest
    }

    /// Adds the blocks that the map itself holds to the flush that began.
    pub(crate) fn fold_inline(&mut self, rest: &mut Vec<Outgoing>) {
        let inline: Vec<(u64, Bytes)> = self
            .map
            .inline_blocks()
            .iter()
            .filter(|(block, _)| !self.flushing.contains_key(block))
            .map(|(block, bytes)| (*block, bytes.clone()))
            .collect();
        for (block, bytes) in inline {
            self.versions += 1;
            let version = self.versions;
            let slot = Slot::Data {
                bytes: bytes.clone(),
                version,
            };
            self.flushing.insert(block, slot);
            rest.push(Outgoing {
                block,
                version,
                bytes,
            });
        }
    }

    /// Counts an upload that begins.
    pub(crate) fn begin_upload(&mut self, generation: u64) {
        *self.uploads.entry(generation).or_default() += 1;
    }

    /// Records the end of an upload of `blocks`.
    pub(crate) fn end_upload(
        &mut self,
        generation: u64,
        blocks: &[(u64, u64)],
        result: Result<Vec<BlockRef>>,
    ) {
        if let Some(count) = self.uploads.get_mut(&generation) {
            *count -= 1;
            if *count == 0 {
                self.uploads.remove(&generation);
            }
        }
        let stored = match result {
            Ok(stored) => stored,
            Err(error) => return self.fail(&error),
        };
        for (&(block, expected), stored) in blocks.iter().zip(stored) {
            // A block that was written again keeps the newer bytes until their own upload.
            for layer in [&mut self.pending, &mut self.flushing] {
                if let Some(slot) = layer.get_mut(&block)
                    && matches!(slot, Slot::Data { version, .. } if *version == expected)
                {
                    *slot = Slot::Stored(stored);
                }
            }
        }
    }

    /// Returns whether an upload of a generation up to `generation` is under way.
    pub(crate) fn is_uploading(&self, generation: u64) -> bool {
        self.uploads.range(..=generation).next().is_some()
    }

    /// Returns the source of each of `count` blocks from `first` on.
    pub(crate) fn sources(&self, first: u64, count: u64) -> Vec<Source> {
        let range = first..first + count;
        let mut found: Vec<Source> = (first..)
            .zip(self.map.blocks(first, count))
            .map(|(block, stored)| map_source(&self.map, block, stored))
            .collect();
        // From the oldest to the newest: the last one wins.
        for layer in [&self.flushing, &self.pending] {
            for (&block, slot) in layer.range(range.clone()) {
                found[(block - first) as usize] = match slot {
                    Slot::Data { bytes, .. } => Source::Bytes(bytes.clone()),
                    Slot::Stored(stored) => Source::Stored(*stored),
                    Slot::Zero => Source::Zero,
                };
            }
        }
        found
    }

    /// Returns whether a block is stored.
    pub(crate) fn is_stored(&self, block: u64) -> bool {
        !matches!(self.sources(block, 1)[0], Source::Zero)
    }

    /// Returns the first block at or behind `block` that a layer or the map may have.
    pub(crate) fn next_known(&self, block: u64) -> Option<u64> {
        let in_map = self
            .map
            .next_group(block / GROUP_BLOCKS)
            .map(|group| (group * GROUP_BLOCKS).max(block));
        let in_layers = [&self.pending, &self.flushing]
            .into_iter()
            .filter_map(|layer| layer.range(block..).next().map(|(b, _)| *b));
        in_layers.chain(in_map).min()
    }
}

/// Returns the source of a block whose reference in a map is `stored`.
pub(crate) fn map_source(map: &VolumeMap, block: u64, stored: Option<BlockRef>) -> Source {
    match stored {
        None => Source::Zero,
        Some(stored) if stored.place == Place::Inline => match map.inline(block) {
            Some(bytes) => Source::Bytes(bytes),
            None => Source::Zero,
        },
        Some(stored) => Source::Stored(stored),
    }
}

/// Returns the bytes of a block in a request's buffer.
pub(crate) fn block_range(n: usize) -> std::ops::Range<usize> {
    n * BLOCK_BYTES..(n + 1) * BLOCK_BYTES
}
