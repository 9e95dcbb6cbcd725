//! Replaced files: whoever writes a file anew without fsync shall find the old or the new one after
//! a crash, never an empty one (`auto_da_alloc`).
//!
//! ```text
//!   truncate to nothing   the old extents are put aside; the inode on disk keeps them    (held)
//!   write, write          delayed
//!   close                 now the new contents may be published                         (ready)
//!   commit                data to its place, then inode and bitmaps with the new extents, the old ones free
//!
//!   rename over a file    the file that takes the name is ordered
//!   commit                data to its place, then the directory and the inode
//! ```
//!
//! Linux does the first part at close and rename, where somebody waits for it, each time. Here a
//! file that is replaced ten times within a commit interval is written once. `auto_da_alloc=close`
//! is Linux's way.
//!
//! Invariants:
//! 1. A held inode's entry in the table shows the contents before the truncation, its blocks in
//!    use.
//! 2. The blocks of its new contents are in use in memory, and free on disk, until the hold ends.
//! 3. A hold ends when a transaction is closed, and only if the new contents are on the device
//!    then.

use super::extent::ExtentMap;
use crate::base::Result;
use crate::fs::ext4::Ext4;
use crate::fs::ext4::inode::{Ext4Inode, InodeState, Layout};
use crate::fs::ext4::options::AutoDaAlloc;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A truncation that is not published is so after this time, whether the file was closed or not.
const HOLD_AGE_MAX: Duration = Duration::from_secs(30);

/// Contents that a truncation took away in memory, but not on disk.
pub(crate) struct Held {
    /// Size on disk, in bytes.
    pub(crate) size_bytes: u64,
    /// `i_block`: the root of the tree.
    pub(crate) root: [u8; 60],
    map: ExtentMap,
    since: Instant,
    /// Whether the new contents are complete, as far as one can know.
    is_ready: bool,
}

impl Held {
    /// Blocks of the old contents, the tree's included.
    pub(crate) fn block_count(&self) -> i64 {
        block_count(&self.map)
    }
}

fn block_count(map: &ExtentMap) -> i64 {
    map.data_blocks() as i64 + map.tree_blocks().len() as i64
}

impl Ext4Inode {
    /// Puts the contents on disk aside, before a truncation to nothing takes them away, if the
    /// mount wants that. Returns whether it did.
    pub(crate) fn hold(&self, state: &mut InodeState) -> Result<bool> {
        let fs = &self.fs;
        if let Some(held) = &mut state.held {
            // What was complete goes too: the contents on disk stay until something complete
            // follows.
            held.is_ready = false;
        }
        let is_wanted = fs.options.auto_da_alloc == AutoDaAlloc::Commit
            && fs.journal.get().is_some()
            && state.held.is_none()
            && state.layout == Layout::Extents
            && state.link_count() > 0
            && state.disk_size > 0
            && !state.map.extents().is_empty();
        let Some(this) = self.this.upgrade().filter(|_| is_wanted) else {
            return Ok(false);
        };
        if state.map_is_dirty {
            self.flush_map(state)?;
        }
        let map = std::mem::take(&mut state.map);
        state.charge_blocks(-block_count(&map), fs.block_size);
        let held = Held {
            size_bytes: state.disk_size,
            root: state.raw.block,
            map,
            since: Instant::now(),
            is_ready: false,
        };
        state.raw.block = super::extent::empty_root();
        state.held = Some(Box::new(held));
        fs.held_inodes.lock().insert(self.number, this);
        Ok(true)
    }

    /// The new contents may be published: the file was closed, or somebody wants them to be
    /// durable. Returns whether there were any that the next transaction publishes.
    pub(crate) fn release_hold(&self) -> bool {
        let is_held = self.state.read().held.is_some();
        if is_held {
            let _handle = self.fs.start();
            let mut state = self.state_mut();
            if let Some(held) = &mut state.held {
                held.is_ready = true;
                self.order();
            }
        }
        is_held
    }

    /// Ends the hold: the old contents go. Their blocks are free with this transaction.
    pub(crate) fn end_hold(&self, state: &mut InodeState) -> Result<()> {
        let Some(held) = state.held.take() else {
            return Ok(());
        };
        let fs = &self.fs;
        // Dropped by the caller's reference.
        let listed = fs.held_inodes.lock().remove(&self.number);
        listed.into_iter().for_each(Ext4::retire);
        for extent in held.map.extents() {
            fs.free_data(extent.physical..extent.physical + u64::from(extent.len))?;
        }
        for block in held.map.tree_blocks() {
            fs.free_metadata(*block..block + 1)?;
        }
        let mut space = fs.space.lock();
        for extent in state.map.extents() {
            space.show(
                &fs.geometry,
                extent.physical..extent.physical + u64::from(extent.len),
            );
        }
        drop(space);
        state.map_is_dirty = true;
        self.mark_dirty(state);
        Ok(())
    }

