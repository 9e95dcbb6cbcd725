//! A mounted FAT: its inodes in memory, each at the slot of its entry, and the lock over all.

use super::chain::Chain;
use super::directory::Directory;
use super::entry::Entry;
use super::layout::{CLUSTER_MIN, ENTRY_BYTES, RootPlace, damaged};
use super::table::Disk;
use crate::base::Clock;
use crate::base::lock::{Mutex, MutexGuard};
use crate::base::{Errno, Result};
use crate::block::Device;
use crate::vfs::Inode;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

pub(crate) const ROOT_NUMBER: u64 = 1;
/// The first inode number that is not the place of a slot.
const EXTRA_NUMBER_MIN: u64 = 1 << 48;
/// Names in the indexes of directories, about; with more, all indexes are dropped.
const INDEXED_NAMES_MAX: usize = 1 << 18;

/// A file or directory that has an inode.
pub(crate) struct Node {
    /// Its inode; none for the root.
    handle: Option<Weak<dyn Inode>>,
    /// The place of its entry; none for the root, and after an unlink.
    pub(crate) slot_offset: Option<u64>,
    pub(crate) parent: u64,
    pub(crate) chain: Chain,
    pub(crate) len_bytes: u64,
    pub(crate) is_directory: bool,
    is_removed: bool,
    /// The names, of a directory that was read.
    directory: Option<Directory>,
}

/// The state of a mounted FAT.
pub(crate) struct State {
    pub(crate) disk: Disk,
    nodes: HashMap<u64, Node>,
    /// Inode numbers of files whose slot says another one.
    numbers: HashMap<u64, u64>,
    /// Slots that a file left: their number may still be in use.
    left_slots: HashSet<u64>,
    next_number: u64,
    /// Names of directories that were read since the indexes were dropped.
    indexed_names: usize,
    is_closed: bool,
}

/// A mounted FAT, usable from any thread.
pub(crate) struct Volume {
    state: Mutex<State>,
    pub(crate) is_read_only: bool,
    pub(crate) clock: Clock,
}

impl Volume {
    /// Opens the FAT on `device`.
    ///
    /// # Errors
    ///
    /// EUCLEAN if it is damaged, else the device's errors.
    pub(crate) fn open(device: Arc<dyn Device>, is_read_only: bool, clock: Clock) -> Result<Self> {
        let mut state = State {
            disk: Disk::open(device)?,
            nodes: HashMap::new(),
            numbers: HashMap::new(),
            left_slots: HashSet::new(),
            next_number: EXTRA_NUMBER_MIN,
            indexed_names: 0,
            is_closed: false,
        };
        let cluster = match state.disk.geometry.root {
            RootPlace::Cluster(cluster) => cluster,
            RootPlace::Fixed { .. } => 0,
        };
        let root = Node {
            handle: None,
            slot_offset: None,
            parent: ROOT_NUMBER,
            chain: Chain::new(cluster),
            len_bytes: 0,
            is_directory: true,
            is_removed: false,
            directory: None,
        };
        state.nodes.insert(ROOT_NUMBER, root);
        Ok(Self {
            state: Mutex::new(state),
            is_read_only,
            clock,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs `work`, which reads.
    ///
    /// # Errors
    ///
    /// EIO after the unmount, and those of `work`.
    pub(crate) fn read<T>(&self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Errno::IO.into());
        }
        work(&mut state)
    }

    /// Runs `work`, which makes changes.
    ///
    /// # Errors
    ///
    /// EROFS, and those of [`Volume::read`].
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        if self.is_read_only {
            return Err(Errno::ROFS.into());
        }
        self.read(|state| {
            state.disk.mark_dirty()?;
            work(state)
        })
    }

    /// Makes all changes so far durable.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        self.read(|state| state.disk.flush(false))
    }

    /// Makes all changes durable, marks the file system as clean, and calls `work` before the next
    /// change. The mark stays while a file without a name is open: its clusters are lost to a copy.
    pub(crate) fn freeze_while(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.read(|state| {
            if !self.is_read_only {
                let is_clean = !state.nodes.values().any(|node| node.is_removed);
                state.disk.flush(is_clean)?;
            }
            work()
        })
    }

    /// Makes all changes durable, and marks the file system as clean. Later calls fail.
    pub(crate) fn close(&self) -> Result<()> {
        let mut state = self.lock();
        if self.is_read_only || std::mem::replace(&mut state.is_closed, true) {
            state.is_closed = true;
            return Ok(());
        }
        state.disk.flush(true)?;
        state.disk.cache.device().mark_closed()
    }

    /// Forgets an inode that has no user any more; frees its clusters if it has no name.
    pub(crate) fn release(&self, number: u64, handle: *const ()) {
        let mut state = self.lock();
        let node = state.nodes.get(&number);
        let current = node.and_then(|node| node.handle.as_ref());
        if !current.is_some_and(|current| std::ptr::eq(current.as_ptr().cast(), handle)) {
            return;
        }
        let removed = state.nodes.remove(&number);
        if let Some(mut node) = removed.filter(|node| node.is_removed)
            && !state.is_closed
        {
            // The clusters behind a damage stay in use until fsck.fat frees them. A freeze may have
            // cleared the mark.
            let disk = &mut state.disk;
            let _ = disk
                .mark_dirty()
                .and_then(|()| disk.cut(&mut node.chain, 0));
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Callers that need errors close before.
        let _ = self.close();
    }
}

