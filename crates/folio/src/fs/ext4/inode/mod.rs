//! Inodes in memory: one object for each inode in use, and the lists that keep inodes alive.
//!
//! ```text
//!   mod.rs        Ext4 (a mounted ext4: its volume and its inodes), Ext4Inode
//!      |
//!   dirty.rs      marks inodes dirty, writes them to the table     lazy_time.rs   times that wait
//!      |
//!   state.rs      what changes: fields, block map, delayed blocks  lists.rs  orphans.rs  links.rs
//!      |
//!   fields.rs     encodings of single fields                       table.rs  the table on disk
//! ```
//!
//! `quota.rs` counts what each owner uses.
//!
//! `change_clock.rs` notes when the last change was made.
//!
//! Neighbors: files, directories and attributes above give inodes their contents; the block map
//! (map/) and the volume below. `Drop` of an inode is in operations/evict.rs, its page store in
//! file/pages.rs.
//!
//! Lock order: `Ext4Inode::state`; `Ext4::orphans`; then the volume's locks. The lists of inodes
//! (`loaded`, `dirty_inodes`, `ordered_inodes`, `held_inodes`, `lazy_times`, `retired`) are leaves:
//! nothing is locked, and no inode dropped, while one is held.
//!
//! Invariants:
//! 1. There is one object for each inode number ([`Ext4::remember`]).
//! 2. The table shows an inode's extents only after `Ext4Inode::flush`.
//! 3. An inode with dirty fields or pages is on the list of dirty inodes, which keeps it alive. An
//!    inode without names is on no list, and is written to the table with every change.
//! 4. A writeback or a commit drops no inode without names ([`Ext4::retire`]): its eviction would
//!    wait for the thread it runs on.

pub(crate) mod change_clock;
mod dirty;
mod fields;
mod lazy_time;
pub(crate) mod links;
mod lists;
pub(crate) mod name_index;
pub(crate) mod orphans;
pub(crate) mod quota;
pub(crate) mod state;
mod table;

pub(crate) use fields::{decode_device, decode_time, file_type_of, raw_block_count};

use super::journal::thread::PeriodicThread;
use super::layout::checksum::{crc32c, inode_checksum};
use super::layout::disk::{INODE_BASE_LEN, INODE_CHECKSUM_HI_OFFSET, RawInode, inode_flags};
use super::layout::features::Incompat;
use super::layout::superblock::Superblock;
use super::map::block_map;
use super::map::delayed::DelayedBlocks;
use super::map::extent_map::ExtentMap;
use super::volume::Volume;
use crate::base::lock::{Mutex, RwLock, RwLockWriteGuard};
use crate::base::{Errno, Error, InodeNumber, Result};
use crate::block::Device;
use crate::cache::{Mapping, PageCache};
use crate::vfs::{AttributeCell, FileType, InodeCommon, InodeLock, MountOptions, NewInode};
use change_clock::ChangeClock;
use fields::{encode_device, mode_of};
use lists::{InodeList, LazyTimes};
use orphans::{OrphanFile, Orphans};
use quota::Quotas;
use state::{ContentLayout, InodeState};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use zerocopy::FromZeros;

/// Dirty inodes in memory before those with clean data are written to the table.
pub(crate) const DIRTY_INODES_MAX: usize = 4096;

/// A mounted ext4: its volume and its inodes.
pub(crate) struct Ext4 {
    pub(crate) this: Weak<Ext4>,
    pub(crate) volume: Volume,
    /// Every inode in use, by number.
    loaded: Mutex<HashMap<u32, Weak<Ext4Inode>, foldhash::fast::FixedState>>,
    pub(crate) dirty_inodes: InodeList<Ext4Inode>,
    /// How many may be listed before those with clean data are written.
    pub(crate) dirty_inodes_limit: AtomicUsize,
    /// Inodes in `dirty_inodes` that differ from their entry in the table.
    pub(crate) unflushed_inodes: AtomicUsize,
    /// Inodes whose last reference was dropped inside writeback or a commit.
    retired: Mutex<Vec<Ext4Inode>>,
    /// Counts the generation numbers of this mount.
    generation: AtomicU32,
    /// Files whose data has to be on the device before the next transaction is durable.
    pub(crate) ordered_inodes: InodeList<Ext4Inode>,
    /// Whether a file was ordered after `write_ordered` began.
    pub(crate) is_order_late: AtomicBool,
    /// Whether the running transaction renames, links or unlinks (file/auto_da_alloc.rs).
    pub(crate) publishes: AtomicBool,
    /// Files that the table shows as they were before a truncation.
    pub(crate) held_inodes: InodeList<Ext4Inode>,
    pub(crate) orphans: Mutex<Orphans>,
    pub(crate) orphan_file: OnceLock<Option<OrphanFile>>,
    /// Set at mount, if the file system has quotas and is mounted for writing.
    pub(crate) quotas: OnceLock<Quotas>,
    pub(crate) lazy_times: LazyTimes<Ext4Inode>,
    /// Writes changes that have waited, from the first change on.
    pub(crate) commit_thread: PeriodicThread,
    /// When the last change was made, for that thread.
    pub(crate) changes: ChangeClock,
    /// Whether the page cache has threads.
    pub(crate) has_threads: bool,
}