    /// The inode's data reaches the device before the next transaction is durable.
    pub(crate) fn order(&self) {
        if let Some(this) = self
            .this
            .upgrade()
            .filter(|_| self.fs.journal.get().is_some())
        {
            let listed = self.fs.ordered_inodes.lock().insert(self.number, this);
            listed.into_iter().for_each(Ext4::retire);
        }
    }

    /// A descriptor that could write was closed.
    pub(crate) fn note_closed(&self) {
        match self.fs.options.auto_da_alloc {
            AutoDaAlloc::Commit => drop(self.release_hold()),
            AutoDaAlloc::Close => {
                let was_truncated = self.state.read().was_truncated;
                if was_truncated {
                    self.state_mut().was_truncated = false;
                    self.start_writing();
                }
            }
            AutoDaAlloc::Off => {}
        }
    }

    /// The inode is about to take the name of another, in no transaction yet.
    pub(crate) fn prepare_replacing(&self) {
        if self.fs.options.auto_da_alloc == AutoDaAlloc::Close {
            self.start_writing();
        }
    }

    /// The inode takes the name of another, in this transaction: what it holds must not be lost
    /// with that one.
    pub(crate) fn note_replacing(&self) {
        if self.fs.options.auto_da_alloc == AutoDaAlloc::Commit {
            self.order();
        }
    }

    /// Writes delayed blocks, as Linux does with `filemap_flush`. An error is remembered by the
    /// mapping.
    fn start_writing(&self) {
        let has_delayed = self.state.read().delayed.data_blocks() > 0;
        if let Some(mapping) = self.common.mapping.as_ref().filter(|_| has_delayed) {
            let _ = mapping.write_dirty(0..u64::MAX);
        }
    }
}

impl Ext4 {
    /// Writes the data of files that are ordered. Errors are remembered by their mappings; what
    /// could not be written is not published.
    pub(crate) fn write_ordered(&self) {
        let ordered: Vec<Arc<Ext4Inode>> = self.ordered_inodes.lock().values().cloned().collect();
        for inode in ordered {
            if let Some(mapping) = &inode.common.mapping {
                let _ = mapping.write_back(0..u64::MAX);
            }
            Self::retire(inode);
        }
    }

    /// Lets every hold end with the next transaction; returns whether there is one.
    pub(crate) fn release_holds(&self) -> bool {
        let held: Vec<Arc<Ext4Inode>> = self.held_inodes.lock().values().cloned().collect();
        let is_any = !held.is_empty();
        for inode in held {
            inode.release_hold();
            Self::retire(inode);
        }
        is_any
    }

    /// Ends the holds whose new contents are on the device, while nothing else runs; the list of
    /// ordered files is begun anew. Returns the blocks that must not be seen in use, because the
    /// hold of their file goes on.
    pub(crate) fn settle_holds(&self) -> Result<Vec<Range<u64>>> {
        let held: Vec<Arc<Ext4Inode>> = self.held_inodes.lock().values().cloned().collect();
        let mut hidden = Vec::new();
        for inode in held {
            let mut state = inode.state_mut();
            let is_written = !inode
                .common
                .mapping
                .as_ref()
                .is_some_and(|mapping| mapping.is_dirty());
            let ends = state.held.as_ref().is_some_and(|held| {
                held.is_ready && is_written || held.since.elapsed() > HOLD_AGE_MAX
            });
            match ends {
                true => inode.end_hold(&mut state)?,
                false => hidden.extend(
                    state
                        .map
                        .extents()
                        .iter()
                        .map(|e| e.physical..e.physical + u64::from(e.len)),
                ),
            }
            drop(state);
            Self::retire(inode);
        }
        let mut ordered = self.ordered_inodes.lock();
        let written: Vec<u32> = ordered
            .iter()
            .filter(|(_, inode)| {
                !inode
                    .common
                    .mapping
                    .as_ref()
                    .is_some_and(|mapping| mapping.is_dirty())
            })
            .map(|(number, _)| *number)
            .collect();
        let done: Vec<Arc<Ext4Inode>> = written
            .iter()
            .filter_map(|number| ordered.remove(number))
            .collect();
        drop(ordered);
        done.into_iter().for_each(Self::retire);
        hidden.sort_unstable_by_key(|range| range.start);
        Ok(hidden)
    }
}
