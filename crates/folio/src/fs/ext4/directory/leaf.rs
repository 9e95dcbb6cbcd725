//! One block of a directory: finds names in it, and room for new ones.

use super::block::{self, BlockKind, Entries, Entry, NewEntry, Room};
use super::context::{DirectoryBlocks, DirectoryContext, FoundName};
use super::fold::SoughtName;
use super::index_block;
use crate::base::{Errno, Error, InodeNumber, LogicalBlock, Result};
use crate::fs::ext4::journal::metadata::MetadataBlock;
use std::ops::ControlFlow;

/// An entry that was found, and its place.
pub(crate) struct LocatedEntry {
    pub(crate) block: MetadataBlock,
    pub(crate) logical: LogicalBlock,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) previous: Option<usize>,
    pub(crate) found: FoundName,
}

/// Looks up `name` in one block.
pub(crate) fn locate_in_block(
    blocks: &dyn DirectoryBlocks,
    logical: LogicalBlock,
    name: &SoughtName<'_>,
) -> Result<Option<LocatedEntry>> {
    let context = blocks.context();
    let block = blocks.block(logical)?;
    let bytes = block.read();
    let slot = checked_entries(context, logical, &bytes)
        .and_then(|region| region.map_or(Ok(None), |region| block::find(region, name)))
        .map_err(|error| context.in_block(logical, error))?;
    let Some(slot) = slot else { return Ok(None) };
    let found = FoundName {
        number: InodeNumber(slot.entry.number.into()),
        file_type: context.type_of(slot.entry.file_type),
    };
    let (offset, len, previous) = (slot.entry.offset, slot.entry.len, slot.previous);
    drop(bytes);
    Ok(Some(LocatedEntry {
        block,
        logical,
        offset,
        len,
        previous,
        found,
    }))
}

/// Inserts `entry` into a leaf if it has room; returns whether it had.
///
/// # Errors
/// EEXIST if the name is there.
pub(super) fn insert_into_leaf(
    context: &DirectoryContext,
    logical: LogicalBlock,
    block: &MetadataBlock,
    entry: &NewEntry<'_>,
) -> Result<bool> {
    let room = find_room(context, logical, block, &context.sought(entry.name))?;
    if matches!(room, Room::Full { .. }) {
        return Ok(false);
    }
    let mut bytes = block.write();
    let is_inserted = block::insert(&mut bytes, room, entry);
    block::seal(context, &mut bytes);
    Ok(is_inserted)
}

/// Looks for room for `name` in a leaf.
///
/// # Errors
/// EEXIST if the name is there.
pub(crate) fn find_room(
    context: &DirectoryContext,
    logical: LogicalBlock,
    block: &MetadataBlock,
    name: &SoughtName<'_>,
) -> Result<Room> {
    let bytes = block.read();
    let room =
        block::checked_region(context, &bytes).and_then(|region| block::find_room(region, name));
    match room.map_err(|error| context.in_block(logical, error))? {
        Room::Exists => Err(Errno::EXIST.into()),
        room => Ok(room),
    }
}

/// Whether `name` is `.` or `..`.
pub(super) fn is_dot_or_dot_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Calls `visit` for each used entry of a block, after the checks that a name must pass before a
/// program sees it.
pub(super) fn visible_entries<'a>(
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

/// Checks the checksum of a block and returns the part that holds entries; `None` for a node of the
/// index.
fn checked_entries<'a>(
    context: &DirectoryContext,
    logical: LogicalBlock,
    bytes: &'a [u8],
) -> Result<Option<&'a [u8]>> {
    match block::kind(context, logical, bytes) {
        BlockKind::Leaf => block::checked_region(context, bytes).map(Some),
        BlockKind::IndexRoot => {
            index_block::check_checksum(context, bytes, index_block::ROOT_ENTRIES_AT)
                .map(|()| Some(bytes))
        }
        BlockKind::IndexNode => {
            index_block::check_checksum(context, bytes, index_block::NODE_ENTRIES_AT).map(|()| None)
        }
    }
}

/// Writes the checksum of a block of any kind after a change.
pub(super) fn seal(context: &DirectoryContext, logical: LogicalBlock, bytes: &mut [u8]) {
    match block::kind(context, logical, bytes) {
        BlockKind::Leaf => block::seal(context, bytes),
        BlockKind::IndexRoot => index_block::seal(context, bytes, index_block::ROOT_ENTRIES_AT),
        BlockKind::IndexNode => index_block::seal(context, bytes, index_block::NODE_ENTRIES_AT),
    }
}

/// Returns the used entries of a leaf from its `skip`th on.
pub(super) fn live_entries<'a>(
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
