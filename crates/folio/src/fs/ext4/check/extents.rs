//! Extent trees: each node's header, order, bounds and checksum, and the blocks of each extent.
//! Linux: fs/ext4/extents.c.

use super::blocks::BlockOwner;
use super::checker::Checker;
use super::fix::Fix;
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{
    EXTENT_ENTRY_LEN, EXTENT_LEN_MAX, EXTENT_MAGIC, RawExtent, RawExtentHeader, RawExtentIndex,
};
use std::ops::Range;
use zerocopy::FromBytes;

/// Maximum depth of a tree in the format.
const DEPTH_MAX: u16 = 5;

/// A node of an extent tree.
struct ExtentNode<'a> {
    bytes: &'a [u8],
    header: RawExtentHeader,
    /// File blocks that the node may map.
    bounds: Range<u64>,
    /// The file block at which the first entry must start, below the root.
    first: Option<u32>,
}

/// Returns whether `bytes` start with a valid header for a node of this length.
pub(super) fn has_header(bytes: &[u8]) -> bool {
    RawExtentHeader::read_from_prefix(bytes)
        .is_ok_and(|(header, _)| header_misfit(&header, bytes.len(), None).is_none())
}

/// Returns the first error of a node's header; `None` if it is valid.
fn header_misfit(header: &RawExtentHeader, len: usize, depth: Option<u16>) -> Option<String> {
    let capacity = len / EXTENT_ENTRY_LEN - 1;
    let max = usize::from(header.max.get());
    if header.magic.get() != EXTENT_MAGIC {
        Some(format!("bad magic {:#06x}", header.magic.get()))
    } else if max > capacity || max + 2 < capacity || header.entries > header.max {
        Some(format!(
            "{} entries of at most {max}, with room for {capacity}",
            header.entries
        ))
    } else if header.depth.get() > DEPTH_MAX
        || depth.is_some_and(|depth| depth != header.depth.get())
    {
        Some(format!("depth {}", header.depth))
    } else {
        None
    }
}

