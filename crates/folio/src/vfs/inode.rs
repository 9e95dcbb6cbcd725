//! The inode traits: what a file system implements for each file, directory, link and device node.
//!
//! ```text
//!   path walk, setattr, xattr              open files
//!            v                                  v
//!         [Inode] -- file_operations() --> [FileOperations]    regular files only
//!     names, attributes, xattrs             data: read, write, fallocate, seek, extents
//!                                               | default
//!                                               v
//!                              write_begin -> page cache (cache/) -> write_end
//! ```
//!
//! Linux: `struct inode_operations`, `struct file_operations`.

use super::attribute_cell::AttributeCell;
use super::attributes::{AttributeChange, Attributes, FileType, InodeFlags, NewInode};
use super::credentials::Credentials;
use super::validity::AttrValidity;
use crate::base::lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::base::{Errno, InodeNumber, PAGE_SIZE, Result};
use crate::cache::{Borrowed, Mapping, WriteSource};
use bitflags::bitflags;
use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Makes names equal that are one name; `None` for a name that equals only itself.
pub type NameFolding = fn(&[u8]) -> Option<Vec<u8>>;

/// One entry of a directory.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntry<'a> {
    /// The name, without a slash.
    pub name: &'a [u8],
    /// The number of the inode that the name refers to.
    pub number: InodeNumber,
    /// The type of that inode; `None` if the directory does not record it.
    pub file_type: Option<FileType>,
    /// The cookie at which to continue for the next entry (`d_off`).
    pub next_cookie: u64,
}

bitflags! {
    /// Flags of renameat2(2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail with EEXIST if the new name exists.
        const NOREPLACE = 1;
        /// Exchange the two names.
        const EXCHANGE = 2;
        /// Leave a whiteout at the old name: a character device 0:0, which hides the name in a
        /// lower layer of overlayfs.
        const WHITEOUT = 4;
    }

    /// Flags of setxattr(2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// Fail with EEXIST if the attribute exists.
        const CREATE = 1;
        /// Fail with ENODATA if the attribute does not exist.
        const REPLACE = 2;
    }
}

/// The arguments of [`Inode::rename`].
#[derive(Clone, Copy)]
pub struct RenameRequest<'a> {
    /// The name to move, in the directory that receives the call.
    pub name: &'a [u8],
    /// The inode that `name` refers to.
    pub source: &'a Arc<dyn Inode>,
    /// The directory that receives the new name.
    pub new_parent: &'a Arc<dyn Inode>,
    /// The new name.
    pub new_name: &'a [u8],
    /// The inode that the new name refers to before the call, if it exists.
    pub replaced: Option<&'a Arc<dyn Inode>>,
    /// The whiteout that takes the old name, with `WHITEOUT`.
    pub whiteout: Option<&'a NewInode<'a>>,
    /// The flags.
    pub flags: RenameFlags,
    /// The credentials of the caller.
    pub caller: &'a Credentials,
}

/// State that a file system keeps while a file is open; dropped when the file is closed.
pub type Opened = Box<dyn Send + Sync>;

/// The position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAt {
    /// At this byte offset.
    Offset(u64),
    /// At the end of the file at the time of the write (`O_APPEND`).
    End,
}

/// The operation of fallocate(2) on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallocateMode {
    /// Reserve space; extends the file to cover the range.
    Allocate,
    /// Reserve space; keeps the size.
    AllocateKeepSize,
    /// Free the range; it then reads as zeros.
    PunchHole,
    /// Make the range read as zeros; extends the file to cover it.
    ZeroRange,
    /// Make the range read as zeros; keeps the size.
    ZeroRangeKeepSize,
    /// Remove the range; later data moves toward the start. Both ends are multiples of the block
    /// size.
    CollapseRange,
    /// Insert a hole before the start of the range; later data moves toward the end. Both ends are
    /// multiples of the block size.
    InsertRange,
}

/// A contiguous run of a file's bytes. Linux: `struct fiemap_extent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// Byte offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Location of the data.
    pub place: ExtentPlace,
}

/// The location of a run of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentPlace {
    /// On the device, from this byte offset on.
    Data(u64),
    /// Allocated on the device from this byte offset on, reads as zeros
    /// (`FIEMAP_EXTENT_UNWRITTEN`).
    Unwritten(u64),
    /// In memory only; not yet allocated on the device (`FIEMAP_EXTENT_DELALLOC`).
    Delayed,
    /// Inside the inode (`FIEMAP_EXTENT_DATA_INLINE`).
    Inline,
}

/// The target of a search by lseek(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekKind {
    /// The next byte that is stored (`SEEK_DATA`).
    Data,
    /// The next byte that is not stored, at the latest the end of the file (`SEEK_HOLE`).
    Hole,
}

