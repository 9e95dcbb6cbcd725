//! An inode in memory: its fields, its block map, and how both go to the inode table.

use super::Ext4;
use crate::base::{Errno, Error, InodeNumber, PhysicalBlock, Result, Timespec};
use crate::cache::Mapping;
use crate::fs::ext4::file::auto_da_alloc::Held;
use crate::fs::ext4::file::delalloc::Delayed;
use crate::fs::ext4::file::extent::{ExtentMap, TreeContext};
use crate::fs::ext4::file::pages::FileStore;
use crate::fs::ext4::journal::metadata::MetadataBlock;
use crate::fs::ext4::layout::checksum::{inode_checksum, inode_seed};
use crate::fs::ext4::layout::disk::{
    INODE_BASE_LEN, INODE_CHECKSUM_HI_OFFSET, INODE_CHECKSUM_LO_OFFSET, RawInode, inode_flags,
};
use crate::fs::ext4::layout::features::{Incompat, RoCompat};
use crate::fs::ext4::space::{Purpose, inode_place};
use crate::vfs::{AttributeCell, Attributes, FileType, InodeCommon, NewInode};
use parking_lot::{RwLock, RwLockWriteGuard};
use std::borrow::Cow;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Where an inode's contents are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// By extents.
    Extents,
    /// By the block map of ext2 and ext3, which is read only here.
    BlockMap,
    /// In the inode itself (`inline_data`).
    Inline,
    /// In `i_block`: the target of a short symbolic link, the number of a device node.
    InBlockField,
}

/// The changing part of an inode.
pub(crate) struct InodeState {
    pub(crate) raw: RawInode,
    /// What follows the fields up to the inode's end: extended attributes, usually.
    pub(crate) tail: Box<[u8]>,
    pub(crate) layout: Layout,
    pub(crate) map: ExtentMap,
    /// Whether `map` must be written out with the inode.
    pub(crate) map_is_dirty: bool,
    pub(crate) delayed: Delayed,
    /// Whether the inode must be written to the table.
    pub(crate) is_dirty: bool,
    /// For regular files, the size that the table shall tell: what lies before it is on the device,
    /// or a hole. Linux: `i_disksize`.
    pub(crate) disk_size: u64,
    /// The transaction of the last change, and of the last change to more than times.
    pub(crate) changed_in: u32,
    pub(crate) data_changed_in: u32,
    /// The contents that the table still shows while the file is written anew.
    pub(crate) held: Option<Box<Held>>,
    /// Truncated to nothing and not closed since; for `auto_da_alloc=close`.
    pub(crate) was_truncated: bool,
}

/// One inode of a mounted ext4, shared by everyone who uses it.
pub(crate) struct Ext4Inode {
    pub(crate) common: InodeCommon,
    pub(crate) fs: Arc<Ext4>,
    pub(crate) number: u32,
    pub(crate) this: Weak<Ext4Inode>,
    /// Changed by way of [`Ext4Inode::state_mut`] alone.
    pub(crate) state: RwLock<InodeState>,
    /// Keeps the mapping's store alive; the mapping itself holds it only while pages are dirty.
    _store: Arc<FileStore>,
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
        common.attributes.store(
            &self
                .state
                .attributes(*number, common.file_type, fs.block_size),
        );
    }
}

