//! Small directories whose entries are in the inode (`inline_data`). Read only.
//!
//! ```text
//!   i_block, 60 bytes      system.data, an extended attribute in the inode
//!   | parent | entries  |  | entries                 |
//! ```
//!
//! An inline directory has no `.` and `..`, only its parent's number, and no checksum of its own.
//! Source: the kernel's ext4 documentation, "Inline Data"; Linux: fs/ext4/inline.c.

use super::block::{self, Entries};
use super::context::{FoundName, file_type_of};
use crate::base::{Error, InodeNumber, Result};
use crate::vfs::{DirectoryEntry, FileType};
use std::ops::ControlFlow;

/// Bytes of `i_block`.
const BLOCK_FIELD_LEN: usize = 60;
/// Bytes of the parent's number, before the entries.
const PARENT_LEN: usize = 4;

/// A directory whose entries are in its inode.
pub(crate) struct InlineDirectory<'a> {
    number: InodeNumber,
    block_field: &'a [u8; BLOCK_FIELD_LEN],
    data: &'a [u8],
    has_file_type: bool,
}

impl<'a> InlineDirectory<'a> {
    /// Returns the directory `number` with its `i_block` and the value of system.data, if it is
    /// set.
    pub(crate) fn new(
        number: InodeNumber,
        block_field: &'a [u8; BLOCK_FIELD_LEN],
        data: Option<&'a [u8]>,
        has_file_type: bool,
    ) -> Self {
        Self {
            number,
            block_field,
            data: data.unwrap_or_default(),
            has_file_type,
        }
    }

    /// Returns the inode of `..`.
    pub(crate) fn parent(&self) -> InodeNumber {
        let [b0, b1, b2, b3, ..] = *self.block_field;
        InodeNumber(u32::from_le_bytes([b0, b1, b2, b3]).into())
    }

