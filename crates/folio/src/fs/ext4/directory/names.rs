//! The names in a directory: finds, inserts, removes, replaces and lists them. Linux:
//! fs/ext4/namei.c, fs/ext4/dir.c.
//!
//! ```text
//!   linear:   block 0  . .. a b c | block 1  d e f | ...                 searched from the start
//!   indexed:  block 0  . .. root  | leaf | leaf | node | leaf | ...      htree.rs finds the leaf by hash
//! ```
//!
//! A directory starts linear and gets its index when the first block overflows. A large directory
//! that is still linear has an index in memory (linear_index.rs). The directory is
//! not locked here: the VFS holds the inode lock, exclusive around changes.

use super::block::{self, Entry, NewEntry};
use super::context::{DirectoryBlocks, DirectoryContext, FoundName};
use super::fold::SoughtName;
use super::hash::HashVersion;
use super::htree;
use super::leaf::{
    LocatedEntry, insert_into_leaf, is_dot_or_dot_dot, locate_in_block, seal, visible_entries,
};
use super::linear_index;
use crate::base::{Errno, Error, InodeNumber, LogicalBlock, Result};
use crate::fs::ext4::layout::checksum::crc32c;
use crate::vfs::{DirectoryEntry, FileType};
use std::ops::ControlFlow;

/// Looks up `name`, which may be `.` or `..`.
pub(crate) fn find(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    name: &[u8],
) -> Result<Option<FoundName>> {
    Ok(locate(blocks, is_indexed, name)?.map(|located| located.found))
}

/// Inserts `name`. When the first block overflows, the directory becomes indexed and `is_indexed`
/// is set.
///
/// # Errors
/// EEXIST if a block that is searched has the name; ENOSPC if neither the directory nor its index
/// can grow; ENAMETOOLONG.
pub(crate) fn insert(
    blocks: &dyn DirectoryBlocks,
    is_indexed: &mut bool,
    name: &[u8],
    number: InodeNumber,
    file_type: FileType,
) -> Result<()> {
    let context = blocks.context();
    let entry = new_entry(context, name, number, file_type)?;
    check_new_name(context, name)?;
    if *is_indexed {
        return htree::insert(blocks, &entry);
    }
    for logical in (0..blocks.block_count()).map(LogicalBlock) {
        if insert_into_leaf(context, logical, &blocks.block(logical)?, &entry)? {
            linear_index::note_inserted(blocks, name, logical);
            return Ok(());
        }
    }
    if context.dir_index && blocks.block_count() == 1 {
        htree::convert(blocks)?;
        *is_indexed = true;
        return htree::insert(blocks, &entry);
    }
    let (logical, block) = blocks.append()?;
    block::pack(context, &mut block.write(), [entry]);
    linear_index::note_inserted(blocks, name, logical);
    Ok(())
}

/// Removes `name` and returns the inode that it named.
///
/// # Errors
/// ENOENT; EINVAL for `.` and `..`.
pub(crate) fn remove(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    name: &[u8],
) -> Result<FoundName> {
    let context = blocks.context();
    check_removable(name)?;
    let at = locate(blocks, is_indexed, name)?.ok_or(Errno::NOENT)?;
    let mut bytes = at.block.write();
    block::remove(&mut bytes, at.offset, at.len, at.previous);
    seal(context, at.logical, &mut bytes);
    Ok(at.found)
}

/// Points `name`, which may be `..`, to another inode; returns the one it named before.
///
/// # Errors
/// ENOENT.
pub(crate) fn replace(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    name: &[u8],
    number: InodeNumber,
    file_type: FileType,
) -> Result<FoundName> {
    let context = blocks.context();
    let entry = new_entry(context, name, number, file_type)?;
    let at = locate(blocks, is_indexed, name)?.ok_or(Errno::NOENT)?;
    let mut bytes = at.block.write();
    block::redirect(&mut bytes, at.offset, entry.number, entry.file_type);
    seal(context, at.logical, &mut bytes);
    Ok(at.found)
}