/// The inode lock, which only the VFS takes. Linux: `i_rwsem`.
///
/// Held exclusively around every call that changes a directory's names or a file's data, size or
/// attributes; shared around lookup and readdir. Reads of file data take no lock.
#[derive(Default)]
pub struct InodeLock(RwLock<()>);

impl InodeLock {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write()
    }
}

/// The part of an inode that every file system has.
pub struct InodeCommon {
    /// Inode number.
    pub number: InodeNumber,
    /// File type; never changes.
    pub file_type: FileType,
    /// The inode lock.
    pub lock: InodeLock,
    /// The page cache of a regular file's data; `None` for other types, and for a file whose data
    /// is never in the cache: its [`AttributeCell`] has the size.
    pub mapping: Option<Mapping>,
    /// The attributes, except for what the mapping has: the size, and without a store the number
    /// of pages.
    pub attributes: AttributeCell,
    /// How long attributes, data and names are valid without asking the backing store; `None` if
    /// the file system has no external writers.
    pub validity: Option<AttrValidity>,
}

impl InodeCommon {
    /// Returns the common part of an inode that has `attributes` and no external writers. A regular
    /// file has a `mapping`, whose size counts as the size of the file.
    pub fn new(attributes: &Attributes, mapping: Option<Mapping>) -> Self {
        Self {
            number: attributes.number,
            file_type: attributes.file_type,
            lock: InodeLock::default(),
            mapping,
            attributes: AttributeCell::new(attributes),
            validity: None,
        }
    }

    /// Returns the attributes as published last. Takes no lock and does not block.
    #[inline]
    pub fn attributes(&self) -> Attributes {
        let mut attributes = self.attributes.load(self.number, self.file_type);
        if let Some(mapping) = &self.mapping {
            attributes.size_bytes = mapping.size_bytes();
            if !mapping.has_store() {
                attributes.blocks_512 = mapping.page_count() * (PAGE_SIZE as u64 / 512);
            }
        }
        attributes
    }

    /// Returns whether attributes may be used without asking the backing store.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.validity.as_ref().is_none_or(AttrValidity::is_valid)
    }
}

/// A file, directory, link or device node. Linux: `struct inode` with `struct inode_operations`.
///
/// The VFS checks permissions, types and name lengths first, and holds [`InodeCommon::lock`] as
/// described there. A file system creates one object per inode number while any reference to it
/// exists, so that locks and cached pages are shared. When the last reference to an inode without
/// names is dropped, the file system frees the inode.
///
/// Calls that may allocate space take `caller`, the credentials of the caller (a rename has them in
/// its request): file systems keep some blocks for privileged users. The default methods fail as an
/// inode of another type does.
pub trait Inode: Send + Sync {
    /// Returns the part that every inode has.
    fn common(&self) -> &InodeCommon;

    /// Returns the data operations of a regular file; `None` for other types. An inode without a
    /// mapping overrides `read`, `borrow` and `write`, whose default is the page cache.
    fn file_operations(&self) -> Option<&dyn FileOperations> {
        None
    }

    /// Asks the backing store whether external writers changed attributes or data, publishes the
    /// attributes, and drops pages that are no longer valid. The VFS calls this when
    /// [`InodeCommon::validity`] has expired, with or without the inode lock.
    fn revalidate(&self) -> Result<()> {
        Ok(())
    }

    /// Changes attributes.
    fn set_attributes(&self, caller: &Credentials, change: &AttributeChange) -> Result<()>;

    /// Returns the flags of lsattr(1).
    ///
    /// # Errors
    /// ENOTTY if the file system has none.
    fn flags(&self) -> Result<InodeFlags> {
        Err(Errno::NOTTY.into())
    }

    /// Returns the project that is charged for the inode, as lsattr -p lists it.
    ///
    /// # Errors
    /// ENOTTY if the file system has none.
    fn project(&self) -> Result<u32> {
        Err(Errno::NOTTY.into())
    }

    /// Replaces the flags of chattr(1), whose permission the VFS has checked.
    ///
    /// # Errors
    /// ENOTTY if the file system has none, EOPNOTSUPP for a change that it does not support.
    fn set_flags(&self, flags: InodeFlags) -> Result<()> {
        let _ = flags;
        Err(Errno::NOTTY.into())
    }

