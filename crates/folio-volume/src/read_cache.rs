//! The read cache: parts of segments in memory. A read of one block brings its neighbors, so that
//! the metadata of a file system takes few requests.

use crate::format::{BLOCK_BYTES, BlockRef, Place, SegmentId};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// Blocks of a part: 64 KiB.
const PART_BLOCKS: u32 = 16;
const PART_BYTES: usize = PART_BLOCKS as usize * BLOCK_BYTES;
/// Parts in memory: 32 MiB.
const PARTS_MAX: usize = 512;

/// Parts of segments in memory; the oldest leaves first.
#[derive(Default)]
pub(crate) struct ReadCache {
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    by_place: HashMap<(SegmentId, u32), Bytes>,
    by_age: VecDeque<(SegmentId, u32)>,
}

impl ReadCache {
    /// Returns `count` blocks of a segment from `index` on, if all are in memory.
    pub(crate) fn get(&self, segment: SegmentId, index: u32, count: u32) -> Option<Bytes> {
        let parts = self.parts.lock();
        let mut found = Vec::with_capacity(count as usize * BLOCK_BYTES);
        for block in index..index + count {
            let part = parts.by_place.get(&(segment, block / PART_BLOCKS))?;
            let start = (block % PART_BLOCKS) as usize * BLOCK_BYTES;
            found.extend_from_slice(part.get(start..start + BLOCK_BYTES)?);
        }
        Some(found.into())
    }

    /// Returns the bytes of the parts that hold a range of blocks.
    pub(crate) fn byte_range(index: u32, count: u32) -> Range<u64> {
        let first = index / PART_BLOCKS;
        let end = (index + count).div_ceil(PART_BLOCKS);
        u64::from(first) * PART_BYTES as u64..u64::from(end) * PART_BYTES as u64
    }

    /// Keeps the parts of an uploaded segment that hold a block for which `is_kept` is true.
    pub(crate) fn keep(
        &self,
        stored: &[BlockRef],
        bytes: &[Bytes],
        is_kept: impl Iterator<Item = bool>,
    ) {
        let is_kept: Vec<bool> = is_kept.collect();
        let parts = (0..).step_by(PART_BLOCKS as usize);
        let chunks = is_kept.chunks(PART_BLOCKS as usize);
        for (start, _) in parts.zip(chunks).filter(|(_, kept)| kept.contains(&true)) {
            let Place::Segment { segment, index } = stored[start].place else {
                continue;
            };
            let end = bytes.len().min(start + PART_BLOCKS as usize);
            let part: Vec<u8> = bytes[start..end].concat();
            self.insert(segment, index, &part.into());
        }
    }

    /// Keeps the bytes of parts, of which the first is that of block `index`.
    pub(crate) fn insert(&self, segment: SegmentId, index: u32, bytes: &Bytes) {
        let mut parts = self.parts.lock();
        let first = index / PART_BLOCKS;
        for (part, start) in (first..).zip((0..bytes.len()).step_by(PART_BYTES)) {
            let end = bytes.len().min(start + PART_BYTES);
            let old = parts
                .by_place
                .insert((segment, part), bytes.slice(start..end));
            if old.is_none() {
                parts.by_age.push_back((segment, part));
            }
        }
        while parts.by_age.len() > PARTS_MAX {
            if let Some(oldest) = parts.by_age.pop_front() {
                parts.by_place.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_at_end_of_segment_serves_its_blocks() {
        let cache = ReadCache::default();
        let segment = SegmentId {
            origin: 0,
            epoch: 1,
            number: 2,
        };
        assert_eq!(ReadCache::byte_range(17, 1), 65536..131_072);
        assert_eq!(ReadCache::byte_range(15, 2), 0..131_072);
        // A segment of 18 blocks ends in its second part.
        let bytes: Bytes = (0..18).flat_map(|block| [block; BLOCK_BYTES]).collect();
        cache.insert(segment, 16, &bytes.slice(PART_BYTES..));
        let found = cache.get(segment, 16, 2).unwrap();
        assert_eq!((found[0], found[BLOCK_BYTES]), (16, 17));
        assert_eq!(cache.get(segment, 15, 2), None);
        assert_eq!(cache.get(segment, 17, 2), None);
        for part in 0..PARTS_MAX as u32 {
            cache.insert(
                SegmentId {
                    number: 9,
                    ..segment
                },
                part * 16,
                &bytes,
            );
        }
        assert_eq!(cache.get(segment, 16, 1), None);
    }
}