    /// Returns the two regions of entries, each with the position of its first byte.
    fn regions(&self) -> [(u64, &'a [u8]); 2] {
        [
            (PARENT_LEN as u64, &self.block_field[PARENT_LEN..]),
            (BLOCK_FIELD_LEN as u64, self.data),
        ]
    }

    fn type_of(&self, code: u8) -> Option<FileType> {
        if self.has_file_type {
            file_type_of(code)
        } else {
            None
        }
    }

    fn in_directory(&self, error: Error) -> Error {
        error.at(format!("inline directory inode {}", self.number))
    }

    /// Looks up `name`.
    ///
    /// # Errors
    /// EUCLEAN for damaged entries.
    pub(crate) fn find(&self, name: &[u8]) -> Result<Option<FoundName>> {
        let directory = Some(FileType::Directory).filter(|_| self.has_file_type);
        match name {
            b"." => {
                return Ok(Some(FoundName {
                    number: self.number,
                    file_type: directory,
                }));
            }
            b".." => {
                return Ok(Some(FoundName {
                    number: self.parent(),
                    file_type: directory,
                }));
            }
            _ => {}
        }
        for (_, region) in self.regions() {
            if let Some(slot) =
                block::find(region, name).map_err(|error| self.in_directory(error))?
            {
                let number = InodeNumber(slot.entry.number.into());
                return Ok(Some(FoundName {
                    number,
                    file_type: self.type_of(slot.entry.file_type),
                }));
            }
        }
        Ok(None)
    }

    /// Calls `sink` for each entry from `cookie` on, `.` and `..` included, until it breaks.
    /// Cookies are positions in the data, with `.` and `..` before the first.
    pub(crate) fn iterate(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = Some(FileType::Directory).filter(|_| self.has_file_type);
        let dots: [(u64, u64, &[u8], InodeNumber); 2] = [
            (0, 1, b".", self.number),
            (1, PARENT_LEN as u64, b"..", self.parent()),
        ];
        for (position, next_cookie, name, number) in dots {
            let entry = DirectoryEntry {
                name,
                number,
                file_type: directory,
                next_cookie,
            };
            if position >= cookie && sink(&entry).is_break() {
                return Ok(());
            }
        }
        for (start, region) in self.regions() {
            for entry in Entries::new(region) {
                let entry = entry.map_err(|error| self.in_directory(error))?;
                let position = start + entry.offset as u64;
                if entry.is_unused() || position < cookie {
                    continue;
                }
                entry
                    .check_name()
                    .map_err(|error| self.in_directory(error))?;
                if matches!(entry.name, b"." | b"..") {
                    let what = format!("entry at byte {position}: . or .. out of place");
                    return Err(self.in_directory(Error::corrupt(what)));
                }
                let flow = sink(&DirectoryEntry {
                    name: entry.name,
                    number: InodeNumber(entry.number.into()),
                    file_type: self.type_of(entry.file_type),
                    next_cookie: position + entry.len as u64,
                });
                if flow.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether `.` and `..` are all there is.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        let mut is_empty = true;
        self.iterate(PARENT_LEN as u64, &mut |_| {
            is_empty = false;
            ControlFlow::Break(())
        })?;
        Ok(is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u32, len: u16, file_type: u8, name: &[u8]) -> Vec<u8> {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend([name.len() as u8, file_type]);
        bytes.extend(name);
        bytes.resize(usize::from(len), 0);
        bytes
    }

    /// Inode 12 as Linux 6.18 wrote it: mkdir sub; ln -s; touch three four-... five; one removed.
    fn kernel_directory() -> ([u8; 60], Vec<u8>) {
        let block_field = [
            2_u32.to_le_bytes().to_vec(),
            entry(0, 12, 0, b""),
            entry(15, 12, 2, b"sub"),
            entry(16, 32, 7, b"a-longer-name-here"),
        ]
        .concat();
        let data = [
            entry(17, 16, 1, b"three"),
            entry(18, 40, 1, b"four-more-names-in-the-attribute"),
            entry(19, 12, 1, b"five"),
        ]
        .concat();
        (block_field.try_into().unwrap(), data)
    }

    fn listed(directory: &InlineDirectory<'_>, batch: usize) -> Result<Vec<(Vec<u8>, u64)>> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let start = all.len();
            directory.iterate(cookie, &mut |entry| {
                all.push((entry.name.to_vec(), entry.number.0));
                cookie = entry.next_cookie;
                if all.len() - start == batch {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            if all.len() == start {
                return Ok(all);
            }
        }
    }

    #[test]
    fn inline_directory_of_the_kernel_is_read() {
        let (block_field, data) = kernel_directory();
        let directory = InlineDirectory::new(InodeNumber(12), &block_field, Some(&data), true);
        let expected: [(&[u8], u64); 7] = [
            (b".", 12),
            (b"..", 2),
            (b"sub", 15),
            (b"a-longer-name-here", 16),
            (b"three", 17),
            (b"four-more-names-in-the-attribute", 18),
            (b"five", 19),
        ];
        let expected = expected.map(|(name, number)| (name.to_vec(), number));
        for batch in 1..9 {
            assert_eq!(listed(&directory, batch).unwrap(), expected);
        }
        for (name, number) in expected {
            assert_eq!(directory.find(&name).unwrap().unwrap().number.0, number);
        }
        assert_eq!(directory.find(b"one").unwrap(), None);
        assert_eq!(
            directory.find(b"sub").unwrap().unwrap().file_type,
            Some(FileType::Directory)
        );
        assert!(!directory.is_empty().unwrap());
    }

    #[test]
    fn inline_directory_with_forged_entries_fails() {
        let (mut block_field, data) = kernel_directory();
        block_field[20] = 4;
        let directory = InlineDirectory::new(InodeNumber(12), &block_field, Some(&data), true);
        let text = directory.find(b"five").unwrap_err().to_string();
        assert!(
            text.starts_with("inline directory inode 12: entry at byte 12: bad length 4"),
            "{text}"
        );
        assert!(listed(&directory, 3).is_err());
        let (block_field, data) = kernel_directory();
        for cut in 1..data.len() {
            let directory =
                InlineDirectory::new(InodeNumber(12), &block_field, Some(&data[..cut]), true);
            assert!(
                listed(&directory, 3).is_err() || matches!(cut, 16 | 56),
                "{cut} bytes"
            );
        }
    }
}
