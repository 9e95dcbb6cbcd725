//! The index of a directory: a tree of hashes of fixed depth, whose leaves are ordinary directory
//! blocks.
//!
//! ```text
//!   block 0   . .. | info: hash version, levels | limit count | child | hash child | hash child ...
//!                                                   |
//!   node      unused entry over the whole block     | limit count | child | hash child ...    (levels 1 and 2)
//!                                                   |
//!   leaf      entries whose hash is at least its own and at most the next one's
//! ```
//!
//! A hash with its lowest bit set marks a leaf that continues the hash of the leaf before it.
//! Blocks of the index are encoded in index_block.rs. Source: the kernel's ext4 documentation,
//! "Hash Tree Directories"; Linux: fs/ext4/namei.c.
//!
//! Every change leaves a valid tree: growth of the index and the split of a leaf are separate
//! steps, each with one new block, which is allocated before anything is written.

use super::block::{self, Entries, NewEntry, Room};
use super::context::{DirectoryBlocks, DirectoryContext};
use super::fold::SoughtName;
use super::hash::HashVersion;
use super::index_block::{
    INDEX_ENTRY_LEN, NODE_ENTRIES_AT, ROOT_ENTRIES_AT, ROOT_INFO_AT, ROOT_INFO_LEN, RawIndexEntry,
    RawRootInfo, check_node, check_root, child, key, levels_max, limit, seal, search, set_child,
    set_count, write_node,
};
use super::leaf::{LocatedEntry, find_room, live_entries, locate_in_block};
use crate::base::{Errno, Error, LogicalBlock, Result};
use crate::fs::ext4::journal::metadata::MetadataBlock;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// One index block on the way to a leaf.
struct IndexFrame {
    block: MetadataBlock,
    logical: LogicalBlock,
    entries_at: usize,
    count: usize,
    /// The entry that leads to the next block.
    position: usize,
}

impl IndexFrame {
    fn is_full(&self, context: &DirectoryContext) -> bool {
        self.count >= limit(context, self.entries_at)
    }
}

/// The path from the root to a leaf.
struct IndexPath {
    frames: SmallVec<[IndexFrame; 3]>,
    /// The number of index blocks, which is the depth of the leaves.
    levels: usize,
    leaf: LogicalBlock,
}

impl IndexPath {
    /// Returns the path to the leaf where the names with hash `hash` start.
    fn to(blocks: &dyn DirectoryBlocks, root: IndexRoot, hash: u32) -> Result<Self> {
        let mut path = Self {
            frames: SmallVec::new(),
            levels: root.levels,
            leaf: LogicalBlock(0),
        };
        let context = blocks.context();
        let first = IndexFrame {
            block: root.block,
            logical: LogicalBlock(0),
            entries_at: ROOT_ENTRIES_AT,
            count: root.count,
            position: 0,
        };
        path.push(blocks, first, Some(hash))
            .map_err(|error| context.in_block(LogicalBlock(0), error))?;
        path.descend(blocks, Some(hash))?;
        Ok(path)
    }

    /// Appends an index block to the path, at the entry for `hash` or at the first one.
    fn push(
        &mut self,
        blocks: &dyn DirectoryBlocks,
        mut frame: IndexFrame,
        hash: Option<u32>,
    ) -> Result<()> {
        let bytes = frame.block.read();
        frame.position = hash.map_or(0, |hash| {
            search(&bytes, frame.entries_at, frame.count, hash)
        });
        self.leaf = child(&bytes, frame.entries_at, frame.position);
        drop(bytes);
        self.frames.push(frame);
        self.check_child(blocks)
    }

    /// Checks that the path leads to an existing block, and not back to itself.
    fn check_child(&self, blocks: &dyn DirectoryBlocks) -> Result<()> {
        let child = self.leaf;
        if child.0 >= blocks.block_count() {
            return Err(Error::corrupt(format!(
                "index points to block {child}, past the end"
            )));
        }
        if self.frames.iter().any(|frame| frame.logical == child) {
            return Err(Error::corrupt(format!(
                "index points back to block {child}"
            )));
        }
        Ok(())
    }

    /// Completes the path from its last frame down to a leaf.
    fn descend(&mut self, blocks: &dyn DirectoryBlocks, hash: Option<u32>) -> Result<()> {
        let context = blocks.context();
        while self.frames.len() < self.levels {
            let logical = self.leaf;
            let block = blocks.block(logical)?;
            let count = check_node(context, &block.read())
                .map_err(|error| context.in_block(logical, error))?;
            let frame = IndexFrame {
                block,
                logical,
                entries_at: NODE_ENTRIES_AT,
                count,
                position: 0,
            };
            self.push(blocks, frame, hash)
                .map_err(|error| context.in_block(logical, error))?;
        }
        Ok(())
    }

