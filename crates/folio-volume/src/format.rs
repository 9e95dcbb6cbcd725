//! The volume's stored forms: block references, groups of the map, segment names and trailers.
//!
//! Numbers are little-endian, except in keys, whose order is that of their bytes.

use crc_fast::CrcAlgorithm;
use folio::{Errno, Error, Result};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a block, the unit of the map.
pub const BLOCK_BYTES: usize = 4096;
/// The sizes that a disk may have, in bytes.
pub(crate) const SIZES: RangeInclusive<u64> = 1..=1 << 60;
/// Blocks of a group, the unit of a map entry: 256 KiB.
pub(crate) const GROUP_BLOCKS: u64 = 64;
/// Blocks of the largest segment: 8 MiB.
pub(crate) const SEGMENT_BLOCKS: usize = 2048;
/// The version that this code writes, and the only one it reads.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// The key of the volume's description.
pub(crate) const META_KEY: &[u8] = b"m";
/// The key of the writer's record.
pub(crate) const WRITER_KEY: &[u8] = b"w";
/// The key of the number of the last flush.
pub(crate) const FLUSH_KEY: &[u8] = b"f";
const GROUP_PREFIX: u8 = b'g';
const INLINE_PREFIX: u8 = b'i';

/// The description of a volume, one value of its map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMeta {
    /// Version of the stored form.
    pub format: u32,
    /// The volume's id; a clone has its own.
    pub id: uuid::Uuid,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Roots of the volumes whose segments the map may name: the volume itself, then the volumes
    /// it is a clone of.
    pub origins: Vec<String>,
    /// The checkpoint in the parent's map that keeps the shared segments, if this is a clone.
    pub parent_checkpoint: Option<uuid::Uuid>,
}

impl VolumeMeta {
    /// Returns the value that the map stores.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self)
            .map_err(|e| Error::new(Errno::INVAL, "describe the volume").caused_by(e))
    }
}

/// The record of the writer that has the volume open, one value of its map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterRecord {
    /// The writer has not closed the volume. It may have crashed.
    pub is_open: bool,
    /// The writer's epoch in the map.
    pub epoch: u64,
    /// Name of the writer's host.
    pub host: String,
    /// Process id of the writer on that host.
    pub process_id: u32,
}

/// The name of a segment: the volume it belongs to, its writer's epoch and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentId {
    /// Index in [`VolumeMeta::origins`].
    pub(crate) origin: u32,
    pub(crate) epoch: u64,
    pub(crate) number: u32,
}

impl SegmentId {
    /// Returns the object's path below the root of its volume.
    pub(crate) fn path(&self, root: &Path) -> Path {
        let shard = self.number % 256;
        Path::from(format!(
            "{root}/seg/{shard:02x}/{:016x}-{:08x}",
            self.epoch, self.number
        ))
    }

    /// Returns the segment of origin 0 that an object's path names.
    pub(crate) fn parse(path: &Path) -> Option<Self> {
        let (epoch, number) = path.filename()?.split_once('-')?;
        Some(Self {
            origin: 0,
            epoch: u64::from_str_radix(epoch, 16).ok()?,
            number: u32::from_str_radix(number, 16).ok()?,
        })
    }
}

/// The place of a block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the map, under the block's own key.
    Inline,
    /// Block `index` of a segment.
    Segment { segment: SegmentId, index: u32 },
}

/// A stored block: its place and the CRC-32C of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub(crate) place: Place,
    pub(crate) crc: u32,
}

/// The references of a group's blocks.
pub(crate) type Group = [Option<BlockRef>; GROUP_BLOCKS as usize];

/// The head of a run of blocks in a group's value; one CRC-32C for each block follows.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
struct RawRun {
    start: u8,
    count: u8,
    kind: u8,
    reserved: u8,
    origin: U32,
    epoch: U64,
    number: U32,
    index: U32,
}

const _: () = assert!(size_of::<RawRun>() == 24);
const KIND_INLINE: u8 = 0;
const KIND_SEGMENT: u8 = 1;

