//! The names in a directory: find, insert, remove, replace, iterate. Linux: fs/ext4/namei.c,
//! fs/ext4/dir.c.
//!
//! ```text
//!   linear:   block 0  . .. a b c | block 1  d e f | ...                 searched from the start
//!   indexed:  block 0  . .. root  | leaf | leaf | node | leaf | ...      htree.rs finds the leaf by hash
//! ```
//!
//! A directory starts linear and gets its index when the first block overflows. The directory is
//! not locked here: the VFS holds the inode lock, exclusive around changes.

use super::block::{self, BlockKind, Entries, Entry, NewEntry, Room};
use super::hash::{HashVersion, hash};
use super::htree;
use crate::base::{Errno, Error, InodeNumber, LogicalBlock, Result};
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::fs::ext4::layout::checksum::crc32c;
use crate::vfs::{DirectoryEntry, FileType};
use std::ops::ControlFlow;

/// What the code here must know of a directory and of its file system.
#[derive(Debug, Clone)]
pub(crate) struct DirectoryContext {
    /// Bytes of a block: 1024, 2048 or 4096.
    pub(crate) block_size: usize,
    /// The directory's own inode.
    pub(crate) number: InodeNumber,
    /// With metadata_csum: crc32c over the file system's seed, the inode number and its generation.
    pub(crate) checksum_seed: Option<u32>,
    /// `s_hash_seed`.
    pub(crate) hash_seed: [u32; 4],
    /// `s_def_hash_version`, for indexes made from now on.
    pub(crate) default_hash_version: u8,
    /// `s_flags`: names are hashed as unsigned bytes.
    pub(crate) unsigned_hash: bool,
    /// Feature filetype: entries record the type.
    pub(crate) has_file_type: bool,
    /// Feature large_dir: indexes may have three levels.
    pub(crate) large_dir: bool,
    /// Feature dir_index: directories may be indexed.
    pub(crate) dir_index: bool,
    /// The inode's casefold flag: names are hashed without case.
    pub(crate) casefold: bool,
}

impl DirectoryContext {
    /// Says where `error` happened.
    pub(crate) fn place(&self, block: LogicalBlock, error: Error) -> Error {
        error.at(format!("directory inode {}, block {block}", self.number))
    }

    fn type_of(&self, entry: &Entry<'_>) -> Option<FileType> {
        if self.has_file_type {
            block::file_type_of(entry.file_type)
        } else {
            None
        }
    }

    /// The entry as a program is told of it.
    fn told<'a>(&self, entry: &Entry<'a>, next_cookie: u64) -> DirectoryEntry<'a> {
        let number = InodeNumber(entry.number.into());
        DirectoryEntry {
            name: entry.name,
            number,
            file_type: self.type_of(entry),
            next_cookie,
        }
    }

    fn type_code(&self, file_type: FileType) -> u8 {
        if self.has_file_type {
            block::file_type_code(file_type)
        } else {
            0
        }
    }
}

/// A directory's blocks.
pub(crate) trait DirectoryBlocks {
    /// What must be known of the directory.
    fn context(&self) -> &DirectoryContext;

    /// How many blocks the directory has (its size over the block size).
    fn block_count(&self) -> u32;

    /// One of them; an error for a hole.
    fn block(&self, block: LogicalBlock) -> Result<MetadataBlock>;

    /// A new block at the end, zeroed. The directory's size has grown when this returns.
    fn append(&self) -> Result<(LogicalBlock, MetadataBlock)>;
}

/// A name that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// The inode it leads to, as the directory says it.
    pub(crate) number: InodeNumber,
    /// Its type, where the directory records it.
    pub(crate) file_type: Option<FileType>,
}

/// An entry in its block.
pub(crate) struct Located {
    pub(crate) block: MetadataBlock,
    pub(crate) logical: LogicalBlock,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) previous: Option<usize>,
    pub(crate) found: Found,
}

/// The inode called `name`, if there is one. `.` and `..` can be asked for.
pub(crate) fn find(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    name: &[u8],
) -> Result<Option<Found>> {
    Ok(locate(blocks, is_indexed, name)?.map(|located| located.found))
}

