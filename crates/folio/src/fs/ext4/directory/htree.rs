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
//! Source: the kernel's ext4 documentation, "Hash Tree Directories"; Linux: fs/ext4/namei.c.
//!
//! Every change leaves a tree that is whole: growth of the index and the split of a leaf are
//! separate steps, each with one new block, taken before anything is written.

use super::block::{self, Entries, NewEntry, Room};
use super::hash::{HashVersion, hash};
use super::names::{self, DirectoryBlocks, DirectoryContext, Located};
use crate::base::{Errno, Error, LogicalBlock, Result};
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::fs::ext4::layout::checksum::crc32c;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::mem::size_of;
use std::ops::ControlFlow;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the root says of the index, behind `.` and `..`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RawRootInfo {
    pub(crate) reserved: U32,
    pub(crate) hash_version: u8,
    pub(crate) info_length: u8,
    pub(crate) indirect_levels: u8,
    pub(crate) unused_flags: u8,
}

pub(crate) const ROOT_INFO_AT: usize = 24;
pub(crate) const ROOT_INFO_LEN: usize = 8;
const _: () = assert!(size_of::<RawRootInfo>() == ROOT_INFO_LEN);

/// One entry of the index. In the first, limit and count stand where the others have their hash.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawIndexEntry {
    hash: U32,
    block: U32,
}

const INDEX_ENTRY_LEN: usize = 8;
const _: () = assert!(size_of::<RawIndexEntry>() == INDEX_ENTRY_LEN);

/// Behind the last possible entry, with metadata_csum: reserved u32, checksum u32.
const TAIL_LEN: usize = 8;

/// Where the entries of the root start, in bytes.
pub(crate) const ROOT_ENTRIES_AT: usize = ROOT_INFO_AT + ROOT_INFO_LEN;
/// Where the entries of an inner node start, in bytes: behind the head of an unused directory
/// entry.
pub(crate) const NODE_ENTRIES_AT: usize = 8;

/// The part of a child's number that counts; the rest is reserved.
const CHILD_MASK: u32 = 0x0fff_ffff;

/// The most levels of index blocks: 2, or 3 with large_dir.
pub(crate) fn levels_max(context: &DirectoryContext) -> usize {
    if context.large_dir { 3 } else { 2 }
}

/// How many entries an index block has room for.
pub(crate) fn limit(context: &DirectoryContext, entries_at: usize) -> usize {
    let tail_len = if context.checksum_seed.is_some() {
        TAIL_LEN
    } else {
        0
    };
    (context.block_size - entries_at - tail_len) / INDEX_ENTRY_LEN
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |four| {
        u32::from_le_bytes([four[0], four[1], four[2], four[3]])
    })
}

pub(crate) fn count(bytes: &[u8], entries_at: usize) -> usize {
    (read_u32(bytes, entries_at) >> 16) as usize
}

fn set_count(context: &DirectoryContext, bytes: &mut [u8], entries_at: usize, count: usize) {
    let head = U32::new((count as u32) << 16 | limit(context, entries_at) as u32);
    bytes[entries_at..entries_at + 4].copy_from_slice(head.as_bytes());
}

pub(crate) fn key(bytes: &[u8], entries_at: usize, position: usize) -> u32 {
    read_u32(bytes, entries_at + position * INDEX_ENTRY_LEN)
}

pub(crate) fn child(bytes: &[u8], entries_at: usize, position: usize) -> LogicalBlock {
    LogicalBlock(read_u32(bytes, entries_at + position * INDEX_ENTRY_LEN + 4) & CHILD_MASK)
}

fn set_child(bytes: &mut [u8], entries_at: usize, position: usize, child: LogicalBlock) {
    let at = entries_at + position * INDEX_ENTRY_LEN + 4;
    bytes[at..at + 4].copy_from_slice(&child.0.to_le_bytes());
}