    /// Advances to the next leaf if `takes` accepts its hash; returns whether it did.
    fn advance(
        &mut self,
        blocks: &dyn DirectoryBlocks,
        takes: impl Fn(u32) -> bool,
    ) -> Result<bool> {
        let end = self
            .frames
            .iter()
            .rposition(|frame| frame.position + 1 < frame.count);
        let Some(depth) = end else { return Ok(false) };
        let frame = &mut self.frames[depth];
        let logical = frame.logical;
        let bytes = frame.block.read();
        if !takes(key(&bytes, frame.entries_at, frame.position + 1)) {
            return Ok(false);
        }
        frame.position += 1;
        self.leaf = child(&bytes, frame.entries_at, frame.position);
        drop(bytes);
        self.frames.truncate(depth + 1);
        self.check_child(blocks)
            .map_err(|error| blocks.context().in_block(logical, error))?;
        self.descend(blocks, None)?;
        Ok(true)
    }
}

/// The root of an index, checked.
struct IndexRoot {
    block: MetadataBlock,
    version: HashVersion,
    levels: usize,
    count: usize,
}

impl IndexRoot {
    fn read(blocks: &dyn DirectoryBlocks) -> Result<Self> {
        let context = blocks.context();
        let block = match blocks.block_count() {
            0 => Err(Error::corrupt("indexed directory without a block")),
            _ => blocks.block(LogicalBlock(0)),
        }?;
        let checked = check_root(context, &block.read());
        let (version, levels, count) =
            checked.map_err(|error| context.in_block(LogicalBlock(0), error))?;
        Ok(Self {
            block,
            version,
            levels,
            count,
        })
    }

    fn hash(&self, context: &DirectoryContext, name: &SoughtName<'_>) -> u32 {
        context.hash(self.version, name)
    }
}

/// Looks up `name` by its hash.
pub(crate) fn locate(
    blocks: &dyn DirectoryBlocks,
    name: &SoughtName<'_>,
) -> Result<Option<LocatedEntry>> {
    let root = IndexRoot::read(blocks)?;
    let hash = root.hash(blocks.context(), name);
    let mut path = IndexPath::to(blocks, root, hash)?;
    let mut visited = BTreeSet::new();
    loop {
        let located = locate_in_block(blocks, path.leaf, name)?;
        if located.is_some() || !path.advance(blocks, |key| key & !1 == hash)? {
            return Ok(located);
        }
        visit_once(blocks, &mut visited, path.leaf)?;
    }
}

/// Checks that a leaf was not visited before: a forged index could lead through a circle for ever.
fn visit_once(
    blocks: &dyn DirectoryBlocks,
    visited: &mut BTreeSet<u32>,
    leaf: LogicalBlock,
) -> Result<()> {
    if !visited.insert(leaf.0) {
        let error = Error::corrupt(format!("index leads to block {leaf} twice"));
        return Err(blocks.context().in_block(LogicalBlock(0), error));
    }
    Ok(())
}

/// Called with copies of a leaf and of the leaves that continue its hash.
pub(crate) type VisitLeaves<'a> =
    dyn FnMut(HashVersion, &[(LogicalBlock, Vec<u8>)]) -> Result<ControlFlow<()>> + 'a;

/// Calls `visit` for the leaves in the order of hashes, from the first that may hold `first_hash`,
/// until it breaks. One call gets all names of a hash.
pub(crate) fn visit_leaves(
    blocks: &dyn DirectoryBlocks,
    first_hash: u32,
    visit: &mut VisitLeaves<'_>,
) -> Result<()> {
    let root = IndexRoot::read(blocks)?;
    let version = root.version;
    let mut path = IndexPath::to(blocks, root, first_hash)?;
    let (mut leaves, mut visited) = (Vec::new(), BTreeSet::new());
    loop {
        visit_once(blocks, &mut visited, path.leaf)?;
        leaves.push((path.leaf, blocks.block(path.leaf)?.read().to_vec()));
        // All leaves of one hash in one call: their names are sorted together.
        if path.advance(blocks, |key| key & 1 == 1)? {
            continue;
        }
        if visit(version, &leaves)?.is_break() || !path.advance(blocks, |_| true)? {
            return Ok(());
        }
        leaves.clear();
    }
}