impl Checker<'_> {
    /// Walks the tree whose root is an inode's `i_block` and claims its blocks.
    pub(super) fn check_extents(&mut self, owner: &mut BlockOwner, root: &[u8; 60]) {
        let Ok((header, _)) = RawExtentHeader::read_from_prefix(root) else {
            return;
        };
        if let Some(what) = header_misfit(&header, root.len(), None) {
            self.extent_error(owner, None, format_args!("root: {what}"));
            return;
        }
        let node = ExtentNode {
            bytes: root,
            header,
            bounds: 0..1 << 32,
            first: None,
        };
        self.check_node(owner, &node, None);
    }

    fn extent_error(
        &mut self,
        owner: &mut BlockOwner,
        block: Option<u64>,
        what: std::fmt::Arguments<'_>,
    ) {
        owner.is_damaged = true;
        let location = super::report::FindingLocation {
            block,
            ..owner.location()
        };
        self.report.error(owner.structure, location, what);
    }

    fn check_node(&mut self, owner: &mut BlockOwner, node: &ExtentNode<'_>, block: Option<u64>) {
        let count = usize::from(node.header.entries.get());
        let entries = node.bytes[EXTENT_ENTRY_LEN..]
            .chunks_exact(EXTENT_ENTRY_LEN)
            .take(count);
        if count == 0 && (block.is_some() || node.header.depth.get() > 0) {
            self.extent_error(owner, block, format_args!("empty node"));
        }
        if node.header.depth.get() == 0 {
            self.check_leaf(owner, node, block, entries);
            return;
        }
        let indexes: Vec<RawExtentIndex> = entries
            .filter_map(|raw| RawExtentIndex::read_from_bytes(raw).ok())
            .collect();
        for (i, index) in indexes.iter().enumerate() {
            let first = index.block.get();
            let end = indexes
                .get(i + 1)
                .map_or(node.bounds.end, |next| u64::from(next.block.get()));
            let bounds = u64::from(first)..end;
            let is_first = i == 0 && node.first.is_some_and(|wanted| wanted != first);
            if bounds.start < node.bounds.start
                || bounds.end > node.bounds.end
                || bounds.is_empty()
                || is_first
            {
                self.extent_error(
                    owner,
                    block,
                    format_args!("index of file block {first} is out of order"),
                );
                continue;
            }
            let child = u64::from(index.leaf_hi.get()) << 32 | u64::from(index.leaf_lo.get());
            self.check_child(owner, child, node.header.depth.get() - 1, bounds);
        }
    }

    fn check_child(&mut self, owner: &mut BlockOwner, block: u64, depth: u16, bounds: Range<u64>) {
        if !self.claim_metadata(owner, block) {
            owner.is_damaged = true;
            return;
        }
        let mut bytes = Vec::new();
        if !self.read_block(block, &mut bytes, owner.structure, owner.location()) {
            owner.is_damaged = true;
            return;
        }
        let Ok((header, _)) = RawExtentHeader::read_from_prefix(&bytes) else {
            return;
        };
        if let Some(what) = header_misfit(&header, bytes.len(), Some(depth)) {
            self.extent_error(owner, Some(block), format_args!("{what}"));
            return;
        }
        if let Some(seed) = owner.seed {
            let tail = EXTENT_ENTRY_LEN * (1 + usize::from(header.max.get()));
            let stored = bytes
                .get(tail..tail + 4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            if stored != Some(crc32c(seed, &bytes[..tail])) {
                self.report.error(
                    owner.structure,
                    owner.location().at_block(block),
                    format_args!("bad checksum"),
                );
                if tail + 4 <= bytes.len() {
                    let seal = move |bytes: &mut [u8]| {
                        let crc = crc32c(seed, &bytes[..tail]);
                        bytes[tail..tail + 4].copy_from_slice(&crc.to_le_bytes());
                    };
                    self.report.fix(Fix::Block(block, Box::new(seal)));
                }
            }
        }
        let first = Some(bounds.start as u32);
        self.check_node(
            owner,
            &ExtentNode {
                bytes: &bytes,
                header,
                bounds,
                first,
            },
            Some(block),
        );
    }

    fn check_leaf<'b>(
        &mut self,
        owner: &mut BlockOwner,
        node: &ExtentNode<'_>,
        block: Option<u64>,
        entries: impl Iterator<Item = &'b [u8]>,
    ) {
        let mut next = node.bounds.start;
        for (i, raw) in entries
            .filter_map(|raw| RawExtent::read_from_bytes(raw).ok())
            .enumerate()
        {
            let (logical, len) = (u64::from(raw.block.get()), raw.len.get());
            let is_unwritten = len > EXTENT_LEN_MAX;
            let len = u64::from(if is_unwritten {
                len - EXTENT_LEN_MAX
            } else {
                len
            });
            let start = u64::from(raw.start_hi.get()) << 32 | u64::from(raw.start_lo.get());
            let range = start..start + len;
            let is_first = i == 0
                && node
                    .first
                    .is_some_and(|wanted| u64::from(wanted) != logical);
            // The last file block number is reserved: it means "none".
            let what = if len == 0 {
                "is empty"
            } else if logical < next || is_first {
                "is out of order"
            } else if logical + len > node.bounds.end || logical + len > u64::from(u32::MAX) {
                "exceeds its node's range"
            } else if !self.is_inside(&range) {
                "points outside the file system"
            } else if is_unwritten && owner.is_directory {
                "is unwritten, but belongs to a directory"
            } else {
                next = logical + len;
                self.claim_data(owner, logical, range, !is_unwritten);
                continue;
            };
            next = next.max(logical + len);
            self.extent_error(
                owner,
                block,
                format_args!("extent of file block {logical} {what} ({len} blocks from {start})"),
            );
        }
    }
}