/// Appends the first block of a directory, with `.` and `..`.
pub(crate) fn initialize(
    blocks: &dyn DirectoryBlocks,
    own: InodeNumber,
    parent: InodeNumber,
) -> Result<()> {
    let (_, block) = blocks.append()?;
    write_dots(blocks.context(), &mut block.write(), own, parent)
}

/// Writes the first block of a directory, with `.` and `..`.
pub(super) fn write_dots(
    context: &DirectoryContext,
    bytes: &mut [u8],
    own: InodeNumber,
    parent: InodeNumber,
) -> Result<()> {
    let dot = new_entry(context, b".", own, FileType::Directory)?;
    let dot_dot = new_entry(context, b"..", parent, FileType::Directory)?;
    block::pack(context, bytes, [dot, dot_dot]);
    Ok(())
}

/// Whether the directory has no names except `.` and `..`.
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

/// Returns the inode of `..`.
pub(crate) fn parent(blocks: &dyn DirectoryBlocks) -> Result<InodeNumber> {
    Ok(dot_entry(blocks, b"..")?.number)
}

/// Looks up `.` or `..`.
///
/// # Errors
/// EUCLEAN if it is missing.
fn dot_entry(blocks: &dyn DirectoryBlocks, name: &[u8]) -> Result<FoundName> {
    match locate(blocks, false, name)? {
        Some(located) => Ok(located.found),
        None => {
            let what = format!("no entry for {}", String::from_utf8_lossy(name));
            Err(blocks
                .context()
                .in_block(LogicalBlock(0), Error::corrupt(what)))
        }
    }
}

/// Calls `sink` for each entry from `cookie` on, `.` and `..` included, until it breaks.
///
/// A name that stays is listed exactly once, whatever is inserted or removed between calls: a
/// directory that is or may become indexed is read in the order of hashes, as in Linux, and the
/// entries of a linear one never move.
pub(crate) fn iterate(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    cookie: u64,
    sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let context = blocks.context();
    let may_get_index = context.dir_index && blocks.block_count() == 1;
    if is_indexed || may_get_index {
        iterate_by_hash(blocks, is_indexed, cookie, sink)
    } else {
        iterate_by_position(blocks, cookie, sink)
    }
}

/// Returns an entry as the VFS lists it.
fn listed<'a>(
    context: &DirectoryContext,
    entry: &Entry<'a>,
    next_cookie: u64,
) -> DirectoryEntry<'a> {
    DirectoryEntry {
        name: entry.name,
        number: InodeNumber(entry.number.into()),
        file_type: context.type_of(entry.file_type),
        next_cookie,
    }
}

/// Cookies in the order of hashes start here, after those of `.` and `..`.
pub(super) const FIRST_HASH_COOKIE: u64 = 2;

/// Returns the cookie of a name in the order of hashes: 31 bits of hash, then a checksum of the
/// name, which separates names with the same hash.
pub(super) fn hash_cookie(context: &DirectoryContext, version: HashVersion, name: &[u8]) -> u64 {
    let hash = context.hash(version, &context.sought(name));
    FIRST_HASH_COOKIE + (u64::from(hash >> 1) << 32 | u64::from(crc32c(!0, name)))
}

/// Returns the hash version of indexes that are made from now on.
pub(super) fn default_hash_version(context: &DirectoryContext) -> HashVersion {
    HashVersion::from_disk(context.default_hash_version).unwrap_or(HashVersion::HalfMd4)
}