/// Adds `name`. Turns the directory into an indexed one, setting `is_indexed`, when its first block
/// overflows. EEXIST if the name is met on the way; ENOSPC if neither the directory nor its index
/// can grow.
pub(crate) fn insert(
    blocks: &dyn DirectoryBlocks,
    is_indexed: &mut bool,
    name: &[u8],
    number: InodeNumber,
    file_type: FileType,
) -> Result<()> {
    let context = blocks.context();
    refuse_casefold(context)?;
    check_new_name(name)?;
    let entry = NewEntry {
        number: inode_u32(number)?,
        file_type: context.type_code(file_type),
        name,
    };
    if *is_indexed {
        return htree::insert(blocks, &entry);
    }
    for logical in (0..blocks.block_count()).map(LogicalBlock) {
        if insert_into_leaf(context, logical, &blocks.block(logical)?, &entry)? {
            return Ok(());
        }
    }
    if context.dir_index && blocks.block_count() == 1 {
        htree::convert(blocks)?;
        *is_indexed = true;
        return htree::insert(blocks, &entry);
    }
    let (_, block) = blocks.append()?;
    block::pack(context, &mut block.write(), [entry]);
    Ok(())
}

/// Takes `name` away and returns what it led to; ENOENT if it is not there.
pub(crate) fn remove(blocks: &dyn DirectoryBlocks, is_indexed: bool, name: &[u8]) -> Result<Found> {
    let context = blocks.context();
    refuse_casefold(context)?;
    if is_dot_or_dot_dot(name) {
        return Err(Errno::INVAL.into());
    }
    let at = locate(blocks, is_indexed, name)?.ok_or(Errno::NOENT)?;
    let mut bytes = at.block.write();
    block::remove(&mut bytes, at.offset, at.len, at.previous);
    seal(context, at.logical, &mut bytes);
    Ok(at.found)
}

/// Makes `name`, `..` included, lead to another inode and returns what it led to; ENOENT if it is
/// not there.
pub(crate) fn replace(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    name: &[u8],
    number: InodeNumber,
    file_type: FileType,
) -> Result<Found> {
    let context = blocks.context();
    refuse_casefold(context)?;
    let at = locate(blocks, is_indexed, name)?.ok_or(Errno::NOENT)?;
    let number = inode_u32(number)?;
    let mut bytes = at.block.write();
    block::redirect(&mut bytes, at.offset, number, context.type_code(file_type));
    seal(context, at.logical, &mut bytes);
    Ok(at.found)
}

/// Gives a directory without blocks its first one, with `.` and `..`.
pub(crate) fn initialize(
    blocks: &dyn DirectoryBlocks,
    own: InodeNumber,
    parent: InodeNumber,
) -> Result<()> {
    let context = blocks.context();
    refuse_casefold(context)?;
    let file_type = context.type_code(FileType::Directory);
    let dot = NewEntry {
        number: inode_u32(own)?,
        file_type,
        name: b".",
    };
    let dot_dot = NewEntry {
        number: inode_u32(parent)?,
        file_type,
        name: b"..",
    };
    let (_, block) = blocks.append()?;
    block::pack(context, &mut block.write(), [dot, dot_dot]);
    Ok(())
}

/// Whether `.` and `..` are all there is.
pub(crate) fn is_empty(blocks: &dyn DirectoryBlocks) -> Result<bool> {
    let mut is_empty = true;
    iterate_by_position(blocks, 0, &mut |entry| {
        if is_dot_or_dot_dot(entry.name) {
            return ControlFlow::Continue(());
        }
        is_empty = false;
        ControlFlow::Break(())
    })?;
    Ok(is_empty)
}

/// The inode that `..` leads to.
pub(crate) fn parent(blocks: &dyn DirectoryBlocks) -> Result<InodeNumber> {
    Ok(dot_entry(blocks, b"..")?.number)
}

/// What `.` or `..` leads to.
fn dot_entry(blocks: &dyn DirectoryBlocks, name: &[u8]) -> Result<Found> {
    match locate(blocks, false, name)? {
        Some(located) => Ok(located.found),
        None => {
            let what = format!("no entry for {}", String::from_utf8_lossy(name));
            Err(blocks
                .context()
                .place(LogicalBlock(0), Error::corrupt(what)))
        }
    }
}

/// Calls `sink` for each entry from `cookie` on, `.` and `..` included, until it breaks.
///
/// A name that stays is met exactly once, whatever is inserted or removed between calls: a
/// directory that is or may become indexed is read in the order of hashes, as Linux does, and a
/// linear one's entries never move.
pub(crate) fn iterate(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    cookie: u64,
    sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let context = blocks.context();
    let may_get_index = context.dir_index && blocks.block_count() == 1;
    if !context.casefold && (is_indexed || may_get_index) {
        iterate_by_hash(blocks, is_indexed, cookie, sink)
    } else {
        iterate_by_position(blocks, cookie, sink)
    }
}