/// The end of a segment, for a reader that has only the object.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawTrailer {
    magic: [u8; 8],
    format: U32,
    blocks: U32,
    volume: [u8; 16],
    nonce: [u8; 16],
    epoch: U64,
    number: U32,
    crc: U32,
}

pub(crate) const TRAILER_BYTES: usize = 64;
const _: () = assert!(size_of::<RawTrailer>() == TRAILER_BYTES);

impl RawTrailer {
    /// Returns the trailer of a segment. The nonce identifies its writer.
    pub(crate) fn new(volume: uuid::Uuid, nonce: uuid::Uuid, id: SegmentId, blocks: u32) -> Self {
        let mut trailer = Self {
            magic: *b"folioseg",
            format: U32::new(FORMAT_VERSION),
            blocks: U32::new(blocks),
            volume: volume.into_bytes(),
            nonce: nonce.into_bytes(),
            epoch: U64::new(id.epoch),
            number: U32::new(id.number),
            crc: U32::new(0),
        };
        let crc = crc32c(&trailer.as_bytes()[..TRAILER_BYTES - 4]);
        trailer.crc = U32::new(crc);
        trailer
    }
}

/// Returns the checksum of a block or a trailer.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the key of a group.
pub(crate) fn group_key(group: u64) -> [u8; 9] {
    numbered_key(GROUP_PREFIX, group)
}

/// Returns the key of a block that is stored in the map.
pub(crate) fn inline_key(block: u64) -> [u8; 9] {
    numbered_key(INLINE_PREFIX, block)
}

fn numbered_key(prefix: u8, number: u64) -> [u8; 9] {
    let mut key = [prefix; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// A key of the map.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Meta,
    Writer,
    Flush,
    Group(u64),
    Inline(u64),
}

impl Key {
    /// Returns the key that `bytes` are.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a key that no volume has.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        if let [prefix, number @ ..] = bytes
            && let Ok(number) = <[u8; 8]>::try_from(number)
        {
            let number = u64::from_be_bytes(number);
            match *prefix {
                GROUP_PREFIX => return Ok(Self::Group(number)),
                INLINE_PREFIX => return Ok(Self::Inline(number)),
                _ => {}
            }
        }
        match bytes {
            META_KEY => Ok(Self::Meta),
            WRITER_KEY => Ok(Self::Writer),
            FLUSH_KEY => Ok(Self::Flush),
            _ => Err(Error::corrupt(format!("map: unknown key {bytes:02x?}"))),
        }
    }
}

/// Returns the value of a group, empty if no block of it is stored.
pub(crate) fn encode_group(group: &Group) -> Vec<u8> {
    let mut value = Vec::new();
    let mut start = 0;
    while start < group.len() {
        let Some(first) = group[start] else {
            start += 1;
            continue;
        };
        let count = (1..group.len() - start)
            .find(|&n| !continues(first, n, group[start + n]))
            .unwrap_or(group.len() - start);
        let (kind, segment, index) = match first.place {
            Place::Inline => (KIND_INLINE, None, 0),
            Place::Segment { segment, index } => (KIND_SEGMENT, Some(segment), index),
        };
        let run = RawRun {
            start: start as u8,
            count: count as u8,
            kind,
            reserved: 0,
            origin: U32::new(segment.map_or(0, |s| s.origin)),
            epoch: U64::new(segment.map_or(0, |s| s.epoch)),
            number: U32::new(segment.map_or(0, |s| s.number)),
            index: U32::new(index),
        };
        value.extend_from_slice(run.as_bytes());
        for block in group[start..start + count].iter().flatten() {
            value.extend_from_slice(&block.crc.to_le_bytes());
        }
        start += count;
    }
    value
}

