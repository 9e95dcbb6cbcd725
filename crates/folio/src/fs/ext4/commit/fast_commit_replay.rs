//! Fast-commit replay: applies the changes in fast commits, after the full transactions before them
//! are in their places. Linux: fs/ext4/fast_commit.c (`ext4_fc_replay`).
//!
//! Blocks and inodes that fast commits allocate are marked first, so that a directory that grows
//! during the replay does not get them. Blocks that files free stay in use until the end, when the
//! bitmaps follow the blocks that the inodes then have: another file may have got the same blocks.
//! Any change may be applied already, in whole or in part, because an earlier replay was
//! interrupted.

use crate::base::{Error, Result};
use crate::block::Device;
use crate::cache::PageCache;
use crate::fs::ext4::inode::links::{add_directory_link, drop_directory_link};
use crate::fs::ext4::inode::state::{ContentLayout, InodeState};
use crate::fs::ext4::inode::{Ext4, Ext4Inode, file_type_of};
use crate::fs::ext4::journal::{FastCommitChange, Recovered};
use crate::fs::ext4::layout::disk::{
    EXTENT_MAGIC, INODE_BASE_LEN, ROOT_INODE, RawInode, inode_flags,
};
use crate::fs::ext4::layout::extent::{Extent, empty_root};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use crate::vfs::{FileType, MountOptions};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of `i_block`, which a fast commit does not record.
const BLOCK_FIELD: Range<usize> = offset_of!(RawInode, block)..offset_of!(RawInode, generation);

/// A file system while fast commits are replayed. It has no journal: changes are written to their
/// places.
struct Replay<'a> {
    fs: &'a Arc<Ext4>,
    /// The inodes that changed. They stay in memory, so that none is evicted before the end.
    inodes: BTreeMap<u32, Arc<Ext4Inode>>,
    /// Blocks that the replay marked as in use, and blocks that files freed.
    unsettled: Vec<Range<u64>>,
}