/// One inode of a mounted ext4, shared by all its users.
pub(crate) struct Ext4Inode {
    pub(crate) common: InodeCommon,
    pub(crate) fs: Arc<Ext4>,
    pub(crate) number: u32,
    pub(crate) generation: u32,
    pub(crate) this: Weak<Ext4Inode>,
    /// Changed by way of [`Ext4Inode::state_mut`] alone.
    pub(crate) state: RwLock<InodeState>,
    /// Keeps the mapping's store alive; the mapping itself holds it only while pages are dirty.
    _store: Arc<FileStore>,
}

/// The store behind a file's mapping. It does not keep the inode alive: a file whose inode was
/// evicted is deleted, and its last dirty pages are dropped.
pub(crate) struct FileStore {
    pub(crate) inode: Weak<Ext4Inode>,
}

/// The state of an inode while it is changed.
pub(crate) struct StateGuard<'a> {
    inode: &'a Ext4Inode,
    state: RwLockWriteGuard<'a, InodeState>,
}

impl Deref for StateGuard<'_> {
    type Target = InodeState;

    fn deref(&self) -> &InodeState {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut InodeState {
        &mut self.state
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        let Ext4Inode {
            common, number, fs, ..
        } = self.inode;
        let len_bytes = Ext4Inode::BYTES + self.state.heap_bytes();
        if let Some(charge) = &mut self.state.charge {
            charge.resize(len_bytes);
        }
        // Under the lock, so that stat(2) never finds older attributes after newer ones.
        common.attributes.store(&self.state.attributes(
            *number,
            common.file_type,
            fs.volume.block_size,
        ));
    }
}

impl Ext4 {
    /// Returns the file system in memory as the device has it now, without a journal.
    pub(crate) fn attach(
        device: Arc<dyn Device>,
        superblock: Superblock,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<Self>> {
        let volume = Volume::open(device, superblock, cache, options)?;
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            volume,
            loaded: Mutex::default(),
            dirty_inodes: InodeList::default(),
            dirty_inodes_limit: AtomicUsize::new(DIRTY_INODES_MAX),
            unflushed_inodes: AtomicUsize::new(0),
            retired: Mutex::default(),
            generation: AtomicU32::new(0),
            ordered_inodes: InodeList::default(),
            is_order_late: AtomicBool::new(false),
            publishes: AtomicBool::new(false),
            held_inodes: InodeList::default(),
            orphans: Mutex::default(),
            orphan_file: OnceLock::new(),
            quotas: OnceLock::new(),
            lazy_times: LazyTimes::new(options.is_lazy_time),
            commit_thread: PeriodicThread::default(),
            changes: ChangeClock::default(),
            has_threads: cache.has_threads(),
        }))
    }

    /// Drops all changes that could not be written. Listed inodes hold the file system, which holds
    /// the lists.
    pub(crate) fn discard_changes(&self) {
        for list in [&self.dirty_inodes, &self.ordered_inodes, &self.held_inodes] {
            let inodes = list.take();
            for mapping in inodes
                .iter()
                .filter_map(|inode| inode.common.mapping.as_ref())
            {
                // Dirty pages would stay in memory as long as the cache.
                mapping.truncate(0);
            }
        }
        self.volume.metadata.forget_all();
        drop(self.lazy_times.take());
        let retired = std::mem::take(&mut *self.retired.lock());
        drop(retired);
    }

    /// Returns the inode `number`, from memory or the device.
    ///
    /// # Errors
    /// EUCLEAN if it is damaged or not in use.
    pub(crate) fn inode(&self, number: u64) -> Result<Arc<Ext4Inode>> {
        let number = self.volume.geometry.check_inode_number(number)?;
        let known = self.loaded.lock().get(&number).and_then(Weak::upgrade);
        if let Some(inode) = known {
            return Ok(inode);
        }
        let fs = self.this.upgrade().ok_or(Errno::IO)?;
        let loaded = Ext4Inode::load(&fs, number, false)?;
        Ok(self.remember(loaded))
    }

    /// Makes `inode` the one object of its number, unless another thread was faster: then that
    /// thread's object is returned.
    pub(crate) fn remember(&self, inode: Arc<Ext4Inode>) -> Arc<Ext4Inode> {
        let mut loaded = self.loaded.lock();
        if let Some(known) = loaded.get(&inode.number).and_then(Weak::upgrade) {
            // The drop of the surplus inode locks the list.
            drop(loaded);
            return known;
        }
        loaded.insert(inode.number, Arc::downgrade(&inode));
        inode
    }

    /// Removes the entry of an inode that is dropped.
    pub(crate) fn forget_inode(&self, number: u32) {
        let mut loaded = self.loaded.lock();
        // The slot may be in use again: the entry of a living inode stays.
        if loaded
            .get(&number)
            .is_some_and(|weak| weak.strong_count() == 0)
        {
            loaded.remove(&number);
        }
    }

    /// Drops a reference to an inode inside writeback or a commit. If it was the last one, the
    /// inode's eviction would wait for its own thread; it waits for [`Ext4::evict_retired`].
    pub(crate) fn retire(inode: Arc<Ext4Inode>) {
        let fs = inode.fs.clone();
        // Not `try_unwrap`: if two threads drop the last references at once, one must get the
        // inode.
        if let Some(mut last) = Arc::into_inner(inode)
            && last.state.get_mut().link_count() == 0
        {
            fs.retired.lock().push(last);
        }
    }

    /// Evicts inodes whose last reference was dropped by writeback or a commit; returns whether
    /// there was one.
    pub(crate) fn evict_retired(&self) -> bool {
        let retired = std::mem::take(&mut *self.retired.lock());
        !retired.is_empty()
    }

    /// Returns a generation number for a new inode: different for each use of a slot, the same in
    /// each run.
    fn next_generation(&self, number: u32) -> u32 {
        let sequence = self.generation.fetch_add(1, Ordering::Relaxed);
        let seed = crc32c(!0, &self.volume.geometry.raw.uuid);
        crc32c(crc32c(seed, &number.to_le_bytes()), &sequence.to_le_bytes())
    }
}

