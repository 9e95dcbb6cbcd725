//! Makes happen what fast commits say happened, once the full transactions before them are in their
//! places. Linux: fs/ext4/fast_commit.c (`ext4_fc_replay`).
//!
//! Blocks and inodes that fast commits hand out are taken first, so that directories that grow
//! meanwhile do not get them. What files let go of stays taken until the end, when the bitmaps are
//! settled by what the inodes then hold: the same blocks may have changed hands. Everything may
//! have happened already, whole or in part: the power may have gone during an earlier replay.

use crate::base::{Error, Result};
use crate::block::Device;
use crate::cache::PageCache;
use crate::fs::ext4::Ext4;
use crate::fs::ext4::file::extent::Extent;
use crate::fs::ext4::inode::{Ext4Inode, InodeState, Layout, file_type_of};
use crate::fs::ext4::journal::FastCommitChange;
use crate::fs::ext4::layout::disk::{
    EXTENT_MAGIC, INODE_BASE_LEN, ROOT_INODE, RawInode, inode_flags,
};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::operations::{add_directory_link, drop_directory_link};
use crate::vfs::{FileType, MountOptions};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of `i_block`, which a fast commit does not bring.
const BLOCK_FIELD: Range<usize> = offset_of!(RawInode, block)..offset_of!(RawInode, generation);

/// A file system while fast commits are replayed. It has no journal: this goes straight to its
/// place.
struct Replay<'a> {
    fs: &'a Arc<Ext4>,
    /// The inodes that changed. They stay in memory, so that none is freed before the end.
    inodes: BTreeMap<u32, Arc<Ext4Inode>>,
    /// Blocks that were free and are taken, and blocks that files let go of.
    loose: Vec<Range<u64>>,
}

impl Ext4 {
    /// Makes `changes` happen to the file system on `device`, and writes everything to its place.
    /// EOPNOTSUPP for what Folio does not write.
    pub(crate) fn replay_fast_commits(
        device: &Arc<dyn Device>,
        cache: &Arc<PageCache>,
        options: &MountOptions,
        changes: &[FastCommitChange],
    ) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let superblock = Superblock::load(&**device)?;
        superblock.features.check_writable()?;
        let options = MountOptions {
            read_only: false,
            ..options.clone()
        };
        let fs = Self::attach(device.clone(), superblock, cache, &options)?;
        fs.begin_change()?;
        let mut replay = Replay {
            fs: &fs,
            inodes: BTreeMap::new(),
            loose: Vec::new(),
        };
        let replayed = replay.run(changes);
        let Replay { inodes, .. } = replay;
        if replayed.is_err() {
            // The last reference shall not free what was found without names.
            for inode in inodes.values() {
                inode.forget_dirty();
                inode.state_mut().raw.links_count = 1.into();
            }
            drop(inodes);
            fs.give_up();
            return replayed;
        }
        drop(inodes);
        fs.sync_all(true)
    }
}

