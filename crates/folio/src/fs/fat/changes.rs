//! Changes of names: create, remove, rename, each refused before its first write. Linux:
//! fs/fat/namei_vfat.c.

use super::chain::Chain;
use super::directory::Name;
use super::entry::{DOT, DOT_DOT, Entry};
use super::layout::{ENTRY_BYTES, damaged};
use super::names::checked;
use super::table::Disk;
use super::volume::{ROOT_NUMBER, State};
use crate::base::{Errno, Result, Timespec};

/// A file or directory to be created.
pub(crate) struct NewFile<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) is_directory: bool,
    pub(crate) now: Timespec,
}

/// A rename, with the numbers of inodes.
pub(crate) struct Rename<'a> {
    pub(crate) source: u64,
    pub(crate) parent: u64,
    pub(crate) name: &'a str,
    pub(crate) new_parent: u64,
    pub(crate) new_name: &'a [u8],
    pub(crate) replaced: Option<u64>,
}

impl State {
    /// Creates a file or directory; returns the place of its entry.
    pub(crate) fn create(&mut self, parent: u64, new: &NewFile<'_>) -> Result<u64> {
        let text = checked(new.name)?;
        let (disk, chain, directory) = self.directory(parent)?;
        if directory.find(text).is_some() {
            return Err(Errno::EXIST.into());
        }
        let name = directory.new_name(text, None)?;
        let mut content = Chain::default();
        if new.is_directory {
            let above = if parent == ROOT_NUMBER {
                0
            } else {
                chain.first()
            };
            make_directory(disk, &mut content, above, new.now)?;
        }
        let start = match directory.make_room(disk, chain, name.slot_count()) {
            Ok(start) => start,
            Err(error) => {
                disk.cut(&mut content, 0)?;
                return Err(error);
            }
        };
        let entry = Entry::new(&name.short, new.is_directory, content.first(), new.now);
        let slot = directory.insert(disk, chain, start, name, &entry)?;
        let offset = directory.slot_offset(disk, chain, slot)?;
        let offset = offset.ok_or_else(|| damaged("a directory ends before its entries"))?;
        self.set_new_number(offset);
        Ok(offset)
    }

    /// Removes the name of inode `target`, which is freed when its last user drops it.
    ///
    /// # Errors
    ///
    /// ENOTEMPTY for a directory with entries.
    pub(crate) fn remove(&mut self, parent: u64, name: &str, target: u64) -> Result<()> {
        self.check_empty(target)?;
        let (slot, offset) = self.find(parent, name)?.ok_or(Errno::NOENT)?;
        let (disk, chain, directory) = self.directory(parent)?;
        directory.remove(disk, chain, slot)?;
        self.move_node(offset, None);
        Ok(())
    }

    /// Fails with ENOTEMPTY for a directory with entries.
    fn check_empty(&mut self, number: u64) -> Result<()> {
        let (_, node) = self.node(number)?;
        if node.is_directory && self.directory(number)?.2.len() > 0 {
            return Err(Errno::NOTEMPTY.into());
        }
        Ok(())
    }

    /// Moves a name. The new entry is written first: nothing is lost without space for it. A
    /// replaced name keeps its slots and gets the other file's entry, as by Linux's vfat.
    pub(crate) fn rename(&mut self, rename: &Rename<'_>) -> Result<()> {
        let (slot, offset) = self.find(rename.parent, rename.name)?.ok_or(Errno::NOENT)?;
        let entry = self.entry(offset)?;
        let moves = rename.parent != rename.new_parent;
        let dot_dot = if moves && entry.is_directory() {
            Some(self.dot_dot(rename.source)?)
        } else {
            None
        };
        let new_offset = match rename.replaced {
            Some(replaced) => self.replace(rename, slot, &entry, replaced)?,
            None => self.add_name(rename, slot, offset, entry)?,
        };
        self.move_node(offset, Some((rename.new_parent, new_offset)));
        if let Some((offset, mut entry)) = dot_dot {
            let (disk, chain, _) = self.directory(rename.new_parent)?;
            let is_root = rename.new_parent == ROOT_NUMBER;
            entry.set_cluster(if is_root { 0 } else { chain.first() });
            disk.cache.write(offset, &entry.0)?;
        }
        Ok(())
    }

