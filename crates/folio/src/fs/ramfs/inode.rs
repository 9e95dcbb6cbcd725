//! One inode of a ramfs: its type, attributes and data.

use super::dir::{Directory, ENTRY_BYTES};
use super::frame_file::FrameFile;
use super::mount_state::MountState;
use crate::base::lock::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use crate::base::{DeviceNumber, Errno, InodeNumber, PAGE_SIZE, Result, Timespec};
use crate::cache::{Mapping, ObjectCharge};
use crate::vfs::{
    ACL_ACCESS, Acl, AttributeCell, AttributeChange, Attributes, FileType, InodeCommon, InodeLock,
    NewInode, SetTime,
};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of entries `.` and `..`, which count in a directory's size.
const DOTS: u64 = 2;
const PAGE: u64 = PAGE_SIZE as u64;
/// Number of 512-byte blocks in a page.
const BLOCKS_512: u64 = PAGE / 512;
/// A symbolic link of this length or more counts as a page (`SHORT_SYMLINK_LEN`, with the zero byte
/// at its end).
const LONG_LINK_BYTES: usize = 128;

/// An inode of a ramfs.
pub(super) struct RamInode {
    pub(super) common: InodeCommon,
    pub(super) shared: Arc<MountState>,
    /// Changed only through [`RamInode::state_mut`].
    pub(super) state: RwLock<InodeState>,
    pub(super) body: InodeBody,
    /// Number of entries of a directory without `.` and `..`; changes with the directory locked,
    /// and is published with the times of that change.
    pub(super) entry_count: AtomicU64,
    _charge: ObjectCharge,
}

/// Bytes of the entry that leads to an inode: its name, and its place in two tables.
const OUTSIDE_BYTES: usize = 160;

/// The changeable state of an inode, besides data and names.
pub(super) struct InodeState {
    pub(super) mode: u16,
    uid: u32,
    gid: u32,
    pub(super) link_count: u32,
    pub(super) accessed: Timespec,
    pub(super) modified: Timespec,
    pub(super) changed: Timespec,
    created: Timespec,
    /// The inode number of `..`, for directories.
    pub(super) parent: InodeNumber,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The type-specific part of an inode.
pub(super) enum InodeBody {
    /// Data in the mapping of the inode.
    Regular,
    /// Data in device memory.
    Frames(Arc<FrameFile>),
    Directory(Mutex<Directory>),
    Symlink(Box<[u8]>),
    Device(DeviceNumber),
    /// Pipes and sockets.
    Nothing,
}

impl InodeBody {
    /// Returns the number of pages that count for the inode besides those of its mapping.
    fn page_count(&self) -> u64 {
        matches!(self, Self::Symlink(target) if target.len() >= LONG_LINK_BYTES).into()
    }
}

impl InodeState {
    /// Returns the attributes, of a directory with `entry_count` entries.
    fn attributes(
        &self,
        number: InodeNumber,
        file_type: FileType,
        body: &InodeBody,
        entry_count: u64,
    ) -> Attributes {
        let (size_bytes, blocks_512) = match body {
            InodeBody::Symlink(target) => (target.len() as u64, body.page_count() * BLOCKS_512),
            InodeBody::Directory(_) => ((entry_count + DOTS) * ENTRY_BYTES, 0),
            InodeBody::Frames(file) => (file.size_bytes(), file.allocated_bytes() / 512),
            // The mapping of a regular file has them.
            _ => (0, 0),
        };
        Attributes {
            number,
            file_type,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            link_count: self.link_count,
            size_bytes,
            blocks_512,
            block_size: PAGE_SIZE as u32,
            device: if let InodeBody::Device(device) = *body {
                device
            } else {
                DeviceNumber::default()
            },
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            created: Some(self.created),
        }
    }
}

/// The write-locked state of an inode; publishes the attributes when it is dropped.
pub(super) struct StateGuard<'a> {
    inode: &'a RamInode,
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
        let RamInode { common, body, .. } = self.inode;
        let entry_count = self.inode.entry_count.load(Ordering::Relaxed);
        let attributes = self
            .state
            .attributes(common.number, common.file_type, body, entry_count);
        common.attributes.store(&attributes);
    }
}