    /// Returns the inode called `name` in this directory; `None` if the name does not exist. Never
    /// called for `.` and `..`.
    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        let _ = name;
        Err(Errno::NOTDIR.into())
    }

    /// Returns the function that makes names equal that are one name in this directory, if it
    /// ignores some differences. The answer never changes.
    fn name_folding(&self) -> Option<NameFolding> {
        None
    }

    /// Returns the name as the directory stores it, if it has several for one entry, such as the
    /// long and the short name of a FAT. Called only with [`Inode::name_folding`].
    fn stored_name(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = name;
        Ok(None)
    }

    /// Creates an inode called `name` in this directory. The name does not exist.
    fn create(
        &self,
        caller: &Credentials,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<dyn Inode>> {
        let _ = (caller, name, new);
        Err(Errno::NOTDIR.into())
    }

    /// Creates an inode without a name (`O_TMPFILE`) on the file system of this directory.
    fn create_unnamed(&self, caller: &Credentials, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _ = (caller, new);
        Err(Errno::OPNOTSUPP.into())
    }

    /// Adds a name for `target`, an inode of the same file system, to this directory.
    fn link(&self, caller: &Credentials, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let _ = (caller, name, target);
        Err(Errno::NOTDIR.into())
    }

    /// Removes `name`, which refers to `target`. The target is not a directory.
    fn unlink(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let _ = (name, target);
        Err(Errno::NOTDIR.into())
    }

    /// Removes the directory `target`, called `name`; ENOTEMPTY if it has entries.
    fn remove_directory(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let _ = (name, target);
        Err(Errno::NOTDIR.into())
    }

    /// Moves a name from this directory to `new_parent`, replacing the inode that has the new name;
    /// with [`RenameFlags::EXCHANGE`] exchanges the two, with [`RenameFlags::WHITEOUT`] creates
    /// [`RenameRequest::whiteout`] at the old name, both in one transaction. The VFS has checked
    /// types and loops. A directory to be replaced must be empty (ENOTEMPTY).
    fn rename(&self, request: &RenameRequest<'_>) -> Result<()> {
        let _ = request;
        Err(Errno::NOTDIR.into())
    }

    /// Calls `sink` for each entry from `cookie` on (0 is the start), including `.` and `..`, until
    /// `sink` breaks.
    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _ = (cookie, sink);
        Err(Errno::NOTDIR.into())
    }

    /// Returns a number that differs from that of an inode that had this inode's number before.
    /// Linux: `i_generation`.
    fn generation(&self) -> u32 {
        0
    }

    /// Returns the inode number of the parent of this directory, as `..` records it.
    fn parent_number(&self) -> Result<InodeNumber> {
        Err(Errno::NOTDIR.into())
    }

    /// Returns the target of a symbolic link.
    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Errno::INVAL.into())
    }

    /// Sets the access time to the current time. The VFS applies noatime and relatime first. Called
    /// without the inode lock, as readers hold none.
    fn touch_accessed(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the runs of the file that overlap `range` (in bytes), in order; the gaps between
    /// them are holes. Linux: `fiemap`.
    fn extents(&self, range: Range<u64>) -> Result<Vec<FileExtent>> {
        let _ = range;
        Err(Errno::OPNOTSUPP.into())
    }

    /// Makes data and attributes durable; with `data_only`, only the attributes that are needed to
    /// read the data.
    fn sync(&self, data_only: bool) -> Result<()> {
        let _ = data_only;
        Ok(())
    }

    /// Returns the value of the extended attribute `name` ("user.x"); `None` if it is not set.
    ///
    /// `system.posix_acl_access` and `_default` have the kernel's format
    /// (linux/posix_acl_xattr.h).
    fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = name;
        Err(Errno::OPNOTSUPP.into())
    }

    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        caller: &Credentials,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let _ = (caller, name, value, flags);
        Err(Errno::OPNOTSUPP.into())
    }

    /// Removes an extended attribute; ENODATA if it is not set.
    fn remove_xattr(&self, caller: &Credentials, name: &[u8]) -> Result<()> {
        let _ = (caller, name);
        Err(Errno::OPNOTSUPP.into())
    }

    /// Returns the names of all extended attributes.
    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    /// Returns this object as a type that its own file system can downcast.
    fn as_any(&self) -> &dyn Any;
}

/// The data of a regular file. Linux: `struct file_operations`.
///
/// The default methods are the buffered path through the page cache. A file system overrides them
/// if some of its reads or writes bypass the cache. While cached data is valid
/// ([`AttrValidity::is_data_valid`]), the VFS reads cached bytes without any call of this trait.
pub trait FileOperations: Inode {
    /// Prepares for a buffered write of `offset..offset + len_bytes`: reserves space (ENOSPC) and
    /// rejects invalid ranges (EFBIG). The cache is written next, then
    /// [`FileOperations::write_end`] is called. Holds the inode lock.
    fn write_begin(&self, caller: &Credentials, offset: u64, len_bytes: u64) -> Result<()>;

