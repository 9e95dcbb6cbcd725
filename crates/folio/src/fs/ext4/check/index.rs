//! The hash index of a directory: order, counts and checksums of its nodes, each block led to once,
//! and the hashes that a leaf may hold.

use super::Checker;
use super::report::{Place, Structure};
use crate::base::LogicalBlock;
use crate::fs::ext4::directory::block::{self, BlockKind};
use crate::fs::ext4::directory::hash::{HashVersion, hash};
use crate::fs::ext4::directory::htree::{
    self, NODE_ENTRIES_AT, ROOT_ENTRIES_AT, ROOT_INFO_AT, ROOT_INFO_LEN, RawRootInfo,
};
use crate::fs::ext4::directory::names::DirectoryContext;
use std::collections::HashMap;
use zerocopy::FromBytes;

/// What the index says of a directory's blocks.
pub(super) struct Index {
    /// `None` where names are hashed in a way that is not known here (casefold).
    version: Option<HashVersion>,
    /// Leaves by their place in the directory, with the lowest and highest hash; nodes have none.
    blocks: HashMap<u64, Option<(u32, u32)>>,
}

impl Index {
    /// Whether the block belongs to the index itself.
    pub(super) fn is_node(&self, logical: u64) -> bool {
        self.blocks.get(&logical) == Some(&None)
    }

    /// The hashes that a leaf may hold; `None` for a block that the index does not lead to.
    pub(super) fn bounds(&self, logical: u64) -> Option<(u32, u32)> {
        self.blocks.get(&logical).copied().flatten()
    }

    /// The hash of a name, if its kind is known.
    pub(super) fn hash(&self, context: &DirectoryContext, name: &[u8]) -> Option<u32> {
        self.version
            .map(|version| hash(name, version, context.unsigned_hash, &context.hash_seed))
    }
}

/// A node to be read, and the hashes below it.
struct Node {
    logical: u64,
    /// Levels of nodes below it.
    level: usize,
    low: u32,
    high: u32,
}

impl Checker<'_> {
    /// Checks the index of a directory; `None` if its root is beyond use.
    pub(super) fn check_index(
        &mut self,
        directory: usize,
        context: &DirectoryContext,
    ) -> Option<Index> {
        // The number is an inode's, which has 32 bits.
        let place = Place::inode(context.number.0 as u32);
        let block = self.directory_block(directory, 0)?;
        let mut bytes = Vec::new();
        if !self.read_block(block, &mut bytes, Structure::Index, place) {
            return None;
        }
        let place = place.at_block(block);
        let mut error =
            |what: std::fmt::Arguments<'_>| self.report.error(Structure::Index, place, what);
        if block::kind(context, LogicalBlock(0), &bytes) != BlockKind::IndexRoot {
            error(format_args!("no root of an index"));
            return None;
        }
        let (info, _) = RawRootInfo::ref_from_prefix(&bytes[ROOT_INFO_AT..]).ok()?;
        let levels = usize::from(info.indirect_levels);
        let is_known = matches!(info.hash_version, 0..=2 | 6);
        if !is_known {
            error(format_args!("hash version {}", info.hash_version));
        }
        if usize::from(info.info_length) != ROOT_INFO_LEN
            || info.unused_flags & 1 != 0
            || info.reserved.get() != 0
        {
            error(format_args!("unknown form of the root"));
        }
        if levels >= htree::levels_max(context) {
            error(format_args!("{} levels", levels + 1));
            return None;
        }
        let version = HashVersion::from_disk(info.hash_version)
            .ok()
            .filter(|_| is_known && !context.casefold);
        let mut index = Index {
            version,
            blocks: HashMap::from([(0, None)]),
        };
        let root = Node {
            logical: 0,
            level: levels,
            low: 0,
            high: u32::MAX,
        };
        self.check_index_node(directory, context, &mut index, &root, &bytes, place);
        Some(index)
    }

    fn check_index_node(
        &mut self,
        directory: usize,
        context: &DirectoryContext,
        index: &mut Index,
        node: &Node,
        bytes: &[u8],
        place: Place,
    ) {
        let entries_at = if node.logical == 0 {
            ROOT_ENTRIES_AT
        } else {
            NODE_ENTRIES_AT
        };
        let mut error =
            |what: std::fmt::Arguments<'_>| self.report.error(Structure::Index, place, what);
        let limit = htree::limit(context, entries_at);
        let found = usize::from(u16::from_le_bytes([
            bytes[entries_at],
            bytes[entries_at + 1],
        ]));
        let count = htree::count(bytes, entries_at);
        if found != limit {
            error(format_args!("room for {found} entries, should be {limit}"));
        }
        if count == 0 || count > limit {
            return error(format_args!("{count} entries of at most {limit}"));
        }
        if htree::check_checksum(context, bytes, entries_at).is_err() {
            error(format_args!("bad checksum"));
        }
        let key = |position: usize| htree::key(bytes, entries_at, position);
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
                self.report.error(Structure::Index, place, what);
            }
            let logical = htree::child(bytes, entries_at, position).0.into();
            let child = Node {
                logical,
                level: node.level.wrapping_sub(1),
                low,
                high: next,
            };
            self.check_index_child(directory, context, index, &child, node.level == 0, place);
        }
    }

    fn check_index_child(
        &mut self,
        directory: usize,
        context: &DirectoryContext,
        index: &mut Index,
        child: &Node,
        is_leaf: bool,
        place: Place,
    ) {
        let logical = child.logical;
        let Some(block) = self.directory_block(directory, logical) else {
            let size = self.directory_size(directory);
            let what = format_args!("leads to block {logical} of a directory of {size} blocks");
            return self.report.error(Structure::Index, place, what);
        };
        let bounds = is_leaf.then(|| leaf_bounds(child.low, child.high));
        if index.blocks.insert(logical, bounds).is_some() {
            let what = format_args!("leads to block {logical} of the directory twice");
            return self.report.error(Structure::Index, place, what);
        }
        if is_leaf {
            return;
        }
        let (mut bytes, place) = (
            Vec::new(),
            Place {
                block: None,
                ..place
            },
        );
        if !self.read_block(block, &mut bytes, Structure::Index, place) {
            return;
        }
        let place = place.at_block(block);
        if block::kind(context, Self::logical(u64::MAX), &bytes) != BlockKind::IndexNode
            || bytes[7] != 0
        {
            return self
                .report
                .error(Structure::Index, place, format_args!("no node of an index"));
        }
        self.check_index_node(directory, context, index, child, &bytes, place);
    }
}

/// The lowest and highest hash of names in a leaf that starts at `low` and is followed by one at
/// `next`. The lowest bit of `next` says that names of the same hash go on there.
fn leaf_bounds(low: u32, next: u32) -> (u32, u32) {
    let high = match next {
        u32::MAX => u32::MAX,
        _ if next & 1 == 1 => next & !1,
        _ => next.saturating_sub(1),
    };
    (low & !1, high)
}
