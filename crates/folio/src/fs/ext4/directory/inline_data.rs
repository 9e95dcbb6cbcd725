//! Small directories whose entries are in the inode (`inline_data`).
//!
//! ```text
//!   i_block, 60 bytes      system.data, an extended attribute in the inode
//!   | parent | entries  |  | entries                 |
//!      |          `-----------.     `----------.
//!   | . | .. | the same entries | the same entries | unused |     its first block, if it grows
//! ```
//!
//! An inline directory has no `.` and `..`, only its parent's number, and no checksum of its own.
//! Cookies and positions are those of the block that it may become, so that a listing continues
//! there. Source: the kernel's ext4 documentation, "Inline Data"; Linux: fs/ext4/inline.c.

use super::block::{self, ENTRY_LEN_MIN, Entries, NewEntry, Room, Slot};
use super::context::{DirectoryContext, FoundName};
use super::names::{FIRST_HASH_COOKIE, default_hash_version, hash_cookie};
use crate::base::{Errno, Error, InodeNumber, Result};
use crate::vfs::{DirectoryEntry, FileType};
use std::ops::ControlFlow;

/// Bytes of `i_block`.
pub(super) const BLOCK_FIELD_LEN: usize = 60;
/// Bytes of the parent's number, before the entries.
const PARENT_LEN: usize = 4;
/// Bytes of `.` and `..` in a block.
const DOTS_LEN: usize = 2 * ENTRY_LEN_MIN;

/// The entries of a directory in its inode: its `i_block`, and the value of system.data.
#[derive(Debug, Clone)]
pub(super) struct InlineDirectory {
    pub(super) block_field: [u8; BLOCK_FIELD_LEN],
    pub(super) data: Vec<u8>,
}

impl InlineDirectory {
    /// Returns an empty directory in the directory `parent`.
    pub(super) fn new(parent: u32) -> Self {
        let mut block_field = [0; BLOCK_FIELD_LEN];
        block_field[..PARENT_LEN].copy_from_slice(&parent.to_le_bytes());
        block::write_unused(&mut block_field[PARENT_LEN..]);
        Self {
            block_field,
            data: Vec::new(),
        }
    }

    /// Returns the inode of `..`.
    pub(super) fn parent(&self) -> InodeNumber {
        let [b0, b1, b2, b3, ..] = self.block_field;
        InodeNumber(u32::from_le_bytes([b0, b1, b2, b3]).into())
    }

    /// Returns the size that the inode records.
    pub(super) fn size_bytes(&self) -> u64 {
        (BLOCK_FIELD_LEN + self.data.len()) as u64
    }

    /// Returns the two regions of entries, each with the position of its first byte in a block.
    fn regions(&self) -> [(usize, &[u8]); 2] {
        let (in_field, in_data) = (&self.block_field[PARENT_LEN..], self.data.as_slice());
        [(DOTS_LEN, in_field), (DOTS_LEN + in_field.len(), in_data)]
    }

    fn regions_mut(&mut self) -> [&mut [u8]; 2] {
        [&mut self.block_field[PARENT_LEN..], &mut self.data]
    }

    /// Looks up the entry of `name`, which is neither `.` nor `..`; returns it and its region.
    fn slot(&self, context: &DirectoryContext, name: &[u8]) -> Result<Option<(usize, Slot<'_>)>> {
        let name = context.sought(name);
        for (number, (_, region)) in self.regions().into_iter().enumerate() {
            let found = block::find(region, &name).map_err(|e| in_directory(context, e))?;
            if let Some(slot) = found {
                return Ok(Some((number, slot)));
            }
        }
        Ok(None)
    }

    /// Looks up `name`, which may be `.` or `..`.
    ///
    /// # Errors
    /// EUCLEAN for damaged entries.
    pub(super) fn find(
        &self,
        context: &DirectoryContext,
        name: &[u8],
    ) -> Result<Option<FoundName>> {
        let directory = Some(FileType::Directory).filter(|_| context.has_file_type);
        let (number, file_type) = match name {
            b"." => (context.number, directory),
            b".." => (self.parent(), directory),
            _ => match self.slot(context, name)? {
                None => return Ok(None),
                Some((_, Slot { entry, .. })) => (
                    InodeNumber(entry.number.into()),
                    context.type_of(entry.file_type),
                ),
            },
        };
        Ok(Some(FoundName { number, file_type }))
    }