impl InodeState {
    /// The state of an inode whose bytes on disk are `bytes`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut padded = [0; size_of::<RawInode>()];
        let extra = match bytes.len() > INODE_BASE_LEN {
            true => usize::from(u16::from_le_bytes([
                bytes[INODE_BASE_LEN],
                bytes[INODE_BASE_LEN + 1],
            ])),
            false => 0,
        };
        let fields_end = INODE_BASE_LEN + extra;
        if fields_end > bytes.len() || extra % 4 != 0 {
            return Err(Error::corrupt(format!("{extra} bytes of extra fields")));
        }
        let known = fields_end.min(padded.len());
        padded[..known].copy_from_slice(&bytes[..known]);
        let raw = RawInode::read_from_bytes(&padded).map_err(|_| Error::corrupt("cut short"))?;
        let mut state = Self {
            raw,
            tail: bytes[known..].into(),
            layout: Layout::InBlockField,
            map: ExtentMap::default(),
            map_is_dirty: false,
            delayed: Delayed::default(),
            is_dirty: false,
            disk_size: 0,
            changed_in: 0,
            data_changed_in: 0,
            held: None,
            was_truncated: false,
        };
        let file_type = state.file_type()?;
        let flags = state.raw.flags.get();
        state.layout = if flags & inode_flags::INLINE_DATA != 0 {
            Layout::Inline
        } else if flags & inode_flags::EXTENTS != 0 {
            Layout::Extents
        } else if matches!(file_type, FileType::Regular | FileType::Directory)
            || (file_type == FileType::Symlink && state.raw.size_lo.get() >= 60)
        {
            Layout::BlockMap
        } else {
            Layout::InBlockField
        };
        Ok(state)
    }

    pub(crate) fn file_type(&self) -> Result<FileType> {
        file_type_of(self.raw.mode.get()).ok_or_else(|| {
            Error::corrupt(format!("no file type in mode {:o}", self.raw.mode.get()))
        })
    }

    /// How many bytes of the fields after the first 128 the inode has.
    fn extra_len(&self) -> usize {
        usize::from(self.raw.extra_isize.get())
    }

    /// The bytes of extended attributes that follow the fields; empty when the inode has no room
    /// for any.
    pub(crate) fn xattr_area(&self) -> &[u8] {
        let skip = (INODE_BASE_LEN + self.extra_len()).saturating_sub(size_of::<RawInode>());
        self.tail.get(skip..).unwrap_or(&[])
    }

    /// The same, to change.
    pub(crate) fn xattr_area_mut(&mut self) -> &mut [u8] {
        let skip = (INODE_BASE_LEN + self.extra_len()).saturating_sub(size_of::<RawInode>());
        self.tail.get_mut(skip..).unwrap_or(&mut [])
    }

    pub(crate) fn xattr_block(&self) -> u64 {
        u64::from(self.raw.file_acl_high.get()) << 32 | u64::from(self.raw.file_acl_lo.get())
    }

    pub(crate) fn set_xattr_block(&mut self, block: u64) {
        self.raw.file_acl_lo = (block as u32).into();
        self.raw.file_acl_high = ((block >> 32) as u16).into();
    }

    /// The size as the inode records it; for regular files the mapping's is the true one.
    pub(crate) fn recorded_size(&self) -> u64 {
        u64::from(self.raw.size_high.get()) << 32 | u64::from(self.raw.size_lo.get())
    }

    pub(crate) fn set_recorded_size(&mut self, size_bytes: u64) {
        self.raw.size_lo = (size_bytes as u32).into();
        self.raw.size_high = ((size_bytes >> 32) as u32).into();
    }

    /// Space in use in units of 512 bytes.
    pub(crate) fn blocks_512(&self, block_size: usize) -> u64 {
        let count =
            u64::from(self.raw.blocks_high.get()) << 32 | u64::from(self.raw.blocks_lo.get());
        match self.raw.flags.get() & inode_flags::HUGE_FILE != 0 {
            true => count.saturating_mul(block_size as u64 / 512),
            false => count,
        }
    }

    /// Notes that the inode holds `change` more blocks.
    pub(crate) fn charge_blocks(&mut self, change: i64, block_size: usize) {
        charge(&mut self.raw, change, block_size);
    }

    /// The fields as the table shall show them: those of the old contents while a truncation is
    /// held back.
    fn shown(&self, block_size: usize) -> Cow<'_, RawInode> {
        let Some(held) = &self.held else {
            return Cow::Borrowed(&self.raw);
        };
        let data = self.map.data_blocks() as i64;
        let mut raw = self.raw;
        raw.block = held.root;
        raw.size_lo = (held.size_bytes as u32).into();
        raw.size_high = ((held.size_bytes >> 32) as u32).into();
        charge(&mut raw, held.block_count() - data, block_size);
        Cow::Owned(raw)
    }

    /// Link count as the user sees it: a directory that had too many to count shows 1.
    pub(crate) fn link_count(&self) -> u32 {
        self.raw.links_count.get().into()
    }

    fn has_field(&self, offset_after: usize) -> bool {
        INODE_BASE_LEN + self.extra_len() >= offset_after
    }

    pub(crate) fn accessed(&self) -> Timespec {
        decode_time(self.raw.atime.get(), self.raw.atime_extra.get())
    }

    pub(crate) fn modified(&self) -> Timespec {
        decode_time(self.raw.mtime.get(), self.raw.mtime_extra.get())
    }

    pub(crate) fn set_accessed(&mut self, time: Timespec) {
        let (low, extra) = encode_time(time, self.has_field(144));
        (self.raw.atime, self.raw.atime_extra) = (low.into(), extra.into());
    }

    pub(crate) fn set_modified(&mut self, time: Timespec) {
        let (low, extra) = encode_time(time, self.has_field(140));
        (self.raw.mtime, self.raw.mtime_extra) = (low.into(), extra.into());
    }

    pub(crate) fn set_changed(&mut self, time: Timespec) {
        let (low, extra) = encode_time(time, self.has_field(136));
        (self.raw.ctime, self.raw.ctime_extra) = (low.into(), extra.into());
    }

    fn set_created(&mut self, time: Timespec) {
        if self.has_field(152) {
            let (low, extra) = encode_time(time, true);
            (self.raw.crtime, self.raw.crtime_extra) = (low.into(), extra.into());
        }
    }

    pub(crate) fn set_owner(&mut self, uid: Option<u32>, gid: Option<u32>) {
        if let Some(uid) = uid {
            (self.raw.uid_lo, self.raw.uid_high) =
                ((uid as u16).into(), ((uid >> 16) as u16).into());
        }
        if let Some(gid) = gid {
            (self.raw.gid_lo, self.raw.gid_high) =
                ((gid as u16).into(), ((gid >> 16) as u16).into());
        }
    }

    /// What stat(2) tells; the size is that of the mapping where there is one.
    fn attributes(&self, number: u32, file_type: FileType, block_size: usize) -> Attributes {
        let raw = &self.raw;
        let delayed = self.delayed.data_blocks() * (block_size as u64 / 512);
        Attributes {
            number: InodeNumber(number.into()),
            file_type,
            mode: raw.mode.get() & 0o7777,
            uid: u32::from(raw.uid_high.get()) << 16 | u32::from(raw.uid_lo.get()),
            gid: u32::from(raw.gid_high.get()) << 16 | u32::from(raw.gid_lo.get()),
            link_count: self.link_count(),
            size_bytes: self.recorded_size(),
            blocks_512: self.blocks_512(block_size) + delayed,
            block_size: block_size as u32,
            device: match file_type {
                FileType::CharacterDevice | FileType::BlockDevice => decode_device(&raw.block),
                _ => (0, 0),
            },
            accessed: self.accessed(),
            modified: self.modified(),
            changed: decode_time(raw.ctime.get(), raw.ctime_extra.get()),
            created: self
                .has_field(152)
                .then(|| decode_time(raw.crtime.get(), raw.crtime_extra.get())),
        }
    }
}