/// Inserts `entry` into the leaf for its hash, and makes room as needed.
///
/// # Errors
/// EEXIST; ENOSPC if the index is full.
pub(crate) fn insert(blocks: &dyn DirectoryBlocks, entry: &NewEntry<'_>) -> Result<()> {
    let context = blocks.context();
    let name = context.sought(entry.name);
    // Each round except the last makes room in one level of the index.
    for _ in 0..2 * levels_max(context) + 1 {
        let root = IndexRoot::read(blocks)?;
        let (hash, version) = (root.hash(context, &name), root.version);
        let path = IndexPath::to(blocks, root, hash)?;
        let block = blocks.block(path.leaf)?;
        match find_room(context, path.leaf, &block, &name)? {
            Room::Full { free_len } if free_len < block::needed_len(entry.name.len()) => {}
            Room::Full { .. } => return repack(context, &block, entry),
            room => {
                let mut bytes = block.write();
                block::insert(&mut bytes, room, entry);
                block::seal(context, &mut bytes);
                return Ok(());
            }
        }
        match path.frames.last() {
            Some(parent) if !parent.is_full(context) => {
                return split_leaf(blocks, parent, &block, version, entry)
                    .map_err(|error| context.in_block(path.leaf, error));
            }
            _ => make_room(blocks, &path)?,
        }
    }
    Err(context.in_block(
        LogicalBlock(0),
        Error::corrupt("index is full after room was made"),
    ))
}

/// Compacts a leaf whose free space is scattered, and adds `entry`.
fn repack(context: &DirectoryContext, block: &MetadataBlock, entry: &NewEntry<'_>) -> Result<()> {
    let copy = block.read().to_vec();
    let mut entries = live_entries(context, &copy, 0)?;
    entries.push(*entry);
    block::pack(context, &mut block.write(), entries);
    Ok(())
}

/// Splits a full leaf into about halves by hash, with `entry` among them. Adds the new leaf to
/// `parent`, which has room.
fn split_leaf(
    blocks: &dyn DirectoryBlocks,
    parent: &IndexFrame,
    block: &MetadataBlock,
    version: HashVersion,
    entry: &NewEntry<'_>,
) -> Result<()> {
    let context = blocks.context();
    let copy = block.read().to_vec();
    let mut entries: Vec<(u32, NewEntry<'_>)> = live_entries(context, &copy, 0)?
        .into_iter()
        .chain([*entry])
        .map(|entry| {
            let hash = context.hash(version, &context.sought(entry.name));
            (hash, entry)
        })
        .collect();
    entries.sort_by_key(|(hash, _)| *hash);

    // The longest entry is small compared to a block, so that both halves fit at any middle.
    let total_len: usize = entries
        .iter()
        .map(|(_, entry)| block::needed_len(entry.name.len()))
        .sum();
    let mut low_len = 0;
    let middle = entries.iter().position(|(_, entry)| {
        low_len += block::needed_len(entry.name.len());
        low_len >= total_len / 2
    });
    let split = middle.map_or(0, |middle| middle + 1);
    if split == 0 || split >= entries.len() {
        return Err(Error::corrupt("full leaf without entries to split"));
    }
    let first_hash = entries[split].0;
    let key = first_hash | u32::from(entries[split - 1].0 == first_hash);

    // Before the leaf is changed: ENOSPC leaves no trace (invariant 3).
    let (new_logical, new_block) = blocks.append()?;
    let high = entries[split..].iter().map(|(_, entry)| *entry);
    block::pack(context, &mut new_block.write(), high);
    let low = entries[..split].iter().map(|(_, entry)| *entry);
    block::pack(context, &mut block.write(), low);
    insert_key(context, parent, key, new_logical);
    Ok(())
}

/// Inserts a child after the position of `frame`, which has room.
fn insert_key(context: &DirectoryContext, frame: &IndexFrame, key: u32, child: LogicalBlock) {
    let entry = RawIndexEntry {
        hash: U32::new(key),
        block: U32::new(child.0),
    };
    let at = frame.entries_at + (frame.position + 1) * INDEX_ENTRY_LEN;
    let end = frame.entries_at + frame.count * INDEX_ENTRY_LEN;
    let mut bytes = frame.block.write();
    bytes.copy_within(at..end, at + INDEX_ENTRY_LEN);
    bytes[at..at + INDEX_ENTRY_LEN].copy_from_slice(entry.as_bytes());
    set_count(context, &mut bytes, frame.entries_at, frame.count + 1);
    seal(context, &mut bytes, frame.entries_at);
}

/// Makes room in the index by one step: splits the node below the lowest one with room, or adds a
/// level below the root.
fn make_room(blocks: &dyn DirectoryBlocks, path: &IndexPath) -> Result<()> {
    let context = blocks.context();
    let with_room = path
        .frames
        .iter()
        .rposition(|frame| !frame.is_full(context));
    match (with_room, path.frames.first()) {
        (Some(depth), _) if depth + 1 < path.frames.len() => {
            split_node(blocks, &path.frames[depth], &path.frames[depth + 1])
        }
        (None, Some(root)) if path.levels < levels_max(context) => add_level(blocks, root),
        _ => {
            let error = Error::new(Errno::NOSPC, "directory index full");
            Err(error.at(format!("directory inode {}", context.number)))
        }
    }
}

/// Moves the upper half of `node` into a new node, and adds that to `parent`, which has room.
fn split_node(blocks: &dyn DirectoryBlocks, parent: &IndexFrame, node: &IndexFrame) -> Result<()> {
    let context = blocks.context();
    let (new_logical, new_block) = blocks.append()?;
    let half = node.count / 2;
    let mut bytes = node.block.write();
    let key = key(&bytes, node.entries_at, half);
    write_node(
        context,
        &mut new_block.write(),
        entries_of(&bytes, node, half),
    );
    set_count(context, &mut bytes, node.entries_at, half);
    seal(context, &mut bytes, node.entries_at);
    drop(bytes);
    insert_key(context, parent, key, new_logical);
    Ok(())
}

/// Moves all entries of the root into a new node, which becomes the root's only child.
fn add_level(blocks: &dyn DirectoryBlocks, root: &IndexFrame) -> Result<()> {
    let context = blocks.context();
    let (new_logical, new_block) = blocks.append()?;
    let mut bytes = root.block.write();
    write_node(context, &mut new_block.write(), entries_of(&bytes, root, 0));
    // `indirect_levels` cannot overflow: check_root limited it.
    bytes[ROOT_INFO_AT + std::mem::offset_of!(RawRootInfo, indirect_levels)] += 1;
    set_child(&mut bytes, ROOT_ENTRIES_AT, 0, new_logical);
    set_count(context, &mut bytes, ROOT_ENTRIES_AT, 1);
    seal(context, &mut bytes, ROOT_ENTRIES_AT);
    Ok(())
}

/// Returns the bytes of a frame's entries from `first` on.
fn entries_of<'a>(bytes: &'a [u8], frame: &IndexFrame, first: usize) -> &'a [u8] {
    &bytes[frame.entries_at + first * INDEX_ENTRY_LEN
        ..frame.entries_at + frame.count * INDEX_ENTRY_LEN]
}