/// The locked names of a directory; updates the number of entries when it is dropped.
pub(super) struct DirectoryGuard<'a> {
    pub(super) entry_count: &'a AtomicU64,
    pub(super) directory: MutexGuard<'a, Directory>,
}

impl Deref for DirectoryGuard<'_> {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.directory
    }
}

impl DerefMut for DirectoryGuard<'_> {
    fn deref_mut(&mut self) -> &mut Directory {
        &mut self.directory
    }
}

impl Drop for DirectoryGuard<'_> {
    fn drop(&mut self) {
        self.entry_count
            .store(self.directory.len(), Ordering::Relaxed);
    }
}

impl RamInode {
    /// Creates an inode with one link, or two for a directory. ENOSPC at the limit.
    pub(super) fn new(shared: &Arc<MountState>, new: &NewInode<'_>) -> Result<Self> {
        let now = shared.clock.now();
        let number = InodeNumber(shared.take_number());
        let body = match new.file_type {
            FileType::Regular => shared.frames.as_ref().map_or(InodeBody::Regular, |files| {
                InodeBody::Frames(files.new_file())
            }),
            FileType::Directory => InodeBody::Directory(Mutex::new(Directory::new())),
            FileType::Symlink => InodeBody::Symlink(new.target.into()),
            FileType::BlockDevice | FileType::CharacterDevice => InodeBody::Device(new.device),
            FileType::Fifo | FileType::Socket => InodeBody::Nothing,
        };
        let limits = &shared.limits;
        let mapping = matches!(body, InodeBody::Regular)
            .then(|| Mapping::without_store(&shared.writeback, 0, limits.pages.clone()));
        let link_count = if matches!(body, InodeBody::Directory(_)) {
            2
        } else {
            1
        };
        let state = InodeState {
            mode: new.mode & 0o7777,
            uid: new.uid,
            gid: new.gid,
            link_count,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            parent: number,
            xattrs: BTreeMap::new(),
        };
        let file_type = new.file_type;
        let attributes = AttributeCell::new(&state.attributes(number, file_type, &body, 0));
        limits.take_inode()?;
        limits
            .take_pages(body.page_count())
            .inspect_err(|_| limits.release_inode())?;
        Ok(Self {
            common: InodeCommon {
                number,
                file_type,
                lock: InodeLock::default(),
                mapping,
                attributes,
                validity: None,
            },
            shared: shared.clone(),
            state: RwLock::new(state),
            body,
            entry_count: AtomicU64::new(0),
            _charge: shared
                .objects
                .charge_pinned(size_of::<Self>() + OUTSIDE_BYTES),
        })
    }

    pub(super) fn number(&self) -> InodeNumber {
        self.common.number
    }

    pub(super) fn set_parent(&self, parent: InodeNumber) {
        self.state_mut().parent = parent;
    }

    pub(super) fn now(&self) -> Timespec {
        self.shared.clock.now()
    }

    pub(super) fn mapping(&self) -> Result<&Mapping> {
        Ok(self.common.mapping.as_ref().ok_or(Errno::INVAL)?)
    }

