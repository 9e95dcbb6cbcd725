//! One block of a directory: its names in order, and what they refer to.

use crate::format::RawDirent;
use std::ops::Range;
use zerocopy::FromBytes;

const DIRENT_BYTES: usize = size_of::<RawDirent>();
const NAME_BYTES_MAX: usize = 255;

/// An entry of a directory.
pub(super) struct DirectoryEntry {
    pub(super) name: Vec<u8>,
    pub(super) nid: u64,
    pub(super) type_code: u8,
}

impl DirectoryEntry {
    /// Returns the name for a message.
    pub(super) fn printed_name(&self) -> String {
        format!("{:?}", String::from_utf8_lossy(&self.name))
    }
}

/// Returns the entries in a block.
///
/// # Errors
///
/// What is wrong with the block.
pub(super) fn entries(block: &[u8]) -> Result<Vec<DirectoryEntry>, String> {
    let first = dirent(block, 0).ok_or("less than one entry")?;
    let names_start = usize::from(first.name_offset.get());
    if names_start == 0 || !names_start.is_multiple_of(DIRENT_BYTES) || names_start >= block.len() {
        return Err(format!("the first name starts at byte {names_start}"));
    }
    let count = names_start / DIRENT_BYTES;
    let mut entries = Vec::with_capacity(count);
    for index in 0..count {
        let entry = dirent(block, index).ok_or("cut in an entry")?;
        let start = usize::from(entry.name_offset.get());
        let next = (index + 1 < count).then(|| dirent(block, index + 1));
        let end = next
            .flatten()
            .map_or(block.len(), |next| next.name_offset.get().into());
        let name = name(block, start..end, index + 1 == count)
            .ok_or_else(|| format!("entry {index} has no valid name at bytes {start} to {end}"))?;
        entries.push(DirectoryEntry {
            name: name.to_vec(),
            nid: entry.nid.get(),
            type_code: entry.file_type,
        });
    }
    Ok(entries)
}

fn dirent(block: &[u8], index: usize) -> Option<RawDirent> {
    let bytes = block.get(index * DIRENT_BYTES..)?;
    RawDirent::read_from_prefix(bytes)
        .ok()
        .map(|(entry, _)| entry)
}

/// Returns a valid name. The last one of a block may end with a zero.
fn name(block: &[u8], range: Range<usize>, is_last: bool) -> Option<&[u8]> {
    let mut name = block.get(range)?;
    if is_last {
        name = name.split(|byte| *byte == 0).next()?;
    }
    let is_valid =
        (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&b'/') && !name.contains(&0);
    is_valid.then_some(name)
}