impl Ext4Inode {
    /// Bytes of an inode in memory, besides what its contents need: the object, its store, and its
    /// entry in a table that is two thirds full.
    const BYTES: usize =
        size_of::<Self>() + size_of::<FileStore>() + size_of::<(u32, Weak<Self>)>() * 3 / 2;

    /// Loads the inode `number` from its table entry; with `allow_unlinked` also one without names
    /// (an orphan).
    ///
    /// # Errors
    /// EUCLEAN if it is damaged or not in use.
    pub(crate) fn load(fs: &Arc<Ext4>, number: u32, allow_unlinked: bool) -> Result<Arc<Self>> {
        Self::load_unplaced(fs, number, allow_unlinked).map_err(|e| e.at(format!("inode {number}")))
    }

    fn load_unplaced(fs: &Arc<Ext4>, number: u32, allow_unlinked: bool) -> Result<Arc<Self>> {
        let volume = &fs.volume;
        let (block, start) = volume.inode_block(number)?;
        let bytes = block.read()[start..start + volume.inode_size].to_vec();
        let state = InodeState::parse(&bytes)?;
        if let Some(seed) = volume.inode_checksum_seed(number, state.raw.generation.get()) {
            let has_high = state.has_field(INODE_CHECKSUM_HI_OFFSET + 2);
            let mask = if has_high { u32::MAX } else { 0xFFFF };
            let high = if has_high {
                u32::from(state.raw.checksum_hi.get()) << 16
            } else {
                0
            };
            let stored = high | u32::from(state.raw.checksum_lo.get());
            if inode_checksum(seed, &bytes, has_high) & mask != stored {
                return Err(Error::corrupt("bad checksum"));
            }
        }
        if state.link_count() == 0 && !allow_unlinked {
            return Err(Error::corrupt("has a name, but is not in use"));
        }
        Self::with_state(fs, number, state)
    }

