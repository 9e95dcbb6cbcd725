//! Replaced files (`auto_da_alloc`): after a crash, a file that was rewritten without fsync has its
//! old or its new contents, and no name was renamed, linked or unlinked before the data written
//! until then is on the device.
//!
//! ```text
//!   truncate to nothing   the old extents are kept; the inode on disk still has them     (held)
//!   write, write          delayed
//!   close                 the new contents are complete and may be committed             (ready)
//!   no write for a while  the same: servers do not learn of every close(2)
//!   commit                data to its place, then inode and bitmaps with the new extents;
//!                         the old extents are free
//!
//!   rename, link          the file that takes the name is ordered                       (ordered)
//!   rename, link, unlink  the transaction publishes: new data of all files goes first   (published)
//!   commit                data to its place, then the directories and the inodes
//! ```
//!
//! A new name is often the last step of a change: a packed file takes its name, and the files that
//! it replaces are unlinked. Which files belong together is not known here, so a transaction that
//! publishes writes all data that has no place on disk yet. Overwritten blocks are not new data.
//!
//! Linux starts writeback at close and at rename, while the caller waits, and only of files that
//! replace another one. Here a file that is replaced ten times within a commit interval is written
//! once. `auto_da_alloc=close` selects Linux's way.
//!
//! Invariants:
//! 1. A held inode's entry in the table shows the contents before the truncation, its blocks in
//!    use.
//! 2. The blocks of its new contents are in use in memory, and free on disk, until the hold ends.
//! 3. A hold ends when a transaction is closed, and only if the new contents are on the device by
//!    then, or after [`HOLD_AGE_MAX`].

use crate::base::Result;
use crate::fs::ext4::inode::state::{ContentLayout, HeldContents, InodeState};
use crate::fs::ext4::inode::{Ext4, Ext4Inode};
use crate::fs::ext4::layout::extent::Extent;
use crate::fs::ext4::options::AutoDaAlloc;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A truncation is committed after this time at the latest, even if the file was not closed.
const HOLD_AGE_MAX: Duration = Duration::from_secs(30);

impl Ext4Inode {
    /// Keeps the contents on disk before a truncation to nothing, if the mount's options demand it.
    /// Returns whether it did.
    pub(crate) fn hold(&self, state: &mut InodeState) -> Result<bool> {
        let fs = &self.fs;
        if let Some(held) = &mut state.held {
            // Complete new contents are truncated, too: the contents on disk stay until complete
            // ones follow.
            held.is_ready = false;
        }
        let is_needed = fs.volume.auto_da_alloc() == AutoDaAlloc::Commit
            && fs.volume.journal.get().is_some()
            && state.held.is_none()
            // New contents stay in memory until the hold ends: extents are few, pointers are not.
            && state.layout == ContentLayout::Extents
            // Old and new contents share no cluster, but bitmaps on disk hide single blocks.
            && fs.volume.geometry.cluster_blocks == 1
            && state.link_count() > 0
            && state.disk_size > 0
            && !state.map.extents().is_empty();
        let Some(this) = self.this.upgrade().filter(|_| is_needed) else {
            return Ok(false);
        };
        // The root that is kept must lead to the map that is kept: no later flush writes it.
        if state.map_is_dirty {
            self.flush_map(state)?;
        }
        let map = std::mem::take(&mut state.map);
        let held = HeldContents {
            size_bytes: state.disk_size,
            root: state.raw.block,
            map,
            since: Instant::now(),
            written_in: fs.changes.tick(),
            is_ready: false,
        };
        state.charge_blocks(-held.block_count(), fs.volume.block_size);
        state.raw.block = state.layout.empty_block_field();
        state.held = Some(Box::new(held));
        fs.held_inodes.insert(self.number, this);
        Ok(true)
    }

    /// Marks the new contents as complete: the file was closed, or is synced. Returns whether there
    /// are any, which the next transaction then commits.
    pub(crate) fn release_hold(&self) -> bool {
        let is_held = self.state.read().held.is_some();
        if is_held {
            let _handle = self.fs.volume.start();
            let mut state = self.state_mut();
            if let Some(held) = &mut state.held {
                held.is_ready = true;
                // A hold ends only with data on the device: the commit must not find it dirty.
                self.order();
            }
        }
        is_held
    }

    /// Ends the hold: frees the old contents with this transaction.
    pub(crate) fn end_hold(&self, state: &mut InodeState) -> Result<()> {
        let Some(held) = state.held.take() else {
            return Ok(());
        };
        let fs = &self.fs;
        // Dropped by the caller's reference.
        let listed = fs.held_inodes.remove(self.number);
        listed.into_iter().for_each(Ext4::retire);
        for extent in held.map.extents() {
            fs.volume.free_data(extent.physical_range())?;
        }
        for block in held.map.tree_blocks() {
            fs.volume.free_metadata(*block..block + 1)?;
        }
        // The new blocks reach the bitmaps in the transaction that shows them in the inode.
        let mut space = fs.volume.space.lock();
        for extent in state.map.extents() {
            space.unhide(&fs.volume.geometry, extent.physical_range());
        }
        drop(space);
        state.map_is_dirty = true;
        self.mark_dirty(state);
        Ok(())
    }

