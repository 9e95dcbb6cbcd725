//! The content of directories: sorted names in blocks, each of them searched by halves.

use crate::format::{BLOCK_BYTES, RawDirent};
use crate::tree::{Directory, NodeId};
use std::ops::Range;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U64};

const DIRENT_BYTES: usize = size_of::<RawDirent>();

/// A name of a directory.
pub(crate) struct Name<'a> {
    bytes: &'a [u8],
    node: NodeId,
}

/// What an entry of a directory says about an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryTarget {
    pub(crate) nid: u64,
    pub(crate) type_code: u8,
}

/// Returns the names of a directory, sorted, with `.` and `..`.
pub(crate) fn names(directory: &Directory, id: NodeId) -> Vec<Name<'_>> {
    let own = [(&b"."[..], id), (&b".."[..], directory.parent)];
    let names = directory
        .names
        .iter()
        .map(|(name, node)| (&name[..], *node));
    let all = own.into_iter().chain(names);
    let mut names: Vec<_> = all.map(|(bytes, node)| Name { bytes, node }).collect();
    names.sort_unstable_by_key(|name| name.bytes);
    names
}

/// Returns the names in each block.
fn blocks(names: &[Name<'_>]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let (first, mut len) = (start, 0);
        while let Some(name) = names.get(start) {
            len += DIRENT_BYTES + name.bytes.len();
            if len > BLOCK_BYTES {
                break;
            }
            start += 1;
        }
        (first < start).then_some(first..start)
    })
}

fn len_of(names: &[Name<'_>]) -> usize {
    names
        .iter()
        .map(|name| DIRENT_BYTES + name.bytes.len())
        .sum()
}

/// Returns the size of a directory in bytes. Its last block ends with the last name.
pub(crate) fn len_bytes(names: &[Name<'_>]) -> usize {
    let (mut whole, mut last) = (0, 0);
    for range in blocks(names) {
        (whole, last) = (whole + 1, len_of(&names[range]));
    }
    (whole - 1) * BLOCK_BYTES + last
}

/// Returns the bytes of a directory. `target` describes the inode of a node.
pub(crate) fn encode(names: &[Name<'_>], target: impl Fn(NodeId) -> EntryTarget) -> Vec<u8> {
    let mut bytes = Vec::new();
    for range in blocks(names) {
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        let names = &names[range];
        let mut name_offset = names.len() * DIRENT_BYTES;
        for name in names {
            let EntryTarget { nid, type_code } = target(name.node);
            let entry = RawDirent {
                nid: U64::new(nid),
                name_offset: U16::new(name_offset as u16),
                file_type: type_code,
                reserved: 0,
            };
            bytes.extend_from_slice(entry.as_bytes());
            name_offset += name.bytes.len();
        }
        names
            .iter()
            .for_each(|name| bytes.extend_from_slice(name.bytes));
    }
    bytes
}