    /// Puts the entry in `slot` in place of that of another file; returns its new place.
    fn replace(
        &mut self,
        rename: &Rename<'_>,
        slot: u32,
        entry: &Entry,
        replaced: u64,
    ) -> Result<u64> {
        self.check_empty(replaced)?;
        let new_name = std::str::from_utf8(rename.new_name).map_err(|_| Errno::NOENT)?;
        let (_, new_offset) = self
            .find(rename.new_parent, new_name)?
            .ok_or(Errno::NOENT)?;
        let old = self.entry(new_offset)?;
        if old.is_directory() != entry.is_directory() {
            return Err(damaged("two directories share a cluster"));
        }
        let mut new = *entry;
        new.set_short(&old.short());
        new.0[12] = old.0[12];
        self.disk.cache.write(new_offset, &new.0)?;
        self.move_node(new_offset, None);
        let (disk, chain, directory) = self.directory(rename.parent)?;
        directory.remove(disk, chain, slot)?;
        Ok(new_offset)
    }

    /// Writes the entry in `slot` under a new name, and removes the old one; returns its new place.
    fn add_name(
        &mut self,
        rename: &Rename<'_>,
        slot: u32,
        offset: u64,
        mut entry: Entry,
    ) -> Result<u64> {
        let text = checked(rename.new_name)?;
        let moves = rename.parent != rename.new_parent;
        let (disk, chain, directory) = self.directory(rename.new_parent)?;
        let renamed = (!moves).then_some(slot);
        if directory
            .find(text)
            .is_some_and(|found| Some(found) != renamed)
        {
            return Err(Errno::EXIST.into());
        }
        let name = directory.new_name(text, renamed)?;
        entry.set_short(&name.short);
        if !moves && name.slot_count() <= directory.slot_count(slot) {
            directory.replace(disk, chain, slot, name, &entry)?;
            return Ok(offset);
        }
        let start = directory.make_room(disk, chain, name.slot_count())?;
        let new_slot = directory.insert(disk, chain, start, name, &entry)?;
        let new_offset = directory.slot_offset(disk, chain, new_slot)?;
        let (disk, chain, directory) = self.directory(rename.parent)?;
        directory.remove(disk, chain, slot)?;
        new_offset.ok_or_else(|| damaged("a directory ends before its entries"))
    }

    /// Returns the entry `..` of a directory, and its place.
    fn dot_dot(&mut self, number: u64) -> Result<(u64, Entry)> {
        let (disk, chain, directory) = self.directory(number)?;
        let missing = || damaged("a directory has no entry for its parent");
        let offset = directory.slot_offset(disk, chain, 1)?.ok_or_else(missing)?;
        let entry = self.entry(offset)?;
        if !entry.0.starts_with(DOT_DOT) {
            return Err(missing());
        }
        Ok((offset, entry))
    }

    /// Returns at most `count` names of a directory from a slot on, with their inode numbers.
    pub(crate) fn list(
        &mut self,
        number: u64,
        slot: u32,
        count: usize,
    ) -> Result<Vec<(u32, Name, u64)>> {
        let (disk, chain, directory) = self.directory(number)?;
        let names = directory.names_from(slot).take(count);
        let names: Vec<(u32, Name)> = names.map(|(slot, name)| (slot, name.clone())).collect();
        let mut offsets = Vec::with_capacity(names.len());
        for (slot, _) in &names {
            offsets.push(directory.slot_offset(disk, chain, *slot)?.unwrap_or(0));
        }
        let numbers = offsets.into_iter().map(|offset| self.number(offset));
        let listed = names.into_iter().zip(numbers);
        Ok(listed
            .map(|((slot, name), number)| (slot, name, number))
            .collect())
    }
}

/// Allocates and writes the first cluster of a directory.
fn make_directory(disk: &mut Disk, content: &mut Chain, above: u32, now: Timespec) -> Result<()> {
    disk.extend(content, 1)?;
    let offset = disk.geometry.cluster_offset(content.first());
    let written = (|| {
        disk.cache
            .write_zeros(offset, disk.geometry.cluster_bytes)?;
        for (name, cluster, at) in [
            (DOT, content.first(), 0),
            (DOT_DOT, above, ENTRY_BYTES as u64),
        ] {
            let entry = Entry::new(name, true, cluster, now);
            disk.cache.write(offset + at, &entry.0)?;
        }
        Ok(())
    })();
    if written.is_err() {
        disk.cut(content, 0)?;
    }
    written
}