    /// Ends a buffered write that put `written_bytes` into the cache: sets times. Called also after
    /// a failure, so that reserved space is released.
    fn write_end(&self, written_bytes: u64) -> Result<()>;

    /// Opens the file for reading, or also for writing. The VFS has checked permissions; the
    /// backing store may still refuse. The result is dropped as soon as the file is closed.
    fn open(&self, is_written: bool) -> Result<Option<Opened>> {
        let _ = is_written;
        Ok(None)
    }

    /// Notes that a file description open for writing was closed. Called without locks. Linux:
    /// `release`.
    fn close_written(&self) {}

    /// Frees space that is allocated beyond the end of the file: a truncation to the size that the
    /// file has. Holds the inode lock. Linux: `ext4_setattr`.
    fn free_beyond_end(&self) -> Result<()> {
        Ok(())
    }

    /// Returns a new descriptor of the host's regular file that backs this file; `None` if there is
    /// none, or if it must not be read and written outside of the cache.
    fn host_file(&self) -> Option<Result<OwnedFd>> {
        None
    }

    /// Keeps the data in reach for as long as the inode is in memory, whatever external writers do
    /// to its names. Best effort: without free descriptors it does nothing.
    fn hold(&self) {}

    /// Reads bytes at `offset` without waiting, although the cached data is not valid; `None` if
    /// the read must wait. Called without the inode lock. Linux: `IOCB_NOWAIT`.
    fn read_nowait(&self, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let _ = (offset, buf);
        None
    }

    /// Reads bytes at `offset`; returns fewer than the length of `buf` only at the end of the file.
    /// Called without the inode lock.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        buffered_read(self, offset, buf)
    }

    /// Returns the bytes from `offset` on as references to pages in memory. Called without the
    /// inode lock.
    fn borrow(&self, offset: u64, len_bytes: usize) -> Result<Borrowed> {
        buffered_borrow(self, offset, len_bytes)
    }

    /// Writes bytes; returns the end offset of the write, and the number of bytes written. Holds
    /// the inode lock.
    fn write(
        &self,
        caller: &Credentials,
        at: WriteAt,
        bytes: &WriteSource<'_>,
    ) -> Result<(u64, usize)> {
        buffered_write(self, caller, at, bytes)
    }

    /// Allocates, frees, zeroes or moves a range: fallocate(2). Holds the inode lock.
    fn fallocate(
        &self,
        caller: &Credentials,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let _ = (caller, mode, offset, len_bytes);
        Err(Errno::OPNOTSUPP.into())
    }

    /// Returns the offset of the next data or hole at or after `offset`, which is below the size;
    /// `None` if no data follows (ENXIO). Linux: `llseek`.
    fn seek(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        let _ = (kind, offset);
        Err(Errno::INVAL.into())
    }
}

fn mapping(file: &(impl FileOperations + ?Sized)) -> Result<&Mapping> {
    Ok(file.common().mapping.as_ref().ok_or(Errno::INVAL)?)
}

fn revalidate(file: &(impl FileOperations + ?Sized)) -> Result<()> {
    if file.common().is_valid() {
        Ok(())
    } else {
        file.revalidate()
    }
}

/// Reads through the page cache. Linux: `generic_file_read_iter`.
pub fn buffered_read(
    file: &(impl FileOperations + ?Sized),
    offset: u64,
    buf: &mut [u8],
) -> Result<usize> {
    revalidate(file)?;
    mapping(file)?.read(offset, buf)
}

/// Borrows pages from the page cache.
pub fn buffered_borrow(
    file: &(impl FileOperations + ?Sized),
    offset: u64,
    len_bytes: usize,
) -> Result<Borrowed> {
    revalidate(file)?;
    mapping(file)?.borrow(offset, len_bytes)
}

/// Writes into the page cache; writeback follows later. The caller holds the inode lock. Linux:
/// `generic_perform_write`.
pub fn buffered_write(
    file: &(impl FileOperations + ?Sized),
    caller: &Credentials,
    at: WriteAt,
    bytes: &WriteSource<'_>,
) -> Result<(u64, usize)> {
    let mapping = mapping(file)?;
    let offset = match at {
        WriteAt::Offset(offset) => offset,
        WriteAt::End => mapping.size_bytes(),
    };
    file.write_begin(caller, offset, bytes.len() as u64)?;
    let written = mapping.write_from(offset, bytes);
    let count = *written.as_ref().unwrap_or(&0);
    file.write_end(count as u64)?;
    written?;
    Ok((offset + count as u64, count))
}