impl Replay<'_> {
    fn run(&mut self, changes: &[FastCommitChange]) -> Result<()> {
        for change in changes {
            if let FastCommitChange::AddRange { extent, .. } = change {
                let taken = self.settle(blocks_of(extent), true)?;
                self.loose.extend(taken);
            }
        }
        for (change, index) in changes.iter().zip(1..) {
            self.apply(change)
                .map_err(|e| e.at(format!("fast commit change {index}")))?;
        }
        self.finish()
    }

    fn apply(&mut self, change: &FastCommitChange) -> Result<()> {
        match change {
            FastCommitChange::Inode { number, bytes } => self
                .set_inode(*number, bytes)
                .map_err(|e| e.at(format!("inode {number}"))),
            FastCommitChange::AddRange { number, extent } => self.add_range(*number, *extent),
            FastCommitChange::RemoveRange { number, range } => {
                let Some(inode) = self.file(*number)? else {
                    return Ok(());
                };
                self.let_go(&inode, range.clone());
                Ok(())
            }
            FastCommitChange::Create {
                parent,
                number,
                name,
            } => self.link(*parent, *number, name, true),
            FastCommitChange::Link {
                parent,
                number,
                name,
            } => self.link(*parent, *number, name, false),
            FastCommitChange::Unlink {
                parent,
                number,
                name,
            } => self.unlink(*parent, *number, name),
        }
    }

    fn settle(&self, range: Range<u64>, is_used: bool) -> Result<Vec<Range<u64>>> {
        let fs = self.fs;
        fs.space
            .lock()
            .settle(&fs.geometry, &fs.metadata, range, is_used)
    }

    /// The inode `number`, if it is in use. EUCLEAN for the file system's own.
    fn inode(&mut self, number: u32) -> Result<Option<Arc<Ext4Inode>>> {
        if let Some(inode) = self.inodes.get(&number) {
            return Ok(Some(inode.clone()));
        }
        let fs = self.fs;
        fs.geometry.check_inode_number(number.into())?;
        if number < fs.geometry.first_inode && number != ROOT_INODE {
            return Err(Error::corrupt(format!(
                "changes the reserved inode {number}"
            )));
        }
        if !fs
            .space
            .lock()
            .has_inode(&fs.geometry, &fs.metadata, number)?
        {
            return Ok(None);
        }
        let inode = fs.remember(Ext4Inode::load(fs, number, true)?);
        self.inodes.insert(number, inode.clone());
        Ok(Some(inode))
    }

    /// The same for something that is mapped by extents.
    fn file(&mut self, number: u32) -> Result<Option<Arc<Ext4Inode>>> {
        let Some(inode) = self.inode(number)? else {
            return Ok(None);
        };
        let has_extents = inode.state.read().layout == Layout::Extents;
        match has_extents && inode.common.file_type != FileType::Directory {
            true => Ok(Some(inode)),
            false => Err(Error::corrupt(format!(
                "inode {number} has no extents to change"
            ))),
        }
    }

    /// Makes a range of a file a hole. Its blocks stay taken until the end.
    fn let_go(&mut self, inode: &Ext4Inode, range: Range<u64>) {
        let mut state = inode.state_mut();
        let removed = state.map.remove(range);
        state.map_is_dirty |= !removed.is_empty();
        self.loose.extend(removed.iter().map(blocks_of));
    }

    fn add_range(&mut self, number: u32, extent: Extent) -> Result<()> {
        let Some(inode) = self.file(number)? else {
            return Ok(());
        };
        let start = u64::from(extent.logical);
        self.let_go(&inode, start..start + u64::from(extent.len));
        let mut state = inode.state_mut();
        state.map.insert(extent);
        state.map_is_dirty = true;
        Ok(())
    }

    /// Makes inode `number` what `bytes` say, but for where its blocks lie.
    fn set_inode(&mut self, number: u32, bytes: &[u8]) -> Result<()> {
        let fs = self.fs;
        if bytes.len() > fs.inode_size {
            return Err(Error::corrupt(format!("{} bytes", bytes.len())));
        }
        let generation = |bytes: &[u8]| bytes[BLOCK_FIELD.end..BLOCK_FIELD.end + 4].to_vec();
        let mut old = None;
        if let Some(inode) = self.inode(number)? {
            let slot = self.write_out(&inode)?;
            let is_gone = inode.state.read().link_count() == 0;
            self.inodes.remove(&number);
            match is_gone && generation(&slot) != generation(bytes) {
                // Another inode has its number since: with the last reference it is freed.
                true => drop(inode),
                false => {
                    // Forgotten, but not freed.
                    inode.state_mut().raw.links_count = 1.into();
                    drop(inode);
                    old = Some(slot);
                }
            }
        }
        let slot = merge(old.as_deref(), bytes, fs.inode_size)?;
        let state = InodeState::parse(&slot)?;
        let is_directory = state.file_type()? == FileType::Directory;
        fs.space
            .lock()
            .claim_inode(&fs.geometry, &fs.metadata, number, is_directory)?;
        let inode = fs.remember(Ext4Inode::with_state(fs, number, state)?);
        self.inodes.insert(number, inode);
        Ok(())
    }

    /// Puts an inode into the table as it is now, and returns its bytes there.
    fn write_out(&self, inode: &Ext4Inode) -> Result<Vec<u8>> {
        let mut state = inode.state_mut();
        inode.flush(&mut state)?;
        drop(state);
        inode.forget_dirty();
        let (block, start) = self.fs.inode_block(inode.number)?;
        let slot = block.read()[start..start + self.fs.inode_size].to_vec();
        Ok(slot)
    }

    /// The directory `number`.
    fn directory(&mut self, number: u32) -> Result<Arc<Ext4Inode>> {
        match self.inode(number)? {
            Some(inode) if inode.common.file_type == FileType::Directory => Ok(inode),
            _ => Err(Error::corrupt(format!("inode {number} is no directory"))),
        }
    }

    fn link(&mut self, parent: u32, number: u32, name: &[u8], is_new: bool) -> Result<()> {
        let Some(inode) = self.inode(number)? else {
            return Err(Error::corrupt(format!(
                "name for inode {number}, which is not in use"
            )));
        };
        let directory = self.directory(parent)?;
        let file_type = inode.common.file_type;
        let is_directory = file_type == FileType::Directory;
        if is_directory && !is_new {
            return Err(Error::corrupt(format!(
                "second name for directory {number}"
            )));
        }
        if is_directory && inode.state.read().recorded_size() == 0 {
            inode.initialise_directory(parent)?;
        }
        if directory.find_name(name)?.is_some() {
            // It is there since an earlier replay.
            return Ok(());
        }
        directory.insert_name(name, number, file_type)?;
        let mut state = inode.state_mut();
        let links = match (is_directory, is_new) {
            (true, _) => 2,
            (false, true) => 1,
            (false, false) => state.raw.links_count.get().saturating_add(1),
        };
        state.raw.links_count = links.into();
        drop(state);
        if is_directory {
            add_directory_link(&mut directory.state_mut());
        }
        Ok(())
    }

    fn unlink(&mut self, parent: u32, number: u32, name: &[u8]) -> Result<()> {
        let Some(inode) = self.inode(number)? else {
            return Ok(());
        };
        let directory = self.directory(parent)?;
        match directory.find_name(name)? {
            Some(found) if found.number.0 == u64::from(number) => {}
            // It went in an earlier replay, or leads elsewhere since.
            _ => return Ok(()),
        }
        let is_directory = inode.common.file_type == FileType::Directory;
        if is_directory && (number == ROOT_INODE || !inode.is_empty_directory()?) {
            return Err(Error::corrupt(format!(
                "removal of directory {number}, which is not empty"
            )));
        }
        directory.remove_name(name)?;
        let mut state = inode.state_mut();
        let links = if is_directory {
            0
        } else {
            state.raw.links_count.get().saturating_sub(1)
        };
        state.raw.links_count = links.into();
        drop(state);
        if is_directory {
            drop_directory_link(&mut directory.state_mut());
        }
        Ok(())
    }

    /// Settles block counts and bitmaps, and puts every inode into the table. Those without names
    /// are freed when the last reference goes.
    fn finish(&mut self) -> Result<()> {
        let mut held: Vec<Range<u64>> = Vec::new();
        for inode in self.inodes.values() {
            let place = |e: Error| e.at(format!("inode {}", inode.number));
            if inode.common.file_type != FileType::Directory {
                let mut state = inode.state_mut();
                count_blocks(&mut state, self.fs.block_size);
                drop(state);
            }
            self.write_out(inode).map_err(place)?;
            let state = inode.state.read();
            held.extend(state.map.extents().iter().map(blocks_of));
            held.extend(
                state
                    .map
                    .tree_blocks()
                    .iter()
                    .map(|block| *block..block + 1),
            );
        }
        held.sort_unstable_by_key(|range| range.start);
        if let Some(pair) = held.windows(2).find(|pair| pair[0].end > pair[1].start) {
            return Err(Error::corrupt(format!(
                "block {} belongs to two files",
                pair[1].start
            )));
        }
        for range in &held {
            self.settle(range.clone(), true)?;
        }
        for range in std::mem::take(&mut self.loose) {
            for free in without(range, &held) {
                self.fs.metadata.forget(free.clone());
                self.settle(free, false)?;
            }
        }
        Ok(())
    }
}

