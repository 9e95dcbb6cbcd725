//! The file system seam: what the VFS asks of ext4, ramfs and the others.

use super::{AttributeCell, ChangeListener, Coherence, ReserveOwners};
use crate::base::{Errno, InodeNumber, Result, Timespec};
use crate::cache::{Mapping, Source};
use bitflags::bitflags;
use parking_lot::RwLock;
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// What a file is (`S_IFMT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A file with bytes.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device node.
    CharacterDevice,
    /// A block device node.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Everything stat(2) tells about an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub number: InodeNumber,
    /// File type.
    pub file_type: FileType,
    /// Permission bits with setuid, setgid and sticky: the low 12 bits of `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that lead to this inode.
    pub link_count: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Space in use, in units of 512 bytes (`st_blocks`).
    pub blocks_512: u64,
    /// Best size for I/O, in bytes (`st_blksize`).
    pub block_size: u32,
    /// Device number of a device node: major and minor.
    pub device: (u32, u32),
    /// Last access.
    pub accessed: Timespec,
    /// Last change of contents.
    pub modified: Timespec,
    /// Last change of attributes.
    pub changed: Timespec,
    /// Creation, where the file system records it.
    pub created: Option<Timespec>,
}

/// A time to set, as utimensat(2) takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time (`UTIME_NOW`).
    Now,
    /// This time.
    To(Timespec),
}

/// Attributes to change; `None` leaves one as it is. The VFS has checked permission. `changed`
/// becomes now.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttributeChange {
    /// New permission bits (12 bits).
    pub mode: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size, for regular files: truncation or growth by a hole.
    pub size_bytes: Option<u64>,
    /// New access time.
    pub accessed: Option<SetTime>,
    /// New modification time.
    pub modified: Option<SetTime>,
}

/// What a new inode shall be. The VFS has applied umask and setgid inheritance.
#[derive(Debug, Clone, Copy)]
pub struct NewInode<'a> {
    /// File type.
    pub file_type: FileType,
    /// Permission bits (12 bits).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes.
    pub device: (u32, u32),
    /// Target, for symbolic links.
    pub target: &'a [u8],
}

/// One name in a directory.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntry<'a> {
    /// The name, without a slash.
    pub name: &'a [u8],
    /// The inode it leads to.
    pub number: InodeNumber,
    /// Its type; `None` where the directory does not record it.
    pub file_type: Option<FileType>,
    /// Continue from here to get the entry after this one (`d_off`).
    pub next_cookie: u64,
}

bitflags! {
    /// renameat2(2) flags.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail with EEXIST rather than replace.
        const NOREPLACE = 1;
        /// Swap the two names.
        const EXCHANGE = 2;
    }

    /// setxattr(2) flags.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// Fail with EEXIST if the name is there.
        const CREATE = 1;
        /// Fail with ENODATA if it is not.
        const REPLACE = 2;
    }
}

/// What a file system keeps for a file that is open.
pub type Opened = Box<dyn Send + Sync>;

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAt {
    /// To this byte.
    Offset(u64),
    /// To the end, wherever that is by then (`O_APPEND`).
    End,
}

/// What fallocate(2) shall do to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Reserve space, growing the file to cover the range.
    Allocate,
    /// Reserve space, keeping the size.
    AllocateKeepSize,
    /// Free the range; it reads as zeros.
    PunchHole,
    /// Make the range read as zeros, growing the file to cover it.
    ZeroRange,
    /// Make the range read as zeros, keeping the size.
    ZeroRangeKeepSize,
    /// Take the range out: what follows moves towards the beginning. Both ends are block bounds.
    CollapseRange,
    /// Put a hole in before the range's start: what follows moves towards the end. Both ends are
    /// block bounds.
    InsertRange,
}

/// A run of a file's bytes that lies in one piece. Linux: `struct fiemap_extent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Where it lies.
    pub place: ExtentPlace,
}

/// Where a run of a file lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentPlace {
    /// On the device, from this byte on.
    Data(u64),
    /// In space from this byte of the device on, which reads as zeros (`FIEMAP_EXTENT_UNWRITTEN`).
    Unwritten(u64),
    /// In memory, without a place so far (`FIEMAP_EXTENT_DELALLOC`).
    Delayed,
    /// In the inode (`FIEMAP_EXTENT_DATA_INLINE`).
    Inline,
}

/// What lseek(2) shall find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekKind {
    /// The next byte that is stored (`SEEK_DATA`).
    Data,
    /// The next byte that is not, the end of the file at the latest (`SEEK_HOLE`).
    Hole,
}

/// What statfs(2) tells. Blocks are of `block_size` bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystemStatistics {
    /// Magic number (`f_type`).
    pub magic: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Blocks free to ordinary users.
    pub blocks_available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes free.
    pub inodes_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// A mounted file system. Linux: `struct super_block`.