    /// Inserts `entry`, if there is room. `data_max` is the longest value that system.data can
    /// have; the directory takes all of it at once, as in Linux.
    ///
    /// # Errors
    /// EEXIST; EUCLEAN for damaged entries.
    pub(super) fn insert(
        &mut self,
        context: &DirectoryContext,
        entry: &NewEntry<'_>,
        data_max: usize,
    ) -> Result<bool> {
        if self.slot(context, entry.name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if self.insert_into_gap(context, entry)? {
            return Ok(true);
        }
        let len = self.data.len();
        if data_max < len + ENTRY_LEN_MIN {
            return Ok(false);
        }
        // Damage that is found below must not leave the longer value.
        let before = self.data.clone();
        self.data.resize(data_max, 0);
        let grown = block::extend_last(&mut self.data, len).map_err(|e| in_directory(context, e));
        let is_inserted = grown.and_then(|()| self.insert_into_gap(context, entry));
        if !matches!(is_inserted, Ok(true)) {
            self.data = before;
        }
        is_inserted
    }

    fn insert_into_gap(
        &mut self,
        context: &DirectoryContext,
        entry: &NewEntry<'_>,
    ) -> Result<bool> {
        let name = context.sought(entry.name);
        for region in self.regions_mut() {
            let room = block::find_room(region, &name);
            let room = room.map_err(|e| in_directory(context, e))?;
            if matches!(room, Room::At { .. }) {
                return Ok(block::insert(region, room, entry));
            }
        }
        Ok(false)
    }

    /// Removes `name`.
    ///
    /// # Errors
    /// ENOENT; EUCLEAN for damaged entries.
    pub(super) fn remove(&mut self, context: &DirectoryContext, name: &[u8]) -> Result<()> {
        let (region, slot) = self.slot(context, name)?.ok_or(Errno::NOENT)?;
        let (offset, len, previous) = (slot.entry.offset, slot.entry.len, slot.previous);
        block::remove(self.regions_mut()[region], offset, len, previous);
        Ok(())
    }

    /// Points `entry.name`, which may be `..`, to another inode.
    ///
    /// # Errors
    /// ENOENT; EUCLEAN for damaged entries.
    pub(super) fn replace(
        &mut self,
        context: &DirectoryContext,
        entry: &NewEntry<'_>,
    ) -> Result<()> {
        if entry.name == b".." {
            self.block_field[..PARENT_LEN].copy_from_slice(&entry.number.to_le_bytes());
            return Ok(());
        }
        let (region, slot) = self.slot(context, entry.name)?.ok_or(Errno::NOENT)?;
        let offset = slot.entry.offset;
        let region = &mut *self.regions_mut()[region];
        block::redirect(region, offset, entry.number, entry.file_type);
        Ok(())
    }

    /// Fills `bytes`, the first block of the directory, with its entries.
    ///
    /// # Errors
    /// EUCLEAN for damaged entries.
    pub(super) fn write_block(&self, context: &DirectoryContext, bytes: &mut [u8]) -> Result<()> {
        // Only for its checks of each entry.
        self.is_empty(context)?;
        let file_type = context.type_code(FileType::Directory);
        // Both numbers were read from 32 bits.
        let (own, parent) = (context.number.0 as u32, self.parent().0 as u32);
        bytes.fill(0);
        for (at, number, name) in [(0, own, b".".as_slice()), (ENTRY_LEN_MIN, parent, b"..")] {
            let entry = NewEntry {
                number,
                file_type,
                name,
            };
            block::write_entry(bytes, at, ENTRY_LEN_MIN, &entry);
        }
        let mut end = 0;
        for (start, region) in self.regions() {
            end = start + region.len();
            bytes[start..end].copy_from_slice(region);
        }
        block::extend_last(&mut bytes[..block::region_len(context)], end)
            .map_err(|e| in_directory(context, e))?;
        block::seal(context, bytes);
        Ok(())
    }

    /// Calls `sink` for each entry from `cookie` on, `.` and `..` included, until it breaks.
    pub(super) fn iterate(
        &self,
        context: &DirectoryContext,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = Some(FileType::Directory).filter(|_| context.has_file_type);
        let version = context.dir_index.then(|| default_hash_version(context));
        let [after_dot, after_dots] = if version.is_some() {
            [1, FIRST_HASH_COOKIE]
        } else {
            [ENTRY_LEN_MIN as u64, DOTS_LEN as u64]
        };
        let dot = |name, number, next_cookie| DirectoryEntry {
            name,
            number,
            file_type: directory,
            next_cookie,
        };
        let mut listed = vec![
            (0, dot(b".", context.number, after_dot)),
            (after_dot, dot(b"..", self.parent(), after_dots)),
        ];
        for (start, region) in self.regions() {
            for entry in Entries::new(region) {
                let entry = entry.map_err(|e| in_directory(context, e))?;
                if entry.is_unused() {
                    continue;
                }
                entry.check_name().map_err(|e| in_directory(context, e))?;
                let position = (start + entry.offset) as u64;
                if matches!(entry.name, b"." | b"..") {
                    let what = format!("entry at byte {}: . or .. out of place", entry.offset);
                    return Err(in_directory(context, Error::corrupt(what)));
                }
                let (position, next_cookie) = match version {
                    None => (position, position + entry.len as u64),
                    Some(version) => {
                        let position = hash_cookie(context, version, entry.name);
                        (position, position + 1)
                    }
                };
                let entry = DirectoryEntry {
                    name: entry.name,
                    number: InodeNumber(entry.number.into()),
                    file_type: context.type_of(entry.file_type),
                    next_cookie,
                };
                listed.push((position, entry));
            }
        }
        listed.sort_by_key(|(position, _)| *position);
        let mut rest = listed.iter().filter(|(position, _)| *position >= cookie);
        let _: ControlFlow<()> = rest.try_for_each(|(_, entry)| sink(entry));
        Ok(())
    }

    /// Whether `.` and `..` are all there is.
    pub(super) fn is_empty(&self, context: &DirectoryContext) -> Result<bool> {
        let mut count = 0;
        self.iterate(context, 0, &mut |_| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count == 2)
    }
}

fn in_directory(context: &DirectoryContext, error: Error) -> Error {
    error.at(format!("inline directory inode {}", context.number))
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
    fn kernel_directory() -> InlineDirectory {
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
        InlineDirectory {
            block_field: block_field.try_into().unwrap(),
            data,
        }
    }

    fn context(dir_index: bool) -> DirectoryContext {
        DirectoryContext {
            dir_index,
            ..super::super::tests::context(1024, Some(7))
        }
    }

    /// Lists `batch` names at a time.
    fn listed(
        directory: &InlineDirectory,
        dir_index: bool,
        batch: usize,
    ) -> Result<Vec<(Vec<u8>, u64)>> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let start = all.len();
            directory.iterate(&context(dir_index), cookie, &mut |entry| {
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

    fn new_entry(name: &[u8]) -> NewEntry<'_> {
        NewEntry {
            number: 99,
            file_type: 1,
            name,
        }
    }

    const KERNEL_NAMES: [(&[u8], u64); 7] = [
        (b".", 12),
        (b"..", 2),
        (b"sub", 15),
        (b"a-longer-name-here", 16),
        (b"three", 17),
        (b"four-more-names-in-the-attribute", 18),
        (b"five", 19),
    ];

    #[test]
    fn inline_directory_of_the_kernel_is_read() {
        let directory = kernel_directory();
        let mut expected = KERNEL_NAMES.map(|(name, number)| (name.to_vec(), number));
        for batch in 1..9 {
            assert_eq!(listed(&directory, false, batch).unwrap(), expected);
        }
        let find = |name| directory.find(&context(true), name).unwrap();
        for (name, number) in &expected {
            assert_eq!(find(name).unwrap().number.0, *number);
        }
        assert_eq!(find(b"one"), None);
        assert_eq!(find(b"sub").unwrap().file_type, Some(FileType::Directory));
        assert!(!directory.is_empty(&context(true)).unwrap());
        expected.sort();
        for batch in 1..9 {
            let mut by_hash = listed(&directory, true, batch).unwrap();
            by_hash.sort();
            assert_eq!(by_hash, expected, "by hash, {batch} at a time");
        }
    }

    #[test]
    fn inline_directory_with_forged_entries_fails() {
        let mut forged = kernel_directory();
        forged.block_field[20] = 4;
        let error = forged.find(&context(true), b"five").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("inline directory inode 12: entry at byte 12: bad length 4"),
            "{error}"
        );
        let mut changed = forged.clone();
        let entry = new_entry(b"x");
        assert!(changed.insert(&context(true), &entry, 200).is_err());
        assert!(changed.remove(&context(true), b"five").is_err());
        assert!(changed.write_block(&context(true), &mut [0; 1024]).is_err());
        assert!(listed(&forged, true, 3).is_err());
        let whole = kernel_directory();
        for cut in 1..whole.data.len() {
            let cut_short = InlineDirectory {
                data: whole.data[..cut].to_vec(),
                ..whole.clone()
            };
            assert!(
                listed(&cut_short, false, 3).is_err() || matches!(cut, 16 | 56),
                "{cut} bytes"
            );
        }
    }

    #[test]
    fn inline_directory_grows_shrinks_and_moves() {
        let context = context(false);
        let mut directory = InlineDirectory::new(2);
        let mut names = Vec::new();
        while {
            let name = format!("name-{}", names.len()).into_bytes();
            let is_inserted = directory.insert(&context, &new_entry(&name), 68).unwrap();
            names.push((name, 99));
            is_inserted
        } {}
        names.pop();
        assert_eq!(directory.size_bytes(), 128, "all of system.data is used");
        let exists = directory.insert(&context, &new_entry(b"name-1"), 68);
        assert_eq!(exists.unwrap_err().errno(), Errno::EXIST);
        for at in [1, 0, names.len() - 3] {
            directory.remove(&context, &names.remove(at).0).unwrap();
        }
        let missing = directory.remove(&context, b"name-1");
        assert_eq!(missing.unwrap_err().errno(), Errno::NOENT);
        names[0].1 = 98;
        let other = NewEntry {
            number: 98,
            ..new_entry(&names[0].0)
        };
        directory.replace(&context, &other).unwrap();
        let parent = NewEntry {
            number: 77,
            ..new_entry(b"..")
        };
        directory.replace(&context, &parent).unwrap();
        assert_eq!(directory.parent().0, 77);
        assert_eq!(listed(&directory, false, 2).unwrap()[2..], names);

        // In a block, each entry has the position that its cookies name.
        let mut bytes = [0; 1024];
        directory.write_block(&context, &mut bytes).unwrap();
        let region = block::checked_region(&context, &bytes).unwrap();
        let mut in_block = Vec::new();
        for entry in Entries::new(region).map(Result::unwrap) {
            in_block.push((entry.offset as u64, entry.number, entry.name.to_vec()));
        }
        in_block.retain(|(_, number, _)| *number != 0);
        assert_eq!(
            in_block[..2],
            [(0, 12, b".".to_vec()), (12, 77, b"..".to_vec())]
        );
        for (at, number, name) in &in_block[2..] {
            let mut found = None;
            directory
                .iterate(&context, *at, &mut |entry| {
                    found = Some((entry.name.to_vec(), entry.number.0));
                    ControlFlow::Break(())
                })
                .unwrap();
            assert_eq!(found, Some((name.clone(), u64::from(*number))));
        }
        assert_eq!(in_block.len(), names.len() + 2);
    }
}