/// Cookies of entries in the order of hashes start here, behind those of `.` and `..`.
const FIRST_HASH_COOKIE: u64 = 2;

/// Cookies are 31 bits of hash, then a checksum of the name that tells names of one hash apart.
fn iterate_by_hash(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    cookie: u64,
    sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let context = blocks.context();
    for (position, name) in [(0, b".".as_slice()), (1, b"..")] {
        let Found { number, file_type } = dot_entry(blocks, name)?;
        let entry = DirectoryEntry {
            name,
            number,
            file_type,
            next_cookie: position + 1,
        };
        if position >= cookie && sink(&entry).is_break() {
            return Ok(());
        }
    }
    let Ok(first_hash) = u32::try_from(cookie.saturating_sub(FIRST_HASH_COOKIE) >> 32 << 1) else {
        return Ok(());
    };
    let mut visit = |version: HashVersion, leaves: &[(LogicalBlock, Vec<u8>)]| {
        let mut entries = Vec::new();
        for (logical, bytes) in leaves {
            let collected = visible_entries(context, *logical, bytes, &mut |entry| {
                let hash = hash(
                    entry.name,
                    version,
                    context.unsigned_hash,
                    &context.hash_seed,
                );
                let position = u64::from(hash >> 1) << 32 | u64::from(crc32c(!0, entry.name));
                entries.push((position + FIRST_HASH_COOKIE, *entry));
                ControlFlow::Continue(())
            });
            let _: ControlFlow<()> = collected.map_err(|error| context.place(*logical, error))?;
        }
        entries.retain(|(position, entry)| *position >= cookie && !is_dot_or_dot_dot(entry.name));
        entries.sort_by_key(|(position, _)| *position);
        Ok(entries
            .iter()
            .try_for_each(|(position, entry)| sink(&context.told(entry, position + 1))))
    };
    if is_indexed {
        return htree::visit_leaves(blocks, first_hash, &mut visit);
    }
    let version =
        HashVersion::from_disk(context.default_hash_version).unwrap_or(HashVersion::HalfMd4);
    let bytes = blocks.block(LogicalBlock(0))?.read().to_vec();
    visit(version, &[(LogicalBlock(0), bytes)]).map(drop)
}

/// Cookies are byte positions.
pub(super) fn iterate_by_position(
    blocks: &dyn DirectoryBlocks,
    cookie: u64,
    sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let context = blocks.context();
    let block_size = context.block_size as u64;
    let Ok(first) = u32::try_from(cookie / block_size) else {
        return Ok(());
    };
    // A copy, so that no page is locked while the sink runs.
    let mut copy = Vec::with_capacity(context.block_size);
    for logical in (first..blocks.block_count()).map(LogicalBlock) {
        copy.clear();
        copy.extend_from_slice(&blocks.block(logical)?.read());
        let start = u64::from(logical.0) * block_size;
        let flow = visible_entries(context, logical, &copy, &mut |entry| {
            if start + (entry.offset as u64) < cookie {
                return ControlFlow::Continue(());
            }
            sink(&context.told(entry, start + (entry.offset + entry.len) as u64))
        });
        if flow
            .map_err(|error| context.place(logical, error))?
            .is_break()
        {
            break;
        }
    }
    Ok(())
}

/// Calls `visit` for each used entry of a block, after all checks that a name for a program must
/// pass.
fn visible_entries<'a>(
    context: &DirectoryContext,
    logical: LogicalBlock,
    bytes: &'a [u8],
    visit: &mut dyn FnMut(&Entry<'a>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let Some(region) = checked_entries(context, logical, bytes)? else {
        return Ok(ControlFlow::Continue(()));
    };
    for (order, entry) in Entries::new(region).enumerate() {
        let entry = entry?;
        if entry.is_unused() {
            continue;
        }
        entry.check_name()?;
        if is_dot_or_dot_dot(entry.name) && !(logical.0 == 0 && order < 2) {
            return Err(Error::corrupt(format!(
                "entry at byte {}: . or .. out of place",
                entry.offset
            )));
        }
        if visit(&entry).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// The part of a block that holds entries, after checking the checksum; `None` for a node of the
/// index.
fn checked_entries<'a>(
    context: &DirectoryContext,
    logical: LogicalBlock,
    bytes: &'a [u8],
) -> Result<Option<&'a [u8]>> {
    match block::kind(context, logical, bytes) {
        BlockKind::Leaf => block::checked_region(context, bytes).map(Some),
        BlockKind::IndexRoot => {
            htree::check_checksum(context, bytes, htree::ROOT_ENTRIES_AT).map(|()| Some(bytes))
        }
        BlockKind::IndexNode => {
            htree::check_checksum(context, bytes, htree::NODE_ENTRIES_AT).map(|()| None)
        }
    }
}