pub trait FileSystem: Send + Sync {
    /// Its type as mount(8) writes it: "ext4".
    fn kind(&self) -> &'static str;

    /// The root directory.
    fn root(&self) -> Arc<dyn Inode>;

    /// Sizes and free space.
    fn statistics(&self) -> Result<FileSystemStatistics>;

    /// Makes everything written so far durable.
    fn sync(&self) -> Result<()>;

    /// Syncs and marks the medium clean. The caller has dropped every open file. Later calls may
    /// fail with EIO.
    fn unmount(&self) -> Result<()>;

    /// Whether changes are refused.
    fn is_read_only(&self) -> bool;

    /// For whom the last blocks are kept; such a file system asks
    /// [`may_use_reserve`](super::may_use_reserve).
    fn reserve_owners(&self) -> Option<ReserveOwners> {
        None
    }

    /// Tells `listener` from now on what others change, as long as somebody else holds it; false if
    /// nothing can be told. Where nobody else changes anything, there is nothing to tell.
    fn listen(&self, listener: Weak<dyn ChangeListener>) -> bool {
        let _ = listener;
        false
    }

    /// What whoever mounted it should know, in sentences without a full stop.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The part of an inode that every file system has.
pub struct InodeCommon {
    /// Inode number.
    pub number: InodeNumber,
    /// File type; never changes.
    pub file_type: FileType,
    /// The inode lock, taken by the VFS alone. Linux: `i_rwsem`.
    ///
    /// Exclusive around every call that changes a directory's names or a file's data, size or
    /// attributes; shared around lookup and readdir. Reads of file data take no lock.
    pub lock: RwLock<()>,
    /// The file's data; for regular files only.
    pub mapping: Option<Mapping>,
    /// What [`Inode::attributes`] tells, but for the size of a file with a mapping.
    pub attributes: AttributeCell,
    /// Up to when attributes, data and names may be used without asking; only where others can
    /// change them.
    pub coherence: Option<Coherence>,
}

/// A file, directory, link or device node. Linux: `struct inode` and its operations.
///
/// The VFS checks permissions, types and name lengths first and holds [`InodeCommon::lock`] as
/// described there. A file system gives out one object per inode number while any is alive, so that
/// locks and pages are shared. When the last reference to an inode without names is dropped, the
/// file system frees it.
///
/// Defaults answer as an inode of the wrong type would.
pub trait Inode: Send + Sync {
    /// The part every inode has.
    fn common(&self) -> &InodeCommon;

    /// Everything stat(2) tells. Takes no lock and does not block.
    fn attributes(&self) -> Attributes {
        let common = self.common();
        let mut attributes = common.attributes.load(common.number, common.file_type);
        if let Some(mapping) = &common.mapping {
            attributes.size_bytes = mapping.size_bytes();
        }
        attributes
    }

    /// Asks what lies behind whether others have changed attributes or data, publishes the
    /// attributes, and drops pages that are not true any more. Called when
    /// [`InodeCommon::coherence`] says so, with or without the inode lock.
    fn revalidate(&self) -> Result<()> {
        Ok(())
    }

    /// Somebody who may opens the regular file, to write it or only to read; what lies behind may
    /// refuse. What is returned is dropped when the file is closed, at once.
    fn open(&self, is_written: bool) -> Result<Option<Opened>> {
        let _ = is_written;
        Ok(None)
    }

    /// A new descriptor of the regular file of the host that lies behind this one, if there is one
    /// and if it may be read and written past the cache.
    fn host_file(&self) -> Option<Result<OwnedFd>> {
        None
    }

    /// Changes attributes.
    fn set_attributes(&self, change: &AttributeChange) -> Result<()>;

    /// The inode called `name` in this directory; `None` if there is no such name. Never asked for
    /// `.` and `..`.
    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        let _ = name;
        Err(Errno::NOTDIR.into())
    }