/// The checksum of an index block: over all entries in use, then the tail with its checksum zero.
fn checksum(context: &DirectoryContext, seed: u32, bytes: &[u8], entries_at: usize) -> u32 {
    let used =
        entries_at + count(bytes, entries_at).min(limit(context, entries_at)) * INDEX_ENTRY_LEN;
    let tail = tail_at(context, entries_at);
    let crc = crc32c(seed, &bytes[..used]);
    crc32c(crc32c(crc, &bytes[tail..tail + 4]), &[0; 4])
}

fn tail_at(context: &DirectoryContext, entries_at: usize) -> usize {
    entries_at + limit(context, entries_at) * INDEX_ENTRY_LEN
}

/// Checks the checksum of an index block, where there is one.
pub(crate) fn check_checksum(
    context: &DirectoryContext,
    bytes: &[u8],
    entries_at: usize,
) -> Result<()> {
    let Some(seed) = context.checksum_seed else {
        return Ok(());
    };
    if read_u32(bytes, tail_at(context, entries_at) + 4)
        != checksum(context, seed, bytes, entries_at)
    {
        return Err(Error::corrupt("bad checksum of the index"));
    }
    Ok(())
}

/// Writes the checksum of an index block after a change.
pub(crate) fn seal(context: &DirectoryContext, bytes: &mut [u8], entries_at: usize) {
    let Some(seed) = context.checksum_seed else {
        return;
    };
    let checksum = checksum(context, seed, bytes, entries_at);
    let at = tail_at(context, entries_at) + 4;
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// Checks an index block whole and returns how many entries it has.
fn check(context: &DirectoryContext, bytes: &[u8], entries_at: usize) -> Result<usize> {
    let (limit_found, limit) = (
        (read_u32(bytes, entries_at) & 0xffff) as usize,
        limit(context, entries_at),
    );
    if limit_found != limit {
        return Err(Error::corrupt(format!(
            "index limit {limit_found}, should be {limit}"
        )));
    }
    let count = count(bytes, entries_at);
    if count == 0 || count > limit {
        return Err(Error::corrupt(format!(
            "index count {count} of at most {limit}"
        )));
    }
    check_checksum(context, bytes, entries_at)?;
    let mut previous = 0;
    for position in 1..count {
        let key = key(bytes, entries_at, position);
        if key < previous {
            return Err(Error::corrupt(format!(
                "index entry {position} is out of order"
            )));
        }
        previous = key;
    }
    Ok(count)
}

/// One index block on the way to a leaf.
struct Frame {
    block: MetadataBlock,
    logical: LogicalBlock,
    entries_at: usize,
    count: usize,
    /// The entry taken.
    position: usize,
}

impl Frame {
    fn is_full(&self, context: &DirectoryContext) -> bool {
        self.count >= limit(context, self.entries_at)
    }
}

/// The way from the root to a leaf.
struct Path {
    frames: SmallVec<[Frame; 3]>,
    /// Index blocks in all, which is how deep leaves lie.
    levels: usize,
    leaf: LogicalBlock,
}

impl Path {
    /// The way to the leaf where the names with hash `hash` start.
    fn to(blocks: &dyn DirectoryBlocks, root: Root, hash: u32) -> Result<Self> {
        let mut path = Self {
            frames: SmallVec::new(),
            levels: root.levels,
            leaf: LogicalBlock(0),
        };
        let context = blocks.context();
        let first = Frame {
            block: root.block,
            logical: LogicalBlock(0),
            entries_at: ROOT_ENTRIES_AT,
            count: root.count,
            position: 0,
        };
        path.push(blocks, first, Some(hash))
            .map_err(|error| context.place(LogicalBlock(0), error))?;
        path.go_down(blocks, Some(hash))?;
        Ok(path)
    }

    /// Takes an index block into the path, at the entry for `hash` or at the first one.
    fn push(
        &mut self,
        blocks: &dyn DirectoryBlocks,
        mut frame: Frame,
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
    fn go_down(&mut self, blocks: &dyn DirectoryBlocks, hash: Option<u32>) -> Result<()> {
        let context = blocks.context();
        while self.frames.len() < self.levels {
            let logical = self.leaf;
            let block = blocks.block(logical)?;
            let count = check_node(context, &block.read())
                .map_err(|error| context.place(logical, error))?;
            let frame = Frame {
                block,
                logical,
                entries_at: NODE_ENTRIES_AT,
                count,
                position: 0,
            };
            self.push(blocks, frame, hash)
                .map_err(|error| context.place(logical, error))?;
        }
        Ok(())
    }

    /// Goes on to the next leaf if `takes` its hash; whether it has.
    fn go_on(&mut self, blocks: &dyn DirectoryBlocks, takes: impl Fn(u32) -> bool) -> Result<bool> {
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
            .map_err(|error| blocks.context().place(logical, error))?;
        self.go_down(blocks, None)?;
        Ok(true)
    }
}

/// The last entry whose hash is not above `hash`; the first one has none and stands for all below
/// the second.
fn search(bytes: &[u8], entries_at: usize, count: usize, hash: u32) -> usize {
    let (mut low, mut high) = (0, count);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if key(bytes, entries_at, middle) <= hash {
            low = middle
        } else {
            high = middle
        }
    }
    low
}

/// The root of an index, checked.
struct Root {
    block: MetadataBlock,
    version: HashVersion,
    levels: usize,
    count: usize,
}

impl Root {
    fn read(blocks: &dyn DirectoryBlocks) -> Result<Self> {
        let context = blocks.context();
        let block = match blocks.block_count() {
            0 => Err(Error::corrupt("indexed directory without a block")),
            _ => blocks.block(LogicalBlock(0)),
        }?;
        let checked = check_root(context, &block.read());
        let (version, levels, count) =
            checked.map_err(|error| context.place(LogicalBlock(0), error))?;
        Ok(Self {
            block,
            version,
            levels,
            count,
        })
    }

    fn hash(&self, context: &DirectoryContext, name: &[u8]) -> u32 {
        hash(
            name,
            self.version,
            context.unsigned_hash,
            &context.hash_seed,
        )
    }
}

fn check_root(context: &DirectoryContext, bytes: &[u8]) -> Result<(HashVersion, usize, usize)> {
    if block::kind(context, LogicalBlock(0), bytes) != block::BlockKind::IndexRoot {
        return Err(Error::corrupt("no root of an index"));
    }
    let Ok((info, _)) = RawRootInfo::ref_from_prefix(&bytes[ROOT_INFO_AT..]) else {
        return Err(Error::corrupt("no room for the root of an index"));
    };
    let version = HashVersion::from_disk(info.hash_version)?;
    if usize::from(info.info_length) != ROOT_INFO_LEN || info.unused_flags & 1 != 0 {
        return Err(Error::corrupt("unknown form of the index root"));
    }
    let levels = usize::from(info.indirect_levels) + 1;
    if levels > levels_max(context) {
        return Err(Error::corrupt(format!("index of {levels} levels")));
    }
    Ok((version, levels, check(context, bytes, ROOT_ENTRIES_AT)?))
}

fn check_node(context: &DirectoryContext, bytes: &[u8]) -> Result<usize> {
    if block::kind(context, LogicalBlock(u32::MAX), bytes) != block::BlockKind::IndexNode {
        return Err(Error::corrupt("no node of an index"));
    }
    check(context, bytes, NODE_ENTRIES_AT)
}

/// The entry called `name`, found by its hash.
pub(crate) fn locate(blocks: &dyn DirectoryBlocks, name: &[u8]) -> Result<Option<Located>> {
    let root = Root::read(blocks)?;
    let hash = root.hash(blocks.context(), name);
    let mut path = Path::to(blocks, root, hash)?;
    let mut visited = BTreeSet::new();
    loop {
        let located = names::locate_in_block(blocks, path.leaf, name)?;
        if located.is_some() || !path.go_on(blocks, |key| key & !1 == hash)? {
            return Ok(located);
        }
        visit_once(blocks, &mut visited, path.leaf)?;
    }
}

/// Refuses a leaf that was visited before: a forged index could lead through the same few for ever.
fn visit_once(
    blocks: &dyn DirectoryBlocks,
    visited: &mut BTreeSet<u32>,
    leaf: LogicalBlock,
) -> Result<()> {
    if !visited.insert(leaf.0) {
        let error = Error::corrupt(format!("index leads to block {leaf} twice"));
        return Err(blocks.context().place(LogicalBlock(0), error));
    }
    Ok(())
}

/// Called with a leaf and those that continue it, in copies.
pub(crate) type VisitLeaves<'a> =
    dyn FnMut(HashVersion, &[(LogicalBlock, Vec<u8>)]) -> Result<ControlFlow<()>> + 'a;

/// Calls `visit` for the leaves from the first that may hold the hash `first_hash` on, in the order
/// of hashes, until it breaks. All names of one hash come in one call.
pub(crate) fn visit_leaves(
    blocks: &dyn DirectoryBlocks,
    first_hash: u32,
    visit: &mut VisitLeaves<'_>,
) -> Result<()> {
    let root = Root::read(blocks)?;
    let version = root.version;
    let mut path = Path::to(blocks, root, first_hash)?;
    let (mut leaves, mut visited) = (Vec::new(), BTreeSet::new());
    loop {
        visit_once(blocks, &mut visited, path.leaf)?;
        leaves.push((path.leaf, blocks.block(path.leaf)?.read().to_vec()));
        if path.go_on(blocks, |key| key & 1 == 1)? {
            continue;
        }
        if visit(version, &leaves)?.is_break() || !path.go_on(blocks, |_| true)? {
            return Ok(());
        }
        leaves.clear();
    }
}

/// Inserts `entry` into the leaf for its hash, making room as needed. ENOSPC when the index has no
/// room left.
pub(crate) fn insert(blocks: &dyn DirectoryBlocks, entry: &NewEntry<'_>) -> Result<()> {
    let context = blocks.context();
    // Each round but the last makes room in one level of the index.
    for _ in 0..2 * levels_max(context) + 1 {
        let root = Root::read(blocks)?;
        let (hash, version) = (root.hash(context, entry.name), root.version);
        let path = Path::to(blocks, root, hash)?;
        let block = blocks.block(path.leaf)?;
        match names::find_room(context, path.leaf, &block, entry.name)? {
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
                    .map_err(|error| context.place(path.leaf, error));
            }
            _ => make_room(blocks, &path)?,
        }
    }
    Err(context.place(
        LogicalBlock(0),
        Error::corrupt("index has no room where it should"),
    ))
}