    /// Locks the state for a change.
    pub(super) fn state_mut(&self) -> StateGuard<'_> {
        StateGuard {
            inode: self,
            state: self.state.write(),
        }
    }

    pub(super) fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        if let Some(size_bytes) = change.size_bytes {
            self.set_size(size_bytes)?;
        }
        let now = self.now();
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let mut state = self.state_mut();
        if let Some(mode) = change.mode {
            state.mode = mode & 0o7777;
            let acl = state
                .xattrs
                .get_mut(ACL_ACCESS)
                .map(|acl| (Acl::from_xattr(acl), acl));
            if let Some((Ok(Some(acl)), bytes)) = acl {
                *bytes = acl.with_mode(mode).to_xattr();
            }
        }
        if let Some(uid) = change.uid {
            state.uid = uid;
        }
        if let Some(gid) = change.gid {
            state.gid = gid;
        }
        if let Some(accessed) = change.accessed {
            state.accessed = time(accessed);
        }
        if let Some(modified) = change.modified {
            state.modified = time(modified);
        }
        state.changed = now;
        Ok(())
    }

    fn set_size(&self, size_bytes: u64) -> Result<()> {
        if let InodeBody::Frames(file) = &self.body {
            return file.set_size(size_bytes);
        }
        let mapping = self.mapping()?;
        if size_bytes == mapping.size_bytes() {
            // Frees pages allocated past the end.
            mapping.punch(size_bytes.next_multiple_of(PAGE)..u64::MAX);
        }
        mapping.truncate(size_bytes);
        Ok(())
    }

    /// Sets the times after a change of contents.
    pub(super) fn note_modified(&self) {
        let now = self.now();
        let mut state = self.state_mut();
        state.modified = now;
        state.changed = now;
    }

    /// Makes `range` read as zeros, and frees the pages wholly inside.
    pub(super) fn punch(&self, range: Range<u64>) -> Result<()> {
        if let InodeBody::Frames(file) = &self.body {
            return file.punch(range);
        }
        let mapping = self.mapping()?;
        let end = range.end;
        let first_whole = range.start.next_multiple_of(PAGE);
        let last_whole = end / PAGE * PAGE;
        let zero = |part: Range<u64>| {
            let page = part.start / PAGE * PAGE;
            let is_cached = mapping
                .next_cached(page)
                .is_some_and(|cached| cached < page + PAGE);
            if part.is_empty() || !is_cached {
                Ok(())
            } else {
                mapping.zero_range(part)
            }
        };
        if first_whole > last_whole {
            return zero(range.start..end);
        }
        zero(range.start..first_whole)?;
        zero(last_whole..end)?;
        if first_whole < last_whole {
            mapping.punch(first_whole..last_whole);
        }
        Ok(())
    }
}

impl RamInode {
    /// Makes `range` read as zeros from allocated pages, as [`RamInode::allocate`] allocates them.
    pub(super) fn zero_range(&self, range: Range<u64>) -> Result<()> {
        if let InodeBody::Frames(file) = &self.body {
            return file.zero_range(range);
        }
        self.allocate(range.clone())?;
        self.mapping()?.zero_range(range)
    }

    /// Extends the file to `size_bytes` if it is shorter.
    pub(super) fn grow(&self, size_bytes: u64) -> Result<()> {
        if let InodeBody::Frames(file) = &self.body {
            file.grow(size_bytes);
            return Ok(());
        }
        let mapping = self.mapping()?;
        if size_bytes > mapping.size_bytes() {
            mapping.set_size_bytes(size_bytes);
        }
        Ok(())
    }

    /// Allocates every page of `range`; ENOSPC if they do not fit, then none is allocated. Linux:
    /// `shmem_fallocate`.
    pub(super) fn allocate(&self, range: Range<u64>) -> Result<()> {
        if let InodeBody::Frames(file) = &self.body {
            return file.allocate(range);
        }
        let mapping = self.mapping()?;
        let end = range.end.next_multiple_of(PAGE);
        // A range that can never fit fails before it evicts other pages.
        let cache_pages = self.shared.cache_bytes / PAGE;
        let max = self
            .shared
            .limits
            .pages
            .as_ref()
            .map_or(cache_pages, |limit| limit.max());
        if (end - range.start) / PAGE > max {
            return Err(Errno::NOSPC.into());
        }
        let mut added: Vec<u64> = Vec::new();
        let mut at = mapping.next_absent(range.start / PAGE * PAGE);
        while at < end {
            if let Err(error) = mapping.page_for_overwrite(at / PAGE) {
                added
                    .iter()
                    .for_each(|start| mapping.punch(*start..*start + PAGE));
                return Err(error);
            }
            added.push(at);
            at = mapping.next_absent(at + PAGE);
        }
        Ok(())
    }
}

impl Drop for RamInode {
    /// Releases the counts, and frees a tree one directory after the other: a deep tree must not
    /// cause deep recursion.
    fn drop(&mut self) {
        self.shared.limits.release_pages(self.body.page_count());
        self.shared.limits.release_inode();
        let InodeBody::Directory(directory) = &mut self.body else {
            return;
        };
        let mut unused = directory.get_mut().take_all();
        while let Some(inode) = unused.pop() {
            if Arc::strong_count(&inode) > 1 {
                continue;
            }
            if let Some(InodeBody::Directory(directory)) = inode
                .as_any()
                .downcast_ref::<RamInode>()
                .map(|inode| &inode.body)
            {
                unused.extend(directory.lock().take_all());
            }
        }
    }
}