impl Ext4Inode {
    /// The inode `number` as its table entry describes it. `allow_unlinked`: also one without names
    /// (an orphan).
    pub(crate) fn load(fs: &Arc<Ext4>, number: u32, allow_unlinked: bool) -> Result<Arc<Self>> {
        Self::load_unplaced(fs, number, allow_unlinked).map_err(|e| e.at(format!("inode {number}")))
    }

    fn load_unplaced(fs: &Arc<Ext4>, number: u32, allow_unlinked: bool) -> Result<Arc<Self>> {
        let (block, start) = fs.inode_block(number)?;
        let bytes = block.read()[start..start + fs.inode_size].to_vec();
        let state = InodeState::parse(&bytes)?;
        if let Some(seed) = fs.checksum_seed {
            let seed = inode_seed(seed, number, state.raw.generation.get());
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

    pub(crate) fn with_state(
        fs: &Arc<Ext4>,
        number: u32,
        mut state: InodeState,
    ) -> Result<Arc<Self>> {
        let file_type = state.file_type()?;
        state.map = match state.layout {
            Layout::Extents => {
                let map = ExtentMap::load(&state.raw.block, &fs.tree_context(number, &state.raw))?;
                let space = fs.space.lock();
                for extent in map.extents() {
                    space.check_not_system(
                        &(extent.physical..extent.physical + u64::from(extent.len)),
                    )?;
                }
                map
            }
            Layout::BlockMap => crate::fs::ext4::file::block_map::load(&state.raw.block, fs)?,
            Layout::Inline | Layout::InBlockField => ExtentMap::default(),
        };
        let size = match file_type {
            FileType::Regular => state.recorded_size(),
            FileType::Directory if fs.has_incompat(Incompat::LARGE_DIR) => state.recorded_size(),
            _ => state.raw.size_lo.get().into(),
        };
        if size > i64::MAX as u64 {
            return Err(Error::corrupt(format!("size {size}")));
        }
        state.set_recorded_size(size);
        state.disk_size = size;
        // What was read is not part of the running transaction.
        state.changed_in = fs.running().wrapping_sub(1);
        state.data_changed_in = state.changed_in;
        Ok(Self::assemble(fs, number, file_type, state, size))
    }

    fn assemble(
        fs: &Arc<Ext4>,
        number: u32,
        file_type: FileType,
        state: InodeState,
        size: u64,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let store = Arc::new(FileStore::new(this.clone()));
            let weak: Weak<FileStore> = Arc::downgrade(&store);
            let mapping = (file_type == FileType::Regular)
                .then(|| Mapping::new(&fs.data_writeback, weak, size));
            Self {
                common: InodeCommon {
                    number: InodeNumber(number.into()),
                    file_type,
                    lock: RwLock::new(()),
                    mapping,
                    attributes: AttributeCell::new(&state.attributes(
                        number,
                        file_type,
                        fs.block_size,
                    )),
                    validity: None,
                },
                fs: fs.clone(),
                number,
                this: this.clone(),
                state: RwLock::new(state),
                _store: store,
            }
        })
    }