/// Gathers a leaf's free space at its end, with `entry` in it.
fn repack(context: &DirectoryContext, block: &MetadataBlock, entry: &NewEntry<'_>) -> Result<()> {
    let copy = block.read().to_vec();
    let mut entries = live_entries(context, &copy, 0)?;
    entries.push(*entry);
    block::pack(context, &mut block.write(), entries);
    Ok(())
}

/// The used entries of a leaf from its `skip`th on.
fn live_entries<'a>(
    context: &DirectoryContext,
    bytes: &'a [u8],
    skip: usize,
) -> Result<Vec<NewEntry<'a>>> {
    let mut live = Vec::new();
    for entry in Entries::new(&bytes[..block::region_len(context)]).skip(skip) {
        let entry = entry?;
        if !entry.is_unused() {
            live.push(NewEntry {
                number: entry.number,
                file_type: entry.file_type,
                name: entry.name,
            });
        }
    }
    Ok(live)
}

/// Splits a full leaf in two about halves by hash, with `entry` among them, and tells `parent`,
/// which has room.
fn split_leaf(
    blocks: &dyn DirectoryBlocks,
    parent: &Frame,
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
            (
                hash(
                    entry.name,
                    version,
                    context.unsigned_hash,
                    &context.hash_seed,
                ),
                entry,
            )
        })
        .collect();
    entries.sort_by_key(|(hash, _)| *hash);

    // The longest entry is small beside a block, so that each side fits wherever the middle falls.
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
        return Err(Error::corrupt("full leaf without entries to share out"));
    }
    let first_hash = entries[split].0;
    let key = first_hash | u32::from(entries[split - 1].0 == first_hash);

    let (new_logical, new_block) = blocks.append()?;
    let high = entries[split..].iter().map(|(_, entry)| *entry);
    block::pack(context, &mut new_block.write(), high);
    let low = entries[..split].iter().map(|(_, entry)| *entry);
    block::pack(context, &mut block.write(), low);
    insert_key(context, parent, key, new_logical);
    Ok(())
}