    /// Orders the inode: its data reaches the device before the next transaction is durable.
    pub(crate) fn order(&self) {
        if let Some(this) = self
            .this
            .upgrade()
            .filter(|_| self.fs.volume.journal.get().is_some())
        {
            let listed = self.fs.ordered_inodes.insert(self.number, this);
            // After the list, which is read after this is cleared.
            self.fs.is_order_late.store(true, Ordering::Release);
            listed.into_iter().for_each(Ext4::retire);
        }
    }

    /// Handles the close of a writable descriptor.
    pub(crate) fn note_closed(&self) {
        // Under the other protections, a hold from before a remount.
        self.release_hold();
        if self.fs.volume.auto_da_alloc() == AutoDaAlloc::Close {
            let was_truncated = self.state.read().was_truncated;
            if was_truncated {
                self.state_mut().was_truncated = false;
                self.start_writing();
            }
        }
    }

    /// Prepares a rename over another inode's name, before its transaction.
    pub(crate) fn prepare_replacing(&self) {
        if self.fs.volume.auto_da_alloc() == AutoDaAlloc::Close {
            self.start_writing();
        }
    }

    /// Orders the inode, which takes a new name in this transaction: the name must not be committed
    /// without the data. The caller has a handle.
    pub(crate) fn note_named(&self) {
        if self.fs.volume.auto_da_alloc() == AutoDaAlloc::Commit {
            self.fs.note_published();
            // A reader of the new name must not find contents from before a truncation.
            if !self.release_hold() && self.has_dirty_pages() {
                self.order();
            }
        }
    }

    /// Whether the file has data that no block or size on disk covers yet.
    fn has_new_data(&self) -> bool {
        let Some(mapping) = &self.common.mapping else {
            return false;
        };
        let state = self.state.read();
        state.delayed.data_blocks() > 0
            || state.delayed.splits > 0
            || mapping.size_bytes() > state.disk_size
    }

    /// Writes delayed blocks (Linux: `filemap_flush`). The mapping keeps an error for fsync.
    fn start_writing(&self) {
        let has_delayed = self.state.read().delayed.data_blocks() > 0;
        if let Some(mapping) = self.common.mapping.as_ref().filter(|_| has_delayed) {
            let _ = mapping.write_dirty(0..u64::MAX);
        }
    }
}

impl Ext4 {
    /// Notes that the running transaction changes a name on which other files may depend. The
    /// caller has a handle.
    pub(crate) fn note_published(&self) {
        if self.volume.auto_da_alloc() == AutoDaAlloc::Commit {
            self.publishes.store(true, Ordering::Release);
        }
    }

    /// Writes the data of ordered files, and all new data if the transaction publishes. Their
    /// mappings keep errors for fsync; data that could not be written is not committed.
    ///
    /// # Errors
    /// ENOSPC or EDQUOT of the device: the names wait, as the data does.
    pub(crate) fn write_ordered(&self) -> Result<()> {
        let mut result = Ok(());
        self.is_order_late.store(false, Ordering::Release);
        let mut files = self.ordered_inodes.all();
        if self.publishes.load(Ordering::Acquire) {
            let (new, other): (Vec<_>, Vec<_>) = self
                .dirty_inodes
                .all()
                .into_iter()
                .partition(|inode| inode.has_new_data());
            other.into_iter().for_each(Self::retire);
            files.extend(new);
            files.sort_unstable_by_key(|inode| inode.number);
        }
        for inode in files {
            let written = inode
                .common
                .mapping
                .as_ref()
                .map(|m| m.write_back(0..u64::MAX));
            if let Some(Err(error)) = written
                && error.is_out_of_space()
            {
                result = Err(error);
            }
            Self::retire(inode);
        }
        result
    }

    /// Marks every hold to end with the next transaction; returns whether there is one.
    pub(crate) fn release_holds(&self) -> bool {
        let held = self.held_inodes.all();
        let is_any = !held.is_empty();
        for inode in held {
            inode.release_hold();
            Self::retire(inode);
        }
        is_any
    }

    /// Ends the holds whose new contents are on the device, and drops written files from the list
    /// of ordered files. Operations and writeback are stopped. Returns the blocks that the bitmaps
    /// on disk must not show in use yet: those of files that stay held.
    pub(crate) fn finish_holds(&self) -> Result<Vec<Range<u64>>> {
        let mut hidden = Vec::new();
        for inode in self.held_inodes.all() {
            let mut state = inode.state_mut();
            let is_written = !inode.has_dirty_pages();
            let ends = state.held.as_ref().is_some_and(|held| {
                held.is_ready && is_written || held.since.elapsed() > HOLD_AGE_MAX
            });
            if ends {
                inode.end_hold(&mut state)?;
            } else {
                hidden.extend(state.map.extents().iter().map(Extent::physical_range));
            }
            drop(state);
            Self::retire(inode);
        }
        // Files with dirty pages stay ordered for the next transaction: their write failed.
        let written = self
            .ordered_inodes
            .take_if(|inode| !inode.has_dirty_pages());
        written.into_iter().for_each(Self::retire);
        hidden.sort_unstable_by_key(|range| range.start);
        Ok(hidden)
    }
}