    /// A new inode in memory, on slot `number`, which is taken already. Its parent's flags are
    /// `parent_flags`.
    pub(crate) fn create(
        fs: &Arc<Ext4>,
        number: u32,
        new: &NewInode<'_>,
        parent_flags: u32,
    ) -> Arc<Self> {
        let mut raw = RawInode::new_zeroed();
        let extra = fs.extra_isize();
        raw.mode = (mode_of(new.file_type) | new.mode & 0o7777).into();
        raw.links_count = 1.into();
        raw.extra_isize = (extra as u16).into();
        raw.generation = fs.next_generation(number).into();
        let has_extents = fs.has_incompat(Incompat::EXTENT)
            && matches!(new.file_type, FileType::Regular | FileType::Directory);
        let inherited = match new.file_type {
            FileType::Directory => parent_flags & inode_flags::INHERITED,
            _ => parent_flags & inode_flags::INHERITED & !inode_flags::PROJECT_INHERIT,
        };
        raw.flags = (inherited | if has_extents { inode_flags::EXTENTS } else { 0 }).into();
        if let FileType::CharacterDevice | FileType::BlockDevice = new.file_type {
            raw.block = encode_device(new.device);
        }
        let fields_end = (INODE_BASE_LEN + extra).min(size_of::<RawInode>());
        let mut state = InodeState {
            raw,
            tail: vec![0; fs.inode_size - fields_end].into(),
            layout: if has_extents {
                Layout::Extents
            } else {
                Layout::InBlockField
            },
            map: ExtentMap::default(),
            map_is_dirty: has_extents,
            delayed: Delayed::default(),
            is_dirty: false,
            disk_size: 0,
            changed_in: 0,
            data_changed_in: 0,
            held: None,
            was_truncated: false,
        };
        let now = fs.now();
        state.set_accessed(now);
        state.set_modified(now);
        state.set_changed(now);
        state.set_created(now);
        state.set_owner(Some(new.uid), Some(new.gid));
        Self::assemble(fs, number, new.file_type, state, 0)
    }

