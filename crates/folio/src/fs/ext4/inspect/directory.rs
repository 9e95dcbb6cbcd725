//! Directories as on disk: every entry of every block, and the inode that a path names.

use super::inspector::Ext4Inspector;
use super::mapping::RunKind;
use crate::base::{Errno, Error, Result};
use crate::fs::ext4::directory::block::Entries;
use crate::fs::ext4::inode::file_type_of;
use crate::fs::ext4::layout::disk::{ROOT_INODE, RawInode, inode_flags};
use crate::fs::ext4::xattr::format::XattrValue;
use crate::vfs::FileType;

/// An entry of a directory, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawDirectoryEntry {
    /// Block in the directory; `None` for entries in the inode.
    pub logical: Option<u64>,
    /// Block on the device; `None` for entries in the inode.
    pub block: Option<u64>,
    /// First byte in the block.
    pub offset: usize,
    /// The inode; 0 for unused space.
    pub inode: u32,
    /// Length in bytes, up to the next entry.
    pub len: usize,
    /// The type on disk (`EXT4_FT_*`).
    pub file_type: u8,
    /// The name; empty for unused space.
    pub name: Vec<u8>,
}

impl Ext4Inspector {
    /// Returns all entries of directory `number`, unused ones included, block by block. Index
    /// blocks appear as the one unused entry that they look like. debugfs: `ls -d`.
    ///
    /// # Errors
    /// ENOTDIR for another inode; EUCLEAN for a damaged directory.
    pub fn entries(&self, number: u32) -> Result<Vec<RawDirectoryEntry>> {
        self.entries_of(number)
            .map_err(|e| e.at(format!("inode {number}")))
    }

    fn entries_of(&self, number: u32) -> Result<Vec<RawDirectoryEntry>> {
        let bytes = self.inode_bytes(number)?;
        let raw = RawInode::of_bytes(&bytes);
        if file_type_of(raw.mode.get()) != Some(FileType::Directory) {
            return Err(Error::new(Errno::NOTDIR, "is not a directory"));
        }
        let mut entries = Vec::new();
        if raw.flags.get() & inode_flags::INLINE_DATA != 0 {
            self.inline_entries(number, &raw, &bytes, &mut entries)?;
            return Ok(entries);
        }
        for run in self.mapping_of(&raw)? {
            if run.kind != RunKind::Data {
                continue;
            }
            for index in 0..run.len {
                let block = run.physical + index;
                let bytes = self.block(block)?;
                let place = Some((run.logical + index, block));
                collect(&bytes, place, 0, &mut entries)
                    .map_err(|e| e.at(format!("block {block}")))?;
            }
        }
        Ok(entries)
    }

    /// Returns the entries of a directory in its inode: the parent, then entries in `i_block`, then
    /// those in the attribute `system.data`.
    fn inline_entries(
        &self,
        number: u32,
        raw: &RawInode,
        bytes: &[u8],
        entries: &mut Vec<RawDirectoryEntry>,
    ) -> Result<()> {
        let parent = u32::from_le_bytes([raw.block[0], raw.block[1], raw.block[2], raw.block[3]]);
        for (inode, name) in [(number, &b"."[..]), (parent, b"..")] {
            entries.push(RawDirectoryEntry {
                logical: None,
                block: None,
                offset: 0,
                inode,
                len: 4,
                file_type: 0,
                name: name.to_vec(),
            });
        }
        collect(&raw.block[4..], None, 4, entries)?;
        let xattrs = self.xattrs(raw, bytes)?;
        let data = xattrs.iter().find(|xattr| xattr.is_inline_data());
        if let Some(XattrValue::Inline(value)) = data.map(|xattr| &xattr.value) {
            collect(value, None, raw.block.len(), entries)?;
        }
        Ok(())
    }

    /// Returns the inode that an absolute path names. Symbolic links are not followed.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR; EUCLEAN for a damaged directory.
    pub fn lookup(&self, path: &[u8]) -> Result<u32> {
        let mut number = ROOT_INODE;
        for name in path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            let entries = self.entries(number)?;
            let found = entries
                .iter()
                .find(|entry| entry.inode != 0 && entry.name == name);
            number = found.ok_or(Errno::NOENT)?.inode;
        }
        Ok(number)
    }
}

/// Appends the entries of `bytes`, which start at `base` of their place.
fn collect(
    bytes: &[u8],
    place: Option<(u64, u64)>,
    base: usize,
    entries: &mut Vec<RawDirectoryEntry>,
) -> Result<()> {
    for entry in Entries::new(bytes) {
        let entry = entry?;
        entries.push(RawDirectoryEntry {
            logical: place.map(|(logical, _)| logical),
            block: place.map(|(_, block)| block),
            offset: base + entry.offset,
            inode: entry.number,
            len: entry.len,
            file_type: entry.file_type,
            name: entry.name.to_vec(),
        });
    }
    Ok(())
}