/// Lists names by hash ([`hash_cookie`]).
fn iterate_by_hash(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    cookie: u64,
    sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let context = blocks.context();
    for (position, name) in [(0, b".".as_slice()), (1, b"..")] {
        let FoundName { number, file_type } = dot_entry(blocks, name)?;
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
                entries.push((hash_cookie(context, version, entry.name), *entry));
                ControlFlow::Continue(())
            });
            let _: ControlFlow<()> =
                collected.map_err(|error| context.in_block(*logical, error))?;
        }
        entries.retain(|(position, entry)| *position >= cookie && !is_dot_or_dot_dot(entry.name));
        entries.sort_by_key(|(position, _)| *position);
        Ok(entries
            .iter()
            .try_for_each(|(position, entry)| sink(&listed(context, entry, position + 1))))
    };
    if is_indexed {
        return htree::visit_leaves(blocks, first_hash, &mut visit);
    }
    let version = default_hash_version(context);
    let bytes = blocks.block(LogicalBlock(0))?.read().to_vec();
    visit(version, &[(LogicalBlock(0), bytes)]).map(drop)
}

/// Lists names by position. Cookies are byte positions.
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
            sink(&listed(
                context,
                entry,
                start + (entry.offset + entry.len) as u64,
            ))
        });
        if flow
            .map_err(|error| context.in_block(logical, error))?
            .is_break()
        {
            break;
        }
    }
    Ok(())
}

/// Finds the entry of `name`.
fn locate(
    blocks: &dyn DirectoryBlocks,
    is_indexed: bool,
    name: &[u8],
) -> Result<Option<LocatedEntry>> {
    let block_count = blocks.block_count();
    let sought = &blocks.context().sought(name);
    if is_dot_or_dot_dot(name) {
        if block_count == 0 {
            return Err(blocks
                .context()
                .in_block(LogicalBlock(0), Error::corrupt("directory without a block")));
        }
        return locate_in_block(blocks, LogicalBlock(0), sought);
    }
    if is_indexed {
        return htree::locate(blocks, sought);
    }
    match linear_index::candidates(blocks, sought) {
        Some(candidates) => locate_in_blocks(blocks, candidates, sought),
        None => locate_in_blocks(blocks, (0..block_count).map(LogicalBlock), sought),
    }
}

/// Looks up `name` in the blocks `candidates`, in order.
fn locate_in_blocks(
    blocks: &dyn DirectoryBlocks,
    candidates: impl IntoIterator<Item = LogicalBlock>,
    name: &SoughtName<'_>,
) -> Result<Option<LocatedEntry>> {
    for logical in candidates {
        let located = locate_in_block(blocks, logical, name)?;
        if located.is_some() {
            return Ok(located);
        }
    }
    Ok(None)
}

/// Checks that `name` can be removed, if the directory has it.
///
/// # Errors
/// EINVAL for `.` and `..`.
pub(super) fn check_removable(name: &[u8]) -> Result<()> {
    if is_dot_or_dot_dot(name) {
        return Err(Errno::INVAL.into());
    }
    Ok(())
}

/// Returns the entry of `name` for the inode `number`.
pub(super) fn new_entry<'a>(
    context: &DirectoryContext,
    name: &'a [u8],
    number: InodeNumber,
    file_type: FileType,
) -> Result<NewEntry<'a>> {
    Ok(NewEntry {
        number: inode_u32(number)?,
        file_type: context.type_code(file_type),
        name,
    })
}

/// Checks a name that is inserted.
///
/// # Errors
/// EINVAL, also for bytes that are not UTF-8 where that is demanded; ENAMETOOLONG.
pub(super) fn check_new_name(context: &DirectoryContext, name: &[u8]) -> Result<()> {
    if context.casefold && context.strict_encoding && std::str::from_utf8(name).is_err() {
        let why = "names in this casefolded directory must be UTF-8";
        return Err(Error::new(Errno::INVAL, why));
    }
    match name.len() {
        0 => Err(Errno::INVAL.into()),
        1..=block::NAME_LEN_MAX => Ok(()),
        _ => Err(Errno::NAMETOOLONG.into()),
    }
}

fn inode_u32(number: InodeNumber) -> Result<u32> {
    u32::try_from(number.0).map_err(|_| Errno::OVERFLOW.into())
}