    /// The state, to change; what stat(2) tells is published when the guard goes.
    pub(crate) fn state_mut(&self) -> StateGuard<'_> {
        StateGuard {
            inode: self,
            state: self.state.write(),
        }
    }

    /// Puts the inode on the list of dirty ones. The list keeps it alive until it is written.
    pub(crate) fn mark_dirty(&self, state: &mut InodeState) {
        state.data_changed_in = self.fs.running();
        self.mark_times_dirty(state);
    }

    /// The same after a change that fdatasync(2) need not make durable.
    pub(crate) fn mark_times_dirty(&self, state: &mut InodeState) {
        state.changed_in = self.fs.running();
        if state.link_count() == 0 {
            // The list would keep it alive; so an inode without names is written at once.
            if self.fs.journal.get().is_some()
                && let Err(error) = self.flush(state)
            {
                self.fs
                    .note_error(error.at(format!("inode {}", self.number)));
            }
            return;
        }
        if !state.is_dirty
            && let Some(this) = self.this.upgrade()
        {
            state.is_dirty = true;
            self.fs.unflushed_inodes.fetch_add(1, Ordering::Relaxed);
            let listed = self.fs.dirty_inodes.lock().insert(self.number, this);
            listed.into_iter().for_each(Ext4::retire);
        }
    }

    /// The inode is not dirty any more.
    pub(crate) fn clear_dirty(&self, state: &mut InodeState) {
        if std::mem::take(&mut state.is_dirty) {
            self.fs.unflushed_inodes.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Writes the inode (and its extent tree) into the metadata blocks. The device is not touched.
    pub(crate) fn flush(&self, state: &mut InodeState) -> Result<()> {
        if let (FileType::Regular, Some(mapping)) = (self.common.file_type, &self.common.mapping) {
            let size = if self.fs.journal.get().is_some() {
                state.disk_size
            } else {
                mapping.size_bytes()
            };
            state.set_recorded_size(size);
        }
        if state.map_is_dirty && state.layout == Layout::Extents && state.held.is_none() {
            self.flush_map(state)?;
        }
        let (block, start) = self.fs.inode_block(self.number)?;
        let mut bytes = block.write();
        self.encode(state, &mut bytes[start..start + self.fs.inode_size]);
        drop(bytes);
        self.clear_dirty(state);
        if state.link_count() == 0 {
            // Its deletion time may be a link of the list of orphans.
            self.fs.add_orphan(self.number);
        }
        Ok(())
    }

    pub(crate) fn flush_map(&self, state: &mut InodeState) -> Result<()> {
        let context = self.fs.tree_context(self.number, &state.raw);
        let mut root = state.raw.block;
        let before = state.map.tree_blocks().len() as i64;
        let delayed = &mut state.delayed;
        let surplus = state.map.store(&mut root, &context, || {
            let promised = delayed.take_tree_block();
            self.fs.allocate_metadata(promised)
        })?;
        state.raw.block = root;
        state.charge_blocks(
            state.map.tree_blocks().len() as i64 - before,
            self.fs.block_size,
        );
        state.map_is_dirty = false;
        for block in surplus {
            self.fs.free_metadata(block.0..block.0 + 1)?;
        }
        Ok(())
    }

    /// The inode's bytes as they go to the table.
    fn encode(&self, state: &InodeState, bytes: &mut [u8]) {
        let fields_end = bytes.len() - state.tail.len();
        bytes[..fields_end]
            .copy_from_slice(&state.shown(self.fs.block_size).as_bytes()[..fields_end]);
        bytes[fields_end..].copy_from_slice(&state.tail);
        self.fs.seal_inode(self.number, bytes);
    }

    /// Frees an inode that has no names left: its blocks, its slot.
    fn evict(&self) -> Result<()> {
        let _handle = self.fs.start();
        if let Some(mapping) = &self.common.mapping {
            mapping.truncate(0);
        }
        let mut state = self.state_mut();
        self.clear_dirty(&mut state);
        self.end_hold(&mut state)?;
        self.fs.release_delayed(&mut state, 0..1 << 32);
        self.fs.release_tree_reservation(&mut state);
        let is_directory = self.common.file_type == FileType::Directory;
        let is_metadata = self.common.file_type != FileType::Regular;
        for extent in state.map.remove(0..1 << 32) {
            let range = extent.physical..extent.physical + u64::from(extent.len);
            match is_metadata {
                true => self.fs.free_metadata(range)?,
                false => self.fs.free_data(range)?,
            }
        }
        for block in state.map.tree_blocks().to_vec() {
            self.fs.free_metadata(block..block + 1)?;
        }
        self.drop_xattr_block(&mut state)?;
        let now = self.fs.now();
        state.map = ExtentMap::default();
        state.disk_size = 0;
        state.raw.block = [0; 60];
        if state.layout == Layout::Extents {
            state.raw.block = crate::fs::ext4::file::extent::empty_root();
        }
        state.raw.dtime = (now.secs as u32).into();
        state.raw.links_count = 0.into();
        (state.raw.blocks_lo, state.raw.blocks_high) = (0.into(), 0.into());
        state.set_recorded_size(0);
        let (block, start) = self.fs.inode_block(self.number)?;
        self.encode(
            &state,
            &mut block.write()[start..start + self.fs.inode_size],
        );
        drop(state);
        self.fs.remove_orphan(self.number);
        self.fs.free_inode(self.number, is_directory)
    }

    /// The seed of checksums over this inode's blocks.
    pub(crate) fn checksum_seed(&self, state: &InodeState) -> Option<u32> {
        self.fs
            .checksum_seed
            .map(|seed| inode_seed(seed, self.number, state.raw.generation.get()))
    }
}

impl Drop for Ext4Inode {
    fn drop(&mut self) {
        if self.state.get_mut().link_count() == 0
            && self.fs.is_writing()
            && let Err(error) = self.evict()
        {
            self.fs
                .note_error(error.at(format!("inode {}", self.number)));
        }
        self.fs.forget_inode(self.number);
    }
}

impl Ext4 {
    /// The block of the inode table that holds inode `number`, and the byte it starts at.
    pub(crate) fn inode_block(&self, number: u32) -> Result<(MetadataBlock, usize)> {
        let superblock = &self.geometry;
        let (_, index) = inode_place(superblock, number);
        let offset = index as usize * self.inode_size;
        let table = self.space.lock().inode_table(superblock, number);
        let block = self
            .metadata
            .block(PhysicalBlock(table + (offset / self.block_size) as u64))
            .map_err(|e| e.at("inode table"))?;
        Ok((block, offset % self.block_size))
    }

    /// Puts the checksum into the bytes of inode `number`, as they lie in the table.
    pub(crate) fn seal_inode(&self, number: u32, bytes: &mut [u8]) {
        let Some(seed) = self.checksum_seed else {
            return;
        };
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let seed = inode_seed(seed, number, word(offset_of!(RawInode, generation)));
        let extra = if bytes.len() > INODE_BASE_LEN {
            word(INODE_BASE_LEN) as u16
        } else {
            0
        };
        let has_high = INODE_BASE_LEN + usize::from(extra) >= INODE_CHECKSUM_HI_OFFSET + 2
            && bytes.len() > INODE_BASE_LEN;
        let crc = inode_checksum(seed, bytes, has_high);
        bytes[INODE_CHECKSUM_LO_OFFSET..][..2].copy_from_slice(&(crc as u16).to_le_bytes());
        if has_high {
            bytes[INODE_CHECKSUM_HI_OFFSET..][..2]
                .copy_from_slice(&((crc >> 16) as u16).to_le_bytes());
        }
    }

    /// What extent trees of inode `number` are checked against.
    pub(crate) fn tree_context(&self, number: u32, raw: &RawInode) -> TreeContext<'_> {
        TreeContext {
            metadata: &self.metadata,
            block_size: self.block_size,
            block_count: self.geometry.block_count,
            first_data_block: self.geometry.first_data_block,
            checksum_seed: self
                .checksum_seed
                .map(|seed| inode_seed(seed, number, raw.generation.get())),
        }
    }

    /// Bytes of extra fields that new inodes get.
    fn extra_isize(&self) -> usize {
        let room = self.inode_size - INODE_BASE_LEN;
        let wanted = usize::from(self.geometry.raw.want_extra_isize.get());
        let known = size_of::<RawInode>() - INODE_BASE_LEN;
        let is_usable = wanted % 4 == 0 && (4..=known).contains(&wanted);
        if room == 0 {
            0
        } else if is_usable {
            wanted.min(room)
        } else {
            known.min(room)
        }
    }

    /// One block for metadata, near the other metadata.
    pub(crate) fn allocate_metadata(&self, is_promised: bool) -> Result<PhysicalBlock> {
        let mut space = self.space.lock();
        let run = space.allocate(
            &self.geometry,
            &self.metadata,
            None,
            1,
            Purpose::Metadata,
            is_promised,
        )?;
        if is_promised {
            space.release(1);
        }
        Ok(PhysicalBlock(run.start))
    }

    /// Frees blocks that held metadata, and forgets their contents.
    pub(crate) fn free_metadata(&self, range: std::ops::Range<u64>) -> Result<()> {
        self.metadata.forget(range.clone());
        self.free_data(range)
    }

    /// Frees blocks that held file data.
    pub(crate) fn free_data(&self, range: std::ops::Range<u64>) -> Result<()> {
        self.space
            .lock()
            .free(&self.geometry, &self.metadata, range)
    }

    pub(crate) fn free_inode(&self, number: u32, is_directory: bool) -> Result<()> {
        self.space
            .lock()
            .free_inode(&self.geometry, &self.metadata, number, is_directory)
    }

    /// The most links a file may have; directories may exceed it where dir_nlink is on.
    pub(crate) fn check_links(&self, state: &InodeState, is_directory: bool) -> Result<()> {
        const LINKS_MAX: u32 = 65_000;
        let may_exceed = is_directory
            && self
                .geometry
                .features
                .ro_compat
                .contains(RoCompat::DIR_NLINK);
        match state.link_count() >= LINKS_MAX && !may_exceed {
            true => Err(Errno::MLINK.into()),
            false => Ok(()),
        }
    }
}