    /// Returns an inode with the fields of `state`, and loads its block map.
    pub(crate) fn with_state(
        fs: &Arc<Ext4>,
        number: u32,
        mut state: InodeState,
    ) -> Result<Arc<Self>> {
        let volume = &fs.volume;
        let file_type = state.file_type()?;
        state.delayed = DelayedBlocks::new(volume.geometry.cluster_blocks);
        let context = volume.tree_context(number, &state.raw);
        state.map = match state.layout {
            ContentLayout::Extents => ExtentMap::load(&state.raw.block, &context)?,
            ContentLayout::BlockMap => block_map::load(&state.raw.block, &context)?,
            ContentLayout::Inline | ContentLayout::InBlockField => ExtentMap::default(),
        };
        volume.check_not_system(&state)?;
        let size = match file_type {
            FileType::Regular => state.recorded_size(),
            FileType::Directory if volume.has_incompat(Incompat::LARGE_DIR) => {
                state.recorded_size()
            }
            // Linux ignores the upper half for all other types.
            _ => state.raw.size_lo.get().into(),
        };
        if size > i64::MAX as u64 {
            return Err(Error::corrupt(format!("size {size}")));
        }
        state.set_recorded_size(size);
        state.disk_size = size;
        // What was read is not part of the running transaction.
        state.changed_in = volume.running().wrapping_sub(1);
        state.data_changed_in = state.changed_in;
        Ok(Self::assemble(fs, number, file_type, state, size))
    }

    fn assemble(
        fs: &Arc<Ext4>,
        number: u32,
        file_type: FileType,
        mut state: InodeState,
        size: u64,
    ) -> Arc<Self> {
        let volume = &fs.volume;
        let len_bytes = Self::BYTES + state.heap_bytes();
        state.charge = Some(volume.objects.charge(len_bytes));
        Arc::new_cyclic(|this: &Weak<Self>| {
            let store = Arc::new(FileStore {
                inode: this.clone(),
            });
            let weak: Weak<FileStore> = Arc::downgrade(&store);
            let mapping = (file_type == FileType::Regular)
                .then(|| Mapping::new(&volume.data_writeback, weak, size));
            Self {
                common: InodeCommon {
                    number: InodeNumber(number.into()),
                    file_type,
                    lock: InodeLock::default(),
                    mapping,
                    attributes: AttributeCell::new(&state.attributes(
                        number,
                        file_type,
                        volume.block_size,
                    )),
                    validity: None,
                },
                fs: fs.clone(),
                number,
                generation: state.raw.generation.get(),
                this: this.clone(),
                state: RwLock::new(state),
                _store: store,
            }
        })
    }

    /// Makes a new inode in memory for slot `number`, which the caller has allocated. `parent` are
    /// the fields of its parent.
    pub(crate) fn create(
        fs: &Arc<Ext4>,
        number: u32,
        new: &NewInode<'_>,
        parent: &RawInode,
    ) -> Arc<Self> {
        let volume = &fs.volume;
        let mut raw = RawInode::new_zeroed();
        let extra = volume.extra_isize();
        raw.mode = (mode_of(new.file_type) | new.mode & 0o7777).into();
        raw.links_count = 1.into();
        raw.extra_isize = (extra as u16).into();
        raw.generation = fs.next_generation(number).into();
        let layout = match new.file_type {
            FileType::Regular | FileType::Directory => {
                ContentLayout::in_blocks(&volume.geometry.features)
            }
            _ => ContentLayout::InBlockField,
        };
        let inherited = match new.file_type {
            FileType::Directory => parent.flags.get() & inode_flags::INHERITED,
            _ => {
                let flags = inode_flags::INHERITED & !inode_flags::INHERITED_BY_DIRECTORIES;
                parent.flags.get() & flags
            }
        };
        raw.flags = (inherited | layout.flags()).into();
        raw.projid = volume.inherited_project(parent).into();
        if let FileType::CharacterDevice | FileType::BlockDevice = new.file_type {
            raw.block = encode_device(new.device);
        }
        let fields_end = (INODE_BASE_LEN + extra).min(size_of::<RawInode>());
        let tail = vec![0; volume.inode_size - fields_end].into();
        let mut state = InodeState::new(raw, tail, layout);
        state.delayed = DelayedBlocks::new(volume.geometry.cluster_blocks);
        state.map_is_dirty = layout.has_blocks();
        let now = volume.now();
        state.set_accessed(now);
        state.set_modified(now);
        state.set_changed(now);
        state.set_created(now);
        state.set_owner(Some(new.uid), Some(new.gid));
        Self::assemble(fs, number, new.file_type, state, 0)
    }

    /// Returns the state, to change. When the guard is dropped, stat(2) sees the new attributes.
    pub(crate) fn state_mut(&self) -> StateGuard<'_> {
        StateGuard {
            inode: self,
            state: self.state.write(),
        }
    }

    /// Whether the inode has pages that are not written yet.
    pub(crate) fn has_dirty_pages(&self) -> bool {
        self.common.mapping.as_ref().is_some_and(Mapping::is_dirty)
    }
}
