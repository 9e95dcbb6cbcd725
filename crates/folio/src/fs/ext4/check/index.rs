//! The hash index (htree) of a directory: order, counts and checksums of its nodes, one entry per
//! block, and the hash range of each leaf. Linux: fs/ext4/namei.c.

use super::checker::Checker;
use super::report::{CheckedStructure, FindingLocation};
use crate::base::LogicalBlock;
use crate::fs::ext4::directory::block::{self, BlockKind};
use crate::fs::ext4::directory::context::DirectoryContext;
use crate::fs::ext4::directory::hash::HashVersion;
use crate::fs::ext4::directory::index_block::{
    self, NODE_ENTRIES_AT, ROOT_ENTRIES_AT, ROOT_INFO_AT, ROOT_INFO_LEN, RawRootInfo,
};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use zerocopy::FromBytes;

/// The nodes and leaves of a directory's index.
pub(super) struct DirectoryIndex {
    /// `None` for a hash unknown to Folio.
    version: Option<HashVersion>,
    /// Blocks by number in the directory: the hashes of a leaf, `None` for a node.
    blocks: HashMap<u64, Option<RangeInclusive<u32>>>,
}

impl DirectoryIndex {
    /// Returns whether the block is a node of the index.
    pub(super) fn is_node(&self, logical: u64) -> bool {
        self.blocks.get(&logical) == Some(&None)
    }

    /// Returns the hash range of a leaf; `None` for a block without an index entry.
    pub(super) fn bounds(&self, logical: u64) -> Option<RangeInclusive<u32>> {
        self.blocks.get(&logical).cloned().flatten()
    }

    /// Returns the hash of a name, if the hash version is known.
    pub(super) fn hash(&self, context: &DirectoryContext, name: &[u8]) -> Option<u32> {
        let name = context.sought(name);
        self.version.map(|version| context.hash(version, &name))
    }
}

/// A node to be read, and the hash range below it.
struct IndexNode {
    logical: u64,
    /// Levels of nodes below this one.
    level: usize,
    low: u32,
    high: u32,
}

impl Checker<'_> {
    /// Checks the index of a directory; returns `None` if its root is unusable.
    pub(super) fn check_index(
        &mut self,
        directory: usize,
        context: &DirectoryContext,
    ) -> Option<DirectoryIndex> {
        // Inode numbers have 32 bits.
        let location = FindingLocation::inode(context.number.0 as u32);
        let block = self.directory_block(directory, 0)?;
        let mut bytes = Vec::new();
        if !self.read_block(block, &mut bytes, CheckedStructure::Index, location) {
            return None;
        }
        let location = location.at_block(block);
        let mut error = |what: std::fmt::Arguments<'_>| {
            self.report.error(CheckedStructure::Index, location, what)
        };
        if block::kind(context, LogicalBlock(0), &bytes) != BlockKind::IndexRoot {
            error(format_args!("invalid root of the index"));
            return None;
        }
        let (info, _) = RawRootInfo::ref_from_prefix(&bytes[ROOT_INFO_AT..]).ok()?;
        let levels = usize::from(info.indirect_levels);
        let is_known = matches!(info.hash_version, 0..=2 | 6);
        if !is_known {
            error(format_args!("unknown hash version {}", info.hash_version));
        }
        if usize::from(info.info_length) != ROOT_INFO_LEN
            || info.unused_flags & 1 != 0
            || info.reserved.get() != 0
        {
            error(format_args!("invalid fields in the root"));
        }
        if levels >= index_block::levels_max(context) {
            error(format_args!("too many levels: {}", levels + 1));
            return None;
        }
        let version = HashVersion::from_disk(info.hash_version)
            .ok()
            .filter(|_| is_known);
        let mut index = DirectoryIndex {
            version,
            blocks: HashMap::from([(0, None)]),
        };
        let root = IndexNode {
            logical: 0,
            level: levels,
            low: 0,
            high: u32::MAX,
        };
        self.check_index_node(directory, context, &mut index, &root, &bytes, location);
        Some(index)
    }

    fn check_index_node(
        &mut self,
        directory: usize,
        context: &DirectoryContext,
        index: &mut DirectoryIndex,
        node: &IndexNode,
        bytes: &[u8],
        location: FindingLocation,
    ) {
        let entries_at = if node.logical == 0 {
            ROOT_ENTRIES_AT
        } else {
            NODE_ENTRIES_AT
        };
        let mut error = |what: std::fmt::Arguments<'_>| {
            self.report.error(CheckedStructure::Index, location, what)
        };
        let limit = index_block::limit(context, entries_at);
        let found = usize::from(u16::from_le_bytes([
            bytes[entries_at],
            bytes[entries_at + 1],
        ]));
        let count = index_block::count(bytes, entries_at);
        if found != limit {
            error(format_args!("limit of {found} entries, expected {limit}"));
        }
        if count == 0 || count > limit {
            return error(format_args!("{count} entries of at most {limit}"));
        }
        if index_block::check_checksum(context, bytes, entries_at).is_err() {
            error(format_args!("bad checksum"));
        }
        let key = |position: usize| index_block::key(bytes, entries_at, position);
        for position in 0..count {
            let low = if position == 0 {
                node.low
            } else {
                key(position)
            };
            let next = if position + 1 < count {
                key(position + 1)
            } else {
                node.high
            };
            if low < node.low || low > next || next > node.high {
                let what = format_args!(
                    "entry {position} has hash {low:#010x}, before {next:#010x}, out of order"
                );
                self.report.error(CheckedStructure::Index, location, what);
            }
            let logical = index_block::child(bytes, entries_at, position).0.into();
            let child = IndexNode {
                logical,
                level: node.level.wrapping_sub(1),
                low,
                high: next,
            };
            self.check_index_child(directory, context, index, &child, node.level == 0, location);
        }
    }

    fn check_index_child(
        &mut self,
        directory: usize,
        context: &DirectoryContext,
        index: &mut DirectoryIndex,
        child: &IndexNode,
        is_leaf: bool,
        location: FindingLocation,
    ) {
        let logical = child.logical;
        let Some(block) = self.directory_block(directory, logical) else {
            let size = self.directory_size(directory);
            let what = format_args!("points to block {logical} of a directory of {size} blocks");
            return self.report.error(CheckedStructure::Index, location, what);
        };
        let bounds = is_leaf.then(|| leaf_bounds(child.low, child.high));
        if index.blocks.insert(logical, bounds).is_some() {
            let what = format_args!("points to block {logical} of the directory twice");
            return self.report.error(CheckedStructure::Index, location, what);
        }
        if is_leaf {
            return;
        }
        let (mut bytes, location) = (
            Vec::new(),
            FindingLocation {
                block: None,
                ..location
            },
        );
        if !self.read_block(block, &mut bytes, CheckedStructure::Index, location) {
            return;
        }
        let location = location.at_block(block);
        if block::kind(context, Self::logical(u64::MAX), &bytes) != BlockKind::IndexNode
            || bytes[7] != 0
        {
            return self.report.error(
                CheckedStructure::Index,
                location,
                format_args!("invalid node of the index"),
            );
        }
        self.check_index_node(directory, context, index, child, &bytes, location);
    }
}

/// Returns the hashes in a leaf that starts at `low`; the next leaf starts at
/// `next`. If the lowest bit of `next` is set, names of the same hash continue there.
fn leaf_bounds(low: u32, next: u32) -> RangeInclusive<u32> {
    let high = match next {
        u32::MAX => u32::MAX,
        _ if next & 1 == 1 => next & !1,
        _ => next.saturating_sub(1),
    };
    low & !1..=high
}