fn charge(raw: &mut RawInode, change: i64, block_size: usize) {
    let unit = match raw.flags.get() & inode_flags::HUGE_FILE != 0 {
        true => 1,
        false => block_size as i64 / 512,
    };
    let count = u64::from(raw.blocks_high.get()) << 32 | u64::from(raw.blocks_lo.get());
    let count = count.saturating_add_signed(change * unit);
    raw.blocks_lo = (count as u32).into();
    raw.blocks_high = ((count >> 32) as u16).into();
}

/// `S_IFMT` as a type.
pub(crate) fn file_type_of(mode: u16) -> Option<FileType> {
    Some(match mode & 0xF000 {
        0x1000 => FileType::Fifo,
        0x2000 => FileType::CharacterDevice,
        0x4000 => FileType::Directory,
        0x6000 => FileType::BlockDevice,
        0x8000 => FileType::Regular,
        0xA000 => FileType::Symlink,
        0xC000 => FileType::Socket,
        _ => return None,
    })
}

fn mode_of(file_type: FileType) -> u16 {
    match file_type {
        FileType::Fifo => 0x1000,
        FileType::CharacterDevice => 0x2000,
        FileType::Directory => 0x4000,
        FileType::BlockDevice => 0x6000,
        FileType::Regular => 0x8000,
        FileType::Symlink => 0xA000,
        FileType::Socket => 0xC000,
    }
}