/// Returns whether `next` is `distance` blocks behind `first` in the same place.
fn continues(first: BlockRef, distance: usize, next: Option<BlockRef>) -> bool {
    match (first.place, next.map(|block| block.place)) {
        (Place::Inline, Some(Place::Inline)) => true,
        (
            Place::Segment { segment, index },
            Some(Place::Segment {
                segment: next_segment,
                index: next_index,
            }),
        ) => segment == next_segment && next_index as usize == index as usize + distance,
        _ => false,
    }
}

/// Returns the group that `value` describes. `origins` is the number of the volume's origins.
///
/// # Errors
///
/// EUCLEAN for a value that no writer makes.
pub(crate) fn decode_group(mut value: &[u8], origins: usize) -> Result<Group> {
    let corrupt = |what: &str| Error::corrupt(format!("map: group entry: {what}"));
    let mut group: Group = [None; GROUP_BLOCKS as usize];
    let mut end = 0;
    while !value.is_empty() {
        let (run, rest) =
            RawRun::read_from_prefix(value).map_err(|_| corrupt("a run is cut short"))?;
        let (start, count) = (run.start as usize, run.count as usize);
        if start < end || count == 0 || start + count > group.len() {
            return Err(corrupt("runs overlap or leave the group"));
        }
        if rest.len() < count * 4 {
            return Err(corrupt("checksums are cut short"));
        }
        let (checksums, rest) = rest.split_at(count * 4);
        let index = run.index.get();
        if run.kind > KIND_SEGMENT
            || (run.kind == KIND_SEGMENT
                && (index as usize + count > SEGMENT_BLOCKS
                    || run.origin.get() as usize >= origins))
        {
            return Err(corrupt("invalid place of a run"));
        }
        for (n, checksum) in checksums.chunks_exact(4).enumerate() {
            let place = match run.kind {
                KIND_INLINE => Place::Inline,
                _ => Place::Segment {
                    segment: SegmentId {
                        origin: run.origin.get(),
                        epoch: run.epoch.get(),
                        number: run.number.get(),
                    },
                    index: index + n as u32,
                },
            };
            let crc = u32::from_le_bytes([checksum[0], checksum[1], checksum[2], checksum[3]]);
            group[start + n] = Some(BlockRef { place, crc });
        }
        end = start + count;
        value = rest;
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment_block(number: u32, index: u32) -> Option<BlockRef> {
        let segment = SegmentId {
            origin: 0,
            epoch: 7,
            number,
        };
        Some(BlockRef {
            place: Place::Segment { segment, index },
            crc: number ^ index,
        })
    }

    #[test]
    fn group_reads_back_and_merges_runs() {
        let mut group: Group = [None; 64];
        for (n, block) in group.iter_mut().take(40).enumerate() {
            *block = segment_block(3, 100 + n as u32);
        }
        group[50] = segment_block(3, 150);
        group[63] = Some(BlockRef {
            place: Place::Inline,
            crc: 9,
        });
        let value = encode_group(&group);
        assert_eq!(value.len(), 3 * 24 + 42 * 4);
        assert_eq!(decode_group(&value, 1).unwrap(), group);
    }

    #[test]
    fn damaged_group_is_rejected_or_differs() {
        let mut group: Group = [None; 64];
        group[1] = segment_block(1, 2047);
        group[5] = segment_block(2, 0);
        let value = encode_group(&group);
        for at in 0..value.len() {
            for bit in 0..8 {
                let mut damaged = value.clone();
                damaged[at] ^= 1 << bit;
                if let Ok(decoded) = decode_group(&damaged, 1) {
                    assert!(decoded != group || at % 28 == 3, "byte {at} bit {bit}");
                }
            }
            assert!(at % 28 == 0 || decode_group(&value[..at], 1).is_err());
        }
    }

    #[test]
    fn segment_name_parses_back() {
        let id = SegmentId {
            origin: 0,
            epoch: 12,
            number: 300,
        };
        let path = id.path(&Path::from("a/b"));
        assert_eq!(path.as_ref(), "a/b/seg/2c/000000000000000c-0000012c");
        assert_eq!(SegmentId::parse(&path), Some(id));
    }
}