/// Turns a linear directory of one block into an indexed one with one leaf.
pub(crate) fn convert(blocks: &dyn DirectoryBlocks) -> Result<()> {
    let context = blocks.context();
    let place = |error| context.in_block(LogicalBlock(0), error);
    let version = HashVersion::from_disk(context.default_hash_version)?;
    let block = blocks.block(LogicalBlock(0))?;
    let copy = block.read().to_vec();
    let region = block::checked_region(context, &copy).map_err(place)?;
    let mut dots = Entries::new(region).take(2);
    let mut dot = |name: &[u8]| match dots.next() {
        Some(Ok(entry)) if entry.name == name && !entry.is_unused() => Ok(NewEntry {
            number: entry.number,
            file_type: entry.file_type,
            name: entry.name,
        }),
        _ => Err(place(Error::corrupt("does not start with . and .."))),
    };
    let (own, parent) = (dot(b".")?, dot(b"..")?);
    let entries = live_entries(context, &copy, 2).map_err(place)?;

    // Before the first block is changed: ENOSPC leaves no trace (invariant 3).
    let (leaf_logical, leaf) = blocks.append()?;
    block::pack(context, &mut leaf.write(), entries);
    let info = RawRootInfo {
        reserved: U32::ZERO,
        hash_version: version.to_disk(),
        info_length: ROOT_INFO_LEN as u8,
        indirect_levels: 0,
        unused_flags: 0,
    };
    let mut bytes = block.write();
    bytes.fill(0);
    block::write_entry(&mut bytes, 0, 12, &own);
    // To a reader without index support `..` fills the block.
    block::write_entry(&mut bytes, 12, context.block_size - 12, &parent);
    bytes[ROOT_INFO_AT..ROOT_ENTRIES_AT].copy_from_slice(info.as_bytes());
    set_child(&mut bytes, ROOT_ENTRIES_AT, 0, leaf_logical);
    set_count(context, &mut bytes, ROOT_ENTRIES_AT, 1);
    seal(context, &mut bytes, ROOT_ENTRIES_AT);
    Ok(())
}