/// Seconds are signed 32 bits plus two more epochs bits above; nanoseconds fill the rest of the
/// extra field.
fn decode_time(low: u32, extra: u32) -> Timespec {
    let secs = i64::from(low as i32) + (i64::from(extra & 3) << 32);
    Timespec::new(secs, (extra >> 2).min(999_999_999))
}

fn encode_time(time: Timespec, has_extra: bool) -> (u32, u32) {
    let (min, max) = (
        i64::from(i32::MIN),
        if has_extra {
            (1 << 34) + i64::from(i32::MIN) - 1
        } else {
            i32::MAX.into()
        },
    );
    let secs = time.secs.clamp(min, max);
    let epoch = (secs - i64::from(secs as i32)) >> 32;
    match has_extra {
        true => (secs as u32, (epoch as u32 & 3) | time.nanos << 2),
        false => (secs as u32, 0),
    }
}

/// The kernel's two encodings: 8:8 bits in the first word, or 12:20 in the second.
fn decode_device(block: &[u8; 60]) -> (u32, u32) {
    let word = |i: usize| u32::from_le_bytes([block[i], block[i + 1], block[i + 2], block[i + 3]]);
    match word(0) {
        0 => {
            let new = word(4);
            ((new >> 8) & 0xFFF, (new & 0xFF) | ((new >> 12) & 0xF_FF00))
        }
        old => ((old >> 8) & 0xFF, old & 0xFF),
    }
}