/// The new bytes of an inode: those that came, the rest as it was; `i_block` belongs to who has
/// extents.
fn merge(old: Option<&[u8]>, new: &[u8], inode_size: usize) -> Result<Vec<u8>> {
    let word = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let flags = |bytes: &[u8]| {
        let at = offset_of!(RawInode, flags);
        u32::from(word(bytes, at)) | u32::from(word(bytes, at + 2)) << 16
    };
    let mut slot = old.map_or_else(|| vec![0; inode_size], <[u8]>::to_vec);
    let (mode, old_mode) = (word(new, 0), word(&slot, 0));
    if old.is_some() && mode & 0xF000 != old_mode & 0xF000 {
        return Err(Error::corrupt(format!(
            "mode {old_mode:o} becomes {mode:o}"
        )));
    }
    let file_type = file_type_of(mode)
        .ok_or_else(|| Error::corrupt(format!("no file type in mode {mode:o}")))?;
    let before = slot.clone();
    slot[..BLOCK_FIELD.start].copy_from_slice(&new[..BLOCK_FIELD.start]);
    slot[BLOCK_FIELD.end..new.len()].copy_from_slice(&new[BLOCK_FIELD.end..]);
    let mut keep = |range: Range<usize>| slot[range.clone()].copy_from_slice(&before[range]);
    let had_extents = old.is_some() && flags(&before) & inode_flags::EXTENTS != 0;
    if file_type == FileType::Directory {
        // Its blocks are not in fast commits: names are added to those it has.
        keep(offset_of!(RawInode, size_lo)..offset_of!(RawInode, atime));
        keep(offset_of!(RawInode, blocks_lo)..offset_of!(RawInode, version_lo));
        keep(offset_of!(RawInode, size_high)..offset_of!(RawInode, obso_faddr));
        keep(offset_of!(RawInode, blocks_high)..offset_of!(RawInode, file_acl_high));
        let kept =
            flags(&before) & (inode_flags::INDEX | inode_flags::EXTENTS | inode_flags::INLINE_DATA);
        let changed =
            flags(new) & !(inode_flags::INDEX | inode_flags::EXTENTS | inode_flags::INLINE_DATA);
        let kept = if old.is_some() {
            kept
        } else {
            inode_flags::EXTENTS
        };
        let at = offset_of!(RawInode, flags);
        slot[at..at + 4].copy_from_slice(&(kept | changed).to_le_bytes());
        if old.is_none() {
            slot[BLOCK_FIELD].copy_from_slice(&crate::fs::ext4::file::extent::empty_root());
        }
    } else if flags(new) & inode_flags::EXTENTS == 0 {
        if file_type == FileType::Regular && flags(new) & inode_flags::INLINE_DATA == 0 {
            return Err(Error::unsupported(
                "a file with a block map (ext3) in a fast commit",
            ));
        }
        slot[BLOCK_FIELD].copy_from_slice(&new[BLOCK_FIELD]);
    } else if !had_extents || word(&before, BLOCK_FIELD.start) != EXTENT_MAGIC {
        slot[BLOCK_FIELD].copy_from_slice(&crate::fs::ext4::file::extent::empty_root());
    }
    debug_assert!(slot.len() >= INODE_BASE_LEN);
    Ok(slot)
}