impl Ext4 {
    /// Completes a replay of the journal on `device`: marks the file system again as one with
    /// errors, applies the fast commits, and writes everything to its place.
    ///
    /// # Errors
    /// EOPNOTSUPP for features that Folio does not write; EUCLEAN for invalid changes.
    pub(crate) fn complete_replay(
        device: &Arc<dyn Device>,
        cache: &Arc<PageCache>,
        options: &MountOptions,
        recovered: &Recovered,
    ) -> Result<()> {
        if recovered.has_error() {
            Superblock::write_error_mark(&**device)?;
            // Before the journal forgets the error.
            device.flush()?;
        }
        let changes = &recovered.changes[..];
        if changes.is_empty() {
            return Ok(());
        }
        let superblock = Superblock::load(&**device)?;
        superblock.features.check_writable()?;
        superblock.check_writable_values()?;
        if superblock.cluster_blocks > 1 {
            let what = "fast commits on a file system with bigalloc; mount it with Linux once";
            return Err(Error::unsupported(what));
        }
        let options = MountOptions {
            read_only: false,
            ..options.clone()
        };
        let fs = Self::attach(device.clone(), superblock, cache, &options)?;
        fs.open_quotas()?;
        fs.begin_change()?;
        let mut replay = Replay {
            fs: &fs,
            inodes: BTreeMap::new(),
            unsettled: Vec::new(),
        };
        let replayed = replay.run(changes);
        let Replay { inodes, .. } = replay;
        if replayed.is_err() {
            // Dropping the last reference must not evict inodes without names.
            for inode in inodes.values() {
                inode.forget_dirty();
                inode.state_mut().raw.links_count = 1.into();
            }
            drop(inodes);
            fs.discard_changes();
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
                let taken = self.settle(extent.physical_range(), true)?;
                self.unsettled.extend(taken);
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
                self.remove_range(&inode, range.clone());
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

    /// Marks the blocks in `range` as in use or free; returns those that changed.
    fn settle(&self, range: Range<u64>, is_used: bool) -> Result<Vec<Range<u64>>> {
        let fs = self.fs;
        fs.volume
            .space
            .lock()
            .settle(&fs.volume.geometry, &fs.volume.metadata, range, is_used)
    }

    /// Returns the inode `number`, if it is in use.
    ///
    /// # Errors
    /// EUCLEAN for a reserved inode.
    fn inode(&mut self, number: u32) -> Result<Option<Arc<Ext4Inode>>> {
        if let Some(inode) = self.inodes.get(&number) {
            return Ok(Some(inode.clone()));
        }
        let fs = self.fs;
        fs.volume.geometry.check_inode_number(number.into())?;
        if number < fs.volume.geometry.first_inode && number != ROOT_INODE {
            return Err(Error::corrupt(format!(
                "changes the reserved inode {number}"
            )));
        }
        if !fs
            .volume
            .space
            .lock()
            .has_inode(&fs.volume.geometry, &fs.volume.metadata, number)?
        {
            return Ok(None);
        }
        let inode = fs.remember(Ext4Inode::load(fs, number, true)?);
        self.inodes.insert(number, inode.clone());
        Ok(Some(inode))
    }

    /// Returns the inode `number`, if it is in use and mapped by extents.
    ///
    /// # Errors
    /// EUCLEAN for other kinds of inodes.
    fn file(&mut self, number: u32) -> Result<Option<Arc<Ext4Inode>>> {
        let Some(inode) = self.inode(number)? else {
            return Ok(None);
        };
        let has_extents = inode.state.read().layout == ContentLayout::Extents;
        if has_extents && inode.common.file_type != FileType::Directory {
            Ok(Some(inode))
        } else {
            Err(Error::corrupt(format!(
                "inode {number} has no extents to change"
            )))
        }
    }

    /// Makes a range of a file a hole. Its blocks stay in use until the end.
    fn remove_range(&mut self, inode: &Ext4Inode, range: Range<u64>) {
        let mut state = inode.state_mut();
        let removed = state.map.remove(range);
        state.map_is_dirty |= !removed.is_empty();
        self.unsettled
            .extend(removed.iter().map(Extent::physical_range));
    }

    /// Maps `extent` into the file `number`.
    fn add_range(&mut self, number: u32, extent: Extent) -> Result<()> {
        let Some(inode) = self.file(number)? else {
            return Ok(());
        };
        let start = u64::from(extent.logical);
        // What the range maps now may be from an interrupted replay; the map takes no overlap.
        self.remove_range(&inode, start..start + u64::from(extent.len));
        let mut state = inode.state_mut();
        state.map.insert(extent);
        state.map_is_dirty = true;
        Ok(())
    }

    /// Sets the fields of inode `number` from `bytes`, except its block map.
    fn set_inode(&mut self, number: u32, bytes: &[u8]) -> Result<()> {
        let fs = self.fs;
        if bytes.len() > fs.volume.inode_size {
            return Err(Error::corrupt(format!("{} bytes", bytes.len())));
        }
        let generation = |bytes: &[u8]| bytes[BLOCK_FIELD.end..BLOCK_FIELD.end + 4].to_vec();
        let mut old = None;
        if let Some(inode) = self.inode(number)? {
            // The record has no extents: the new inode keeps those of the slot.
            let slot = self.write_out(&inode)?;
            let is_unlinked = inode.state.read().link_count() == 0;
            self.inodes.remove(&number);
            if is_unlinked && generation(&slot) != generation(bytes) {
                // Another inode got its number: this one is evicted.
                drop(inode);
            } else {
                // Dropped from memory, but not evicted.
                inode.state_mut().raw.links_count = 1.into();
                drop(inode);
                old = Some(slot);
            }
        }
        let slot = merge(old.as_deref(), bytes, fs.volume.inode_size)?;
        let mut state = InodeState::parse(&slot)?;
        state.is_in_table = old.is_some();
        let is_directory = state.file_type()? == FileType::Directory;
        fs.volume.space.lock().claim_inode(
            &fs.volume.geometry,
            &fs.volume.metadata,
            number,
            is_directory,
        )?;
        let inode = fs.remember(Ext4Inode::with_state(fs, number, state)?);
        self.inodes.insert(number, inode);
        Ok(())
    }

    /// Writes an inode into the table, and returns its bytes there.
    fn write_out(&self, inode: &Ext4Inode) -> Result<Vec<u8>> {
        let mut state = inode.state_mut();
        inode.flush(&mut state)?;
        drop(state);
        inode.forget_dirty();
        let (block, start) = self.fs.volume.inode_block(inode.number)?;
        let slot = block.read()[start..start + self.fs.volume.inode_size].to_vec();
        Ok(slot)
    }

    /// Returns the directory `number`.
    fn directory(&mut self, number: u32) -> Result<Arc<Ext4Inode>> {
        match self.inode(number)? {
            Some(inode) if inode.common.file_type == FileType::Directory => Ok(inode),
            _ => Err(Error::corrupt(format!("inode {number} is not a directory"))),
        }
    }

    /// Adds `name` for inode `number` to the directory `parent`.
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
        // A new directory has no blocks yet: fast commits record none for it.
        if is_directory && inode.state.read().recorded_size() == 0 {
            inode.initialize_directory(parent, ReservedBlocks::Usable)?;
        }
        if directory.find_name(name)?.is_some() {
            // An earlier replay added it.
            return Ok(());
        }
        directory.insert_name(name, number, file_type, ReservedBlocks::Usable)?;
        let mut state = inode.state_mut();
        let links = if is_directory {
            2
        } else if is_new {
            1
        } else {
            state.raw.links_count.get().saturating_add(1)
        };
        state.raw.links_count = links.into();
        drop(state);
        if is_directory {
            add_directory_link(&mut directory.state_mut());
        }
        Ok(())
    }

    /// Removes `name`, which leads to inode `number`, from the directory `parent`.
    fn unlink(&mut self, parent: u32, number: u32, name: &[u8]) -> Result<()> {
        let Some(inode) = self.inode(number)? else {
            return Ok(());
        };
        let directory = self.directory(parent)?;
        match directory.find_name(name)? {
            Some(found) if found.number.0 == u64::from(number) => {}
            // An earlier replay removed it, or it leads to another inode now.
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

    /// Writes block counts, bitmaps, and every inode into the table. Inodes without names are
    /// evicted with their last reference.
    fn finish(&mut self) -> Result<()> {
        let mut used: Vec<Range<u64>> = Vec::new();
        for inode in self.inodes.values() {
            let place = |e: Error| e.at(format!("inode {}", inode.number));
            if inode.common.file_type != FileType::Directory {
                let mut state = inode.state_mut();
                let values = inode.value_blocks(&state).map_err(place)?;
                count_blocks(&mut state, values, self.fs.volume.block_size);
                drop(state);
            }
            self.write_out(inode).map_err(place)?;
            let state = inode.state.read();
            used.extend(state.map.extents().iter().map(Extent::physical_range));
            used.extend(
                state
                    .map
                    .tree_blocks()
                    .iter()
                    .map(|block| *block..block + 1),
            );
        }
        used.sort_unstable_by_key(|range| range.start);
        // Before the bitmaps change: a block in two files cannot be settled for both.
        if let Some(pair) = used.windows(2).find(|pair| pair[0].end > pair[1].start) {
            return Err(Error::corrupt(format!(
                "block {} belongs to two files",
                pair[1].start
            )));
        }
        // Used blocks before free ones: a block that left one file may now belong to another.
        for range in &used {
            self.settle(range.clone(), true)?;
        }
        for range in std::mem::take(&mut self.unsettled) {
            for free in without(range, &used) {
                // Dirty bytes of a tree block would otherwise overwrite the next use of the block.
                self.fs.volume.metadata.forget(free.clone());
                self.settle(free, false)?;
            }
        }
        Ok(())
    }
}

/// Returns the new bytes of an inode: those in `new`, followed by the rest of `old`. An inode with
/// extents keeps its `i_block`, and a directory keeps all its blocks.
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
        // Fast commits do not record its blocks: names are added to those it has.
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
            slot[BLOCK_FIELD].copy_from_slice(&empty_root());
        }
    } else if flags(new) & inode_flags::EXTENTS == 0 {
        if file_type == FileType::Regular && flags(new) & inode_flags::INLINE_DATA == 0 {
            return Err(Error::unsupported(
                "a file with a block map (ext3) in a fast commit",
            ));
        }
        slot[BLOCK_FIELD].copy_from_slice(&new[BLOCK_FIELD]);
    } else if !had_extents || word(&before, BLOCK_FIELD.start) != EXTENT_MAGIC {
        slot[BLOCK_FIELD].copy_from_slice(&empty_root());
    }
    debug_assert!(slot.len() >= INODE_BASE_LEN);
    Ok(slot)
}

/// Counts the inode's blocks into `i_blocks`; `values` are those of large attributes.
fn count_blocks(state: &mut InodeState, values: i64, block_size: usize) {
    if state.layout != ContentLayout::Extents {
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
    state.charge_blocks(data + other + values, block_size);
}

/// Returns the parts of `range` outside of `used`, which is sorted.
fn without(range: Range<u64>, used: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut start = range.start;
    let first = used.partition_point(|other| other.end <= range.start);
    for other in used[first..]
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
    fn range_without_used_blocks_is_split() {
        let used = [3..5, 8..9, 20..30];
        assert_eq!(without(0..10, &used), [0..3, 5..8, 9..10]);
        assert_eq!(without(3..5, &used), []);
        assert_eq!(without(4..25, &used), [5..8, 9..20]);
        assert!(
            without(40..41, &used)
                .into_iter()
                .eq(std::iter::once(40..41))
        );
    }
}
