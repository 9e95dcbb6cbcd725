//! Extents on disk: one extent, and a node of the tree that holds them.
//!
//! ```text
//!   node:  | header: magic, entries, max, depth | entry | entry | ... | checksum (blocks only) |
//!   entry: an extent in a leaf (depth 0), the number of a child node above
//! ```
//!
//! Source: Documentation/filesystems/ext4/ifork.rst.

use super::disk::{
    EXTENT_ENTRY_LEN, EXTENT_LEN_MAX, EXTENT_MAGIC, RawExtent, RawExtentHeader, RawExtentIndex,
};
use crate::base::{Error, Result};
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// The depth of the deepest valid tree.
const DEPTH_MAX: u16 = 5;

/// A run of file blocks on a run of device blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block in the file.
    pub(crate) logical: u32,
    /// Number of blocks; any number in memory, split as the format needs it on disk.
    pub(crate) len: u32,
    /// First block on the device.
    pub(crate) physical: u64,
    /// Allocated, but reads as zeros (`fallocate`).
    pub(crate) is_unwritten: bool,
}

impl Extent {
    /// Returns the blocks on the device.
    pub(crate) fn physical_range(&self) -> Range<u64> {
        self.physical..self.physical.saturating_add(self.len.into())
    }

    /// Returns the file block after the extent.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.len)
    }

    /// Returns the part of the extent from file block `logical` on.
    pub(crate) fn tail_from(&self, logical: u32) -> Self {
        let skip = logical - self.logical;
        Self {
            logical,
            len: self.len - skip,
            physical: self.physical + u64::from(skip),
            ..*self
        }
    }
}

/// Returns the root of a tree without extents.
pub(crate) fn empty_root() -> [u8; 60] {
    let mut root = [0; 60];
    fill_node(&mut root, &[], 0);
    root
}

/// Returns how many entries fit in a node of `node_len` bytes.
pub(crate) fn node_capacity(node_len: usize) -> u64 {
    (node_len / EXTENT_ENTRY_LEN - 1) as u64
}

/// Returns the most blocks that one extent on disk can have.
pub(crate) fn len_max(is_unwritten: bool) -> u16 {
    if is_unwritten {
        EXTENT_LEN_MAX - 1
    } else {
        EXTENT_LEN_MAX
    }
}

/// Splits an extent into pieces that fit on disk.
pub(crate) fn split_for_disk(extent: Extent) -> impl Iterator<Item = Extent> {
    let max = u32::from(len_max(extent.is_unwritten));
    (0..extent.len.div_ceil(max)).map(move |i| {
        let tail = extent.tail_from(extent.logical + i * max);
        Extent {
            len: tail.len.min(max),
            ..tail
        }
    })
}

/// Splits a node into its header and the bytes of its entries. `depth`: the depth that the node
/// must have, unless it is a root.
///
/// # Errors
/// EUCLEAN for an invalid header.
pub(crate) fn parse_node(bytes: &[u8], depth: Option<u16>) -> Result<(RawExtentHeader, &[u8])> {
    let (header, entries) = RawExtentHeader::read_from_prefix(bytes)
        .map_err(|_| Error::corrupt("extent node cut short"))?;
    let what = if header.magic.get() != EXTENT_MAGIC {
        format!("bad magic {:#06x} in extent node", header.magic.get())
    } else if u64::from(header.max.get()) > node_capacity(bytes.len())
        || header.entries > header.max
    {
        format!(
            "extent node claims {} of {} entries",
            header.entries.get(),
            header.max.get()
        )
    } else if header.depth.get() > DEPTH_MAX
        || depth.is_some_and(|expected| expected != header.depth.get())
    {
        format!("extent node has depth {}", header.depth.get())
    } else {
        return Ok((header, entries));
    };
    Err(Error::corrupt(what))
}

/// Decodes an entry of a leaf.
pub(crate) fn decode_extent(raw: &[u8]) -> Result<Extent> {
    let raw = RawExtent::read_from_bytes(raw).map_err(|_| Error::corrupt("extent cut short"))?;
    let len = raw.len.get();
    let is_unwritten = len > EXTENT_LEN_MAX;
    Ok(Extent {
        logical: raw.block.get(),
        len: u32::from(if is_unwritten {
            len - EXTENT_LEN_MAX
        } else {
            len
        }),
        physical: u64::from(raw.start_hi.get()) << 32 | u64::from(raw.start_lo.get()),
        is_unwritten,
    })
}

/// Decodes an entry above the leaves: its first file block, and the block of its child node.
pub(crate) fn decode_index(raw: &[u8]) -> Result<(u32, u64)> {
    let raw = RawExtentIndex::read_from_bytes(raw)
        .map_err(|_| Error::corrupt("extent index cut short"))?;
    Ok((
        raw.block.get(),
        u64::from(raw.leaf_hi.get()) << 32 | u64::from(raw.leaf_lo.get()),
    ))
}

/// Encodes an entry of a leaf. `piece` is at most [`len_max`] long, and its block number has 48
/// bits.
pub(crate) fn encode_extent(piece: &Extent) -> [u8; EXTENT_ENTRY_LEN] {
    let len = piece.len as u16
        + if piece.is_unwritten {
            EXTENT_LEN_MAX
        } else {
            0
        };
    let raw = RawExtent {
        block: piece.logical.into(),
        len: len.into(),
        start_hi: ((piece.physical >> 32) as u16).into(),
        start_lo: (piece.physical as u32).into(),
    };
    zerocopy::transmute!(raw)
}

/// Encodes an entry above the leaves.
pub(crate) fn encode_index(first: u32, number: u64) -> [u8; EXTENT_ENTRY_LEN] {
    let raw = RawExtentIndex {
        block: first.into(),
        leaf_lo: (number as u32).into(),
        leaf_hi: ((number >> 32) as u16).into(),
        unused: 0.into(),
    };
    zerocopy::transmute!(raw)
}

/// Writes a header and `entries` into `node`, and zeroes the rest. The entries fit: the caller
/// counted them.
pub(crate) fn fill_node(node: &mut [u8], entries: &[[u8; EXTENT_ENTRY_LEN]], depth: u16) {
    let header = RawExtentHeader {
        magic: EXTENT_MAGIC.into(),
        entries: (entries.len() as u16).into(),
        max: (node_capacity(node.len()) as u16).into(),
        depth: depth.into(),
        generation: 0.into(),
    };
    let bytes = entries.as_bytes();
    node[..EXTENT_ENTRY_LEN].copy_from_slice(header.as_bytes());
    node[EXTENT_ENTRY_LEN..EXTENT_ENTRY_LEN + bytes.len()].copy_from_slice(bytes);
    node[EXTENT_ENTRY_LEN + bytes.len()..].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u32, len: u32, physical: u64) -> Extent {
        Extent {
            logical,
            len,
            physical,
            is_unwritten: false,
        }
    }

    #[test]
    fn long_extents_split_on_disk() {
        let pieces: Vec<_> = split_for_disk(extent(5, 70_000, 1000)).collect();
        assert_eq!(
            pieces,
            vec![
                extent(5, 32768, 1000),
                extent(32773, 32768, 33768),
                extent(65541, 4464, 66536)
            ]
        );
        let written = decode_extent(&encode_extent(&pieces[0])).unwrap();
        assert_eq!(written, pieces[0]);
        let unwritten = Extent {
            is_unwritten: true,
            len: 32767,
            ..pieces[0]
        };
        assert_eq!(
            decode_extent(&encode_extent(&unwritten)).unwrap(),
            unwritten
        );
    }
}