/// Inserts a child behind the one that `frame` has taken; there is room.
fn insert_key(context: &DirectoryContext, frame: &Frame, key: u32, child: LogicalBlock) {
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

/// Makes room in the lowest level of an index by one step: splits the node below the lowest that
/// has room, or adds a level below the root.
fn make_room(blocks: &dyn DirectoryBlocks, path: &Path) -> Result<()> {
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

/// Moves the upper half of `node` into a new node and tells `parent`, which has room.
fn split_node(blocks: &dyn DirectoryBlocks, parent: &Frame, node: &Frame) -> Result<()> {
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

/// Moves everything the root has into a new node below it, the root's only child.
fn add_level(blocks: &dyn DirectoryBlocks, root: &Frame) -> Result<()> {
    let context = blocks.context();
    let (new_logical, new_block) = blocks.append()?;
    let mut bytes = root.block.write();
    write_node(context, &mut new_block.write(), entries_of(&bytes, root, 0));
    // `indirect_levels` cannot overflow: check_root has bounded it.
    bytes[ROOT_INFO_AT + std::mem::offset_of!(RawRootInfo, indirect_levels)] += 1;
    set_child(&mut bytes, ROOT_ENTRIES_AT, 0, new_logical);
    set_count(context, &mut bytes, ROOT_ENTRIES_AT, 1);
    seal(context, &mut bytes, ROOT_ENTRIES_AT);
    Ok(())
}

/// The bytes of a frame's entries from `first` on.
fn entries_of<'a>(bytes: &'a [u8], frame: &Frame, first: usize) -> &'a [u8] {
    &bytes[frame.entries_at + first * INDEX_ENTRY_LEN
        ..frame.entries_at + frame.count * INDEX_ENTRY_LEN]
}

/// Fills `bytes` with a node of the index that has `entries`; the hash of the first gives way to
/// limit and count.
fn write_node(context: &DirectoryContext, bytes: &mut [u8], entries: &[u8]) {
    bytes.fill(0);
    bytes[4..6].copy_from_slice(U16::new(context.block_size as u16).as_bytes());
    bytes[NODE_ENTRIES_AT..NODE_ENTRIES_AT + entries.len()].copy_from_slice(entries);
    set_count(
        context,
        bytes,
        NODE_ENTRIES_AT,
        entries.len() / INDEX_ENTRY_LEN,
    );
    seal(context, bytes, NODE_ENTRIES_AT);
}

/// Turns a linear directory of one block into an indexed one with one leaf.
pub(crate) fn convert(blocks: &dyn DirectoryBlocks) -> Result<()> {
    let context = blocks.context();
    let place = |error| context.place(LogicalBlock(0), error);
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
    block::write_entry(&mut bytes, 12, context.block_size - 12, &parent);
    bytes[ROOT_INFO_AT..ROOT_ENTRIES_AT].copy_from_slice(info.as_bytes());
    set_child(&mut bytes, ROOT_ENTRIES_AT, 0, leaf_logical);
    set_count(context, &mut bytes, ROOT_ENTRIES_AT, 1);
    seal(context, &mut bytes, ROOT_ENTRIES_AT);
    Ok(())
}