fn encode_device((major, minor): (u32, u32)) -> [u8; 60] {
    let mut block = [0; 60];
    match major < 256 && minor < 256 {
        true => block[..4].copy_from_slice(&(major << 8 | minor).to_le_bytes()),
        false => {
            let new = (minor & 0xFF) | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12;
            block[4..8].copy_from_slice(&new.to_le_bytes());
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_nanoseconds_from_1901_to_2446() {
        for secs in [
            i64::from(i32::MIN),
            -1,
            0,
            1,
            2_147_483_647,
            2_147_483_648,
            4_294_967_296,
            15_032_385_535,
        ] {
            let time = Timespec::new(secs, 123_456_789);
            let (low, extra) = encode_time(time, true);
            assert_eq!(decode_time(low, extra), time);
        }
        let (low, extra) = encode_time(Timespec::new(i64::MAX, 0), true);
        assert_eq!(decode_time(low, extra).secs, 15_032_385_535);
        assert_eq!(
            encode_time(Timespec::new(4_000_000_000, 5), false),
            (i32::MAX as u32, 0)
        );
    }

    #[test]
    fn device_numbers_use_both_encodings() {
        for device in [
            (8, 1),
            (0, 0),
            (255, 255),
            (256, 1),
            (1, 256),
            (4095, 1_048_575),
        ] {
            assert_eq!(decode_device(&encode_device(device)), device);
        }
    }
}