    /// Makes a new inode called `name` in this directory. The name is known not to exist.
    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _ = (name, new);
        Err(Errno::NOTDIR.into())
    }

    /// A new inode without a name (`O_TMPFILE`), on this directory's file system.
    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _ = new;
        Err(Errno::OPNOTSUPP.into())
    }

    /// Gives `target`, an inode of the same file system, another name in this directory.
    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let _ = (name, target);
        Err(Errno::NOTDIR.into())
    }

    /// Takes `name` away, which leads to `target`, not a directory.
    fn unlink(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let _ = (name, target);
        Err(Errno::NOTDIR.into())
    }

    /// Takes the directory `target`, called `name`, away; ENOTEMPTY if it has entries.
    fn remove_directory(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let _ = (name, target);
        Err(Errno::NOTDIR.into())
    }

    /// Moves `name` (leading to `source`) to `new_name` in `new_parent`, replacing `replaced` if
    /// that name is taken; with `RenameFlags::EXCHANGE` the two are swapped. Types and loops have
    /// been checked; a directory that is replaced must be empty (ENOTEMPTY).
    fn rename(
        &self,
        name: &[u8],
        source: &Arc<dyn Inode>,
        new_parent: &Arc<dyn Inode>,
        new_name: &[u8],
        replaced: Option<&Arc<dyn Inode>>,
        flags: RenameFlags,
    ) -> Result<()> {
        let _ = (name, source, new_parent, new_name, replaced, flags);
        Err(Errno::NOTDIR.into())
    }

    /// Calls `sink` for each entry from `cookie` on (0 starts), `.` and `..` included, until it
    /// breaks.
    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _ = (cookie, sink);
        Err(Errno::NOTDIR.into())
    }

    /// The number of the parent directory, as `..` records it; for directories.
    fn parent_number(&self) -> Result<InodeNumber> {
        Err(Errno::NOTDIR.into())
    }

    /// The target of a symbolic link.
    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Errno::INVAL.into())
    }

    /// Makes ready for a write of `offset..offset + len_bytes`: reserves space (ENOSPC is told
    /// here) and refuses what cannot be (EFBIG). The cache is written next, then
    /// [`Inode::write_end`] is called.
    fn write_begin(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let _ = (offset, len_bytes);
        Err(Errno::INVAL.into())
    }

    /// A write put `written_bytes` at `offset` into the cache: times change, setuid and setgid bits
    /// go as told.
    fn write_end(&self, offset: u64, written_bytes: u64, clear_set_id: bool) -> Result<()> {
        let _ = (offset, written_bytes, clear_set_id);
        Err(Errno::INVAL.into())
    }

    /// Whether reads go past the cache, by [`Inode::read_direct`].
    fn is_direct(&self) -> bool {
        false
    }

    /// Reads bytes past the cache, fewer at the end of the file. Unless it `may_wait` for a device,
    /// EAGAIN if it would have to. Called without the inode lock.
    fn read_direct(&self, offset: u64, buf: &mut [u8], may_wait: bool) -> Result<usize> {
        let _ = (offset, buf, may_wait);
        Err(Errno::INVAL.into())
    }

    /// Writes bytes to what lies behind and then to pages in memory, and returns the end of what
    /// was written and how much that was; `None` if the cache takes them and writeback follows, as
    /// for most. [`Inode::write_begin`] and [`Inode::write_end`] are called around what the cache
    /// takes alone.
    fn write_through(&self, at: WriteAt, bytes: &Source<'_>) -> Option<Result<(u64, usize)>> {
        let _ = (at, bytes);
        None
    }

    /// A descriptor open for writing was closed. Called with nothing locked.
    fn close_written(&self) {}

    /// Notes an access to the data at the present time. The VFS applies noatime and relatime first.
    /// Called without the inode lock, as readers hold none.
    fn touch_accessed(&self) -> Result<()> {
        Ok(())
    }

    /// fallocate(2).
    fn fallocate(&self, mode: FallocateMode, offset: u64, len_bytes: u64) -> Result<()> {
        let _ = (mode, offset, len_bytes);
        Err(Errno::OPNOTSUPP.into())
    }

    /// The runs of the file that touch `range` (in bytes), in order; holes are what lies between.
    /// Linux: FIEMAP.
    fn extents(&self, range: Range<u64>) -> Result<Vec<FileExtent>> {
        let _ = range;
        Err(Errno::OPNOTSUPP.into())
    }

    /// lseek(2) with SEEK_DATA or SEEK_HOLE, for `offset` below the size; `None` if no data follows
    /// (ENXIO).
    fn seek(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        let _ = (kind, offset);
        Err(Errno::INVAL.into())
    }

    /// Makes data and attributes durable; with `data_only`, attributes only as far as reading needs
    /// them.
    fn sync(&self, data_only: bool) -> Result<()> {
        let _ = data_only;
        Ok(())
    }

    /// The value of the extended attribute `name` ("user.x"), `None` if it is not set.
    ///
    /// `system.posix_acl_access` and `_default` have the kernel's form (linux/posix_acl_xattr.h).
    fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = name;
        Err(Errno::OPNOTSUPP.into())
    }

    /// Sets an extended attribute.
    fn set_xattr(&self, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let _ = (name, value, flags);
        Err(Errno::OPNOTSUPP.into())
    }

    /// Removes an extended attribute; ENODATA if it is not set.
    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let _ = name;
        Err(Errno::OPNOTSUPP.into())
    }

    /// Names of all extended attributes.
    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    /// This object as its own file system knows it.
    fn as_any(&self) -> &dyn std::any::Any;
}