fn seal(context: &DirectoryContext, logical: LogicalBlock, bytes: &mut [u8]) {
    match block::kind(context, logical, bytes) {
        BlockKind::Leaf => block::seal(context, bytes),
        BlockKind::IndexRoot => htree::seal(context, bytes, htree::ROOT_ENTRIES_AT),
        BlockKind::IndexNode => htree::seal(context, bytes, htree::NODE_ENTRIES_AT),
    }
}

fn locate(blocks: &dyn DirectoryBlocks, is_indexed: bool, name: &[u8]) -> Result<Option<Located>> {
    let block_count = blocks.block_count();
    if is_dot_or_dot_dot(name) {
        if block_count == 0 {
            return Err(blocks
                .context()
                .place(LogicalBlock(0), Error::corrupt("directory without a block")));
        }
        return locate_in_block(blocks, LogicalBlock(0), name);
    }
    // The index of a casefolded directory is ordered by another hash; its leaves can still be read
    // one by one.
    if is_indexed && !blocks.context().casefold {
        return htree::locate(blocks, name);
    }
    for logical in (0..block_count).map(LogicalBlock) {
        let located = locate_in_block(blocks, logical, name)?;
        if located.is_some() {
            return Ok(located);
        }
    }
    Ok(None)
}

/// The entry called `name` in one block.
pub(crate) fn locate_in_block(
    blocks: &dyn DirectoryBlocks,
    logical: LogicalBlock,
    name: &[u8],
) -> Result<Option<Located>> {
    let context = blocks.context();
    let block = blocks.block(logical)?;
    let bytes = block.read();
    let slot = checked_entries(context, logical, &bytes)
        .and_then(|region| region.map_or(Ok(None), |region| block::find(region, name)))
        .map_err(|error| context.place(logical, error))?;
    let Some(slot) = slot else { return Ok(None) };
    let found = Found {
        number: InodeNumber(slot.entry.number.into()),
        file_type: context.type_of(&slot.entry),
    };
    let (offset, len, previous) = (slot.entry.offset, slot.entry.len, slot.previous);
    drop(bytes);
    Ok(Some(Located {
        block,
        logical,
        offset,
        len,
        previous,
        found,
    }))
}

/// Inserts `entry` into a leaf if it has room; whether it had. EEXIST if the name is there.
fn insert_into_leaf(
    context: &DirectoryContext,
    logical: LogicalBlock,
    block: &MetadataBlock,
    entry: &NewEntry<'_>,
) -> Result<bool> {
    let room = find_room(context, logical, block, entry.name)?;
    if matches!(room, Room::Full { .. }) {
        return Ok(false);
    }
    let mut bytes = block.write();
    let is_inserted = block::insert(&mut bytes, room, entry);
    block::seal(context, &mut bytes);
    Ok(is_inserted)
}

/// Where `name` could go in a leaf; EEXIST if it is there already.
pub(crate) fn find_room(
    context: &DirectoryContext,
    logical: LogicalBlock,
    block: &MetadataBlock,
    name: &[u8],
) -> Result<Room> {
    let bytes = block.read();
    let room =
        block::checked_region(context, &bytes).and_then(|region| block::find_room(region, name));
    match room.map_err(|error| context.place(logical, error))? {
        Room::Exists => Err(Errno::EXIST.into()),
        room => Ok(room),
    }
}

pub(super) fn is_dot_or_dot_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

fn refuse_casefold(context: &DirectoryContext) -> Result<()> {
    if context.casefold {
        let error = Error::unsupported("changing a casefolded directory");
        return Err(error.at(format!("directory inode {}", context.number)));
    }
    Ok(())
}

fn check_new_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(Errno::INVAL.into()),
        1..=block::NAME_LEN_MAX => Ok(()),
        _ => Err(Errno::NAMETOOLONG.into()),
    }
}

fn inode_u32(number: InodeNumber) -> Result<u32> {
    u32::try_from(number.0).map_err(|_| Errno::OVERFLOW.into())
}