/// Sets `i_blocks` to what the inode holds.
fn count_blocks(state: &mut InodeState, block_size: usize) {
    if state.layout != Layout::Extents {
        return;
    }
    let data: i64 = state
        .map
        .extents()
        .iter()
        .map(|extent| i64::from(extent.len))
        .sum();
    let other = state.map.tree_blocks().len() as i64 + i64::from(state.xattr_block() != 0);
    (state.raw.blocks_lo, state.raw.blocks_high) = (0.into(), 0.into());
    state.charge_blocks(data + other, block_size);
}

fn blocks_of(extent: &Extent) -> Range<u64> {
    extent.physical..extent.physical.saturating_add(extent.len.into())
}

/// The parts of `range` outside of `held`, which is sorted.
fn without(range: Range<u64>, held: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut start = range.start;
    let first = held.partition_point(|other| other.end <= range.start);
    for other in held[first..]
        .iter()
        .take_while(|other| other.start < range.end)
    {
        if start < other.start {
            parts.push(start..other.start);
        }
        start = start.max(other.end);
    }
    if start < range.end {
        parts.push(start..range.end);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_left_out() {
        let held = [3..5, 8..9, 20..30];
        assert_eq!(without(0..10, &held), [0..3, 5..8, 9..10]);
        assert_eq!(without(3..5, &held), []);
        assert_eq!(without(4..25, &held), [5..8, 9..20]);
        assert!(
            without(40..41, &held)
                .into_iter()
                .eq(std::iter::once(40..41))
        );
    }
}