impl State {
    /// Returns an inode's node.
    ///
    /// # Errors
    ///
    /// ENOENT if the inode is not in memory.
    pub(crate) fn node(&mut self, number: u64) -> Result<(&mut Disk, &mut Node)> {
        let node = self.nodes.get_mut(&number).ok_or(Errno::NOENT)?;
        Ok((&mut self.disk, node))
    }

    /// Returns a directory and its names, which are read at the first call.
    ///
    /// # Errors
    ///
    /// ENOENT after its removal, EUCLEAN if it is damaged.
    pub(crate) fn directory(
        &mut self,
        number: u64,
    ) -> Result<(&mut Disk, &mut Chain, &mut Directory)> {
        if self.indexed_names > INDEXED_NAMES_MAX {
            self.indexed_names = 0;
            self.nodes
                .values_mut()
                .for_each(|node| node.directory = None);
        }
        let node = self.nodes.get_mut(&number).ok_or(Errno::NOENT)?;
        if node.is_removed {
            return Err(Errno::NOENT.into());
        }
        if !node.is_directory {
            return Err(Errno::NOTDIR.into());
        }
        let is_root = number == ROOT_NUMBER;
        if node.directory.is_none() {
            if !is_root && node.chain.first() < CLUSTER_MIN {
                return Err(damaged("a directory has no cluster"));
            }
            let directory = Directory::read(&mut self.disk, &mut node.chain, is_root)?;
            self.indexed_names += directory.len();
            node.directory = Some(directory);
        }
        let directory = node.directory.as_mut().ok_or(Errno::IO)?;
        Ok((&mut self.disk, &mut node.chain, directory))
    }

    /// Returns the slot of a name, and the place of its entry.
    pub(crate) fn find(&mut self, parent: u64, name: &str) -> Result<Option<(u32, u64)>> {
        let (disk, chain, directory) = self.directory(parent)?;
        let Some(slot) = directory.find(name) else {
            return Ok(None);
        };
        let offset = directory.slot_offset(disk, chain, slot)?;
        Ok(offset.map(|offset| (slot, offset)))
    }

    /// Returns the inode number of the entry at a place.
    pub(crate) fn number(&self, slot_offset: u64) -> u64 {
        let extra = self.numbers.get(&slot_offset).copied();
        extra.unwrap_or(slot_offset / ENTRY_BYTES as u64 + ROOT_NUMBER + 1)
    }

    /// Returns the inode at a place, if one is in memory.
    pub(crate) fn inode(&self, slot_offset: u64) -> Option<Arc<dyn Inode>> {
        let node = self.nodes.get(&self.number(slot_offset))?;
        node.handle.as_ref()?.upgrade()
    }

    /// Adds the inode of the entry at a place.
    pub(crate) fn add_node(
        &mut self,
        parent: u64,
        slot_offset: u64,
        entry: &Entry,
        handle: Weak<dyn Inode>,
    ) {
        let is_fat32 = matches!(self.disk.geometry.root, RootPlace::Cluster(_));
        // The upper half has another meaning in FAT12 and FAT16.
        let cluster = if is_fat32 {
            entry.cluster()
        } else {
            entry.cluster() & 0xffff
        };
        let node = Node {
            handle: Some(handle),
            slot_offset: Some(slot_offset),
            parent,
            chain: Chain::new(cluster),
            len_bytes: entry.len_bytes().into(),
            is_directory: entry.is_directory(),
            is_removed: false,
            directory: None,
        };
        self.nodes.insert(self.number(slot_offset), node);
    }

    /// Gives the entry that was created at a place a number that no other inode has.
    pub(crate) fn set_new_number(&mut self, slot_offset: u64) {
        if self.left_slots.contains(&slot_offset) {
            self.numbers.insert(slot_offset, self.next_number);
            self.next_number += 1;
        }
    }

    /// Moves an inode to the entry at another place, or to none.
    pub(crate) fn move_node(&mut self, from: u64, to: Option<(u64, u64)>) {
        if to.is_some_and(|(_, slot_offset)| slot_offset == from) {
            return;
        }
        let number = self.number(from);
        self.numbers.remove(&from);
        self.left_slots.insert(from);
        if let Some(node) = self.nodes.get_mut(&number) {
            node.is_removed = to.is_none();
            node.slot_offset = to.map(|(_, slot_offset)| slot_offset);
            node.parent = to.map_or(node.parent, |(parent, _)| parent);
        }
        if let Some((_, slot_offset)) = to {
            self.numbers.insert(slot_offset, number);
        }
    }

    /// Reads the entry at a place.
    pub(crate) fn entry(&mut self, slot_offset: u64) -> Result<Entry> {
        let mut entry = Entry([0; ENTRY_BYTES]);
        self.disk.cache.read(slot_offset, &mut entry.0)?;
        Ok(entry)
    }
}

impl Node {
    /// Changes the entry of an inode, if it has one.
    pub(crate) fn change_entry(
        &self,
        disk: &mut Disk,
        change: impl FnOnce(&mut Entry),
    ) -> Result<()> {
        let Some(offset) = self.slot_offset else {
            return Ok(());
        };
        let mut entry = Entry([0; ENTRY_BYTES]);
        disk.cache.read(offset, &mut entry.0)?;
        change(&mut entry);
        disk.cache.write(offset, &entry.0)
    }
}
