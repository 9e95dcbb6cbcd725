//! Calls by handle: what a server needs whose clients name inodes and not paths. Linux: fs/nfsd,
//! fs/exportfs.

use super::OpenFlags;
use crate::base::{Errno, Result};
use crate::kernel::Kernel;
use crate::vfs::{
    self, AttrValidity, Attributes, ChangeListener, Context, Credentials, DirectoryEntry,
    FallocateMode, FileSystemStatistics, FileType, Location, OpenFile, RenameFlags, SeekKind,
    SetTime, Start, XattrFlags,
};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// An inode held by a server, and the name by which it was found: what an `O_PATH` descriptor is to
/// a process.
///
/// It keeps the inode alive and the mount busy. A handle leads nowhere else: names are plain
/// (`EINVAL` for slashes, `.` and `..`), links are not followed, and what is mounted on a directory
/// is not entered.
#[derive(Clone)]
pub struct Handle(Location);

impl Handle {
    /// Everything stat(2) tells.
    pub fn stat(&self) -> Result<Attributes> {
        vfs::attributes(&**self.0.inode())
    }

    /// The same as it was last known, as just after a lookup. Takes no lock and does not block.
    pub fn attributes(&self) -> Attributes {
        self.0.inode().attributes()
    }

    /// For how long attributes and data may be told to others without asking again: without end
    /// where nobody else changes them, or where changes are told of ([`Handle::listen`]).
    pub fn ttl(&self) -> Duration {
        self.0
            .inode()
            .common()
            .validity
            .as_ref()
            .map_or(Duration::MAX, AttrValidity::valid_for)
    }

    /// Attributes and data may have been changed without Folio's knowledge: they are asked for
    /// before they are used.
    pub fn invalidate(&self) {
        if let Some(validity) = &self.0.inode().common().validity {
            validity.invalidate();
        }
    }

    /// Whether changes of attributes and data by others are told of, as far as is known since they
    /// were asked for.
    pub fn has_change_notifications(&self) -> bool {
        self.0
            .inode()
            .common()
            .validity
            .as_ref()
            .is_none_or(AttrValidity::has_change_notifications)
    }

    /// Tells `listener` from now on what others change in the whole file system, as long as the
    /// caller keeps it; false if nothing can be told.
    pub fn listen(&self, listener: Weak<dyn ChangeListener>) -> bool {
        self.0.mount.file_system().listen(listener)
    }

    /// The directory in which it was found last, by inode number, and the name; `None` for a root.
    pub fn place(&self) -> Option<(u64, Vec<u8>)> {
        let parent = self.0.dentry.parent()?;
        Some((
            parent.inode().common().number.0,
            self.0.dentry.name().as_slice().to_vec(),
        ))
    }

    /// Whether both are the same inode. Two that had the same number, one after the other, are not.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.0.inode(), other.0.inode())
    }

    /// Whether others may change the file system.
    pub fn has_external_writers(&self) -> bool {
        self.0.inode().common().validity.is_some()
    }

    /// Inode number; as long as the handle is held, no other inode of the file system has it.
    pub fn number(&self) -> u64 {
        self.0.inode().common().number.0
    }
}

/// A file that a server has opened: what a descriptor is to a process, without an offset.
#[derive(Clone)]
pub struct OpenHandle(Arc<OpenFile>);

impl OpenHandle {
    /// The file that was opened.
    pub fn handle(&self) -> Handle {
        Handle(self.0.location().clone())
    }

    /// pread(2).
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let start = Start::Offset(offset);
        self.0
            .read_nowait(start, buf)
            .map_or_else(|| self.0.read(start, buf), Ok)
    }

    /// pread(2) of bytes that are all in memory; `None` if they are not, and [`OpenHandle::read`]
    /// may have to wait.
    pub fn read_nowait(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        self.0.read_nowait(Start::Offset(offset), buf)
    }

    /// The file of the host that is behind this one, for who can do without Folio's cache: reads
    /// and writes by the descriptor are the host's. `None` if there is none. Folio does not notice
    /// them: see [`Handle::invalidate`].
    pub fn host_file(&self) -> Option<Result<OwnedFd>> {
        self.0.inode().file_operations()?.host_file()
    }

    /// fsync(2), or fdatasync(2) with `data_only`. A writeback error is told once to each file that
    /// was opened.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        self.0.sync(data_only)
    }

    /// Where the next data or hole is, from `offset` on: lseek(2).
    pub fn seek(&self, kind: SeekKind, offset: u64) -> Result<u64> {
        self.0
            .seek_data(kind, i64::try_from(offset).map_err(|_| Errno::INVAL)?)
    }
}

/// Makes calls on behalf of somebody; cheap to make for each request.
#[derive(Clone, Copy)]
pub struct Caller<'a>(Context<'a>);

impl<'a> Caller<'a> {
    /// Somebody who makes calls in `kernel`. `umask` is cleared from the modes of what is made.
    pub fn new(kernel: &'a Kernel, credentials: &'a Credentials, umask: u16) -> Self {
        Self(Context {
            vfs: kernel.vfs(),
            credentials,
            umask: umask & 0o777,
        })
    }

    /// `/`.
    pub fn root(&self) -> Handle {
        Handle(self.0.vfs.root())
    }

    /// The inode called `name` in a directory; `None` if there is no such name.
    pub fn lookup(&self, directory: &Handle, name: &[u8]) -> Result<Option<Handle>> {
        Ok(self.0.lookup(&directory.0, plain(name)?)?.map(Handle))
    }

    /// For how long what [`Caller::lookup`] found, or that it found nothing, may be told to others
    /// without asking again.
    pub fn name_ttl(&self, directory: &Handle, name: &[u8]) -> Duration {
        self.0.vfs.dentries.valid_for(&directory.0.dentry, name)
    }

    /// mkdirat(2).
    pub fn mkdir(&self, directory: &Handle, name: &[u8], mode: u16) -> Result<Handle> {
        self.0.mkdir(&directory.0, plain(name)?, mode).map(Handle)
    }

    /// mknodat(2). `device` is major and minor, for device nodes.
    pub fn mknod(
        &self,
        directory: &Handle,
        name: &[u8],
        file_type: FileType,
        mode: u16,
        device: (u32, u32),
    ) -> Result<Handle> {
        self.0
            .mknod(&directory.0, plain(name)?, file_type, mode, device)
            .map(Handle)
    }

    /// symlinkat(2).
    pub fn symlink(&self, target: &[u8], directory: &Handle, name: &[u8]) -> Result<Handle> {
        self.0
            .symlink(target, &directory.0, plain(name)?)
            .map(Handle)
    }

    /// linkat(2): gives `source` another name.
    pub fn link(&self, source: &Handle, directory: &Handle, name: &[u8]) -> Result<Handle> {
        self.0
            .link(&source.0, &directory.0, plain(name)?)
            .map(Handle)
    }

    /// unlinkat(2).
    pub fn unlink(&self, directory: &Handle, name: &[u8]) -> Result<()> {
        self.0.unlink(&directory.0, plain(name)?)
    }

    /// unlinkat(2) with AT_REMOVEDIR.
    pub fn rmdir(&self, directory: &Handle, name: &[u8]) -> Result<()> {
        self.0.rmdir(&directory.0, plain(name)?)
    }

    /// renameat2(2).
    pub fn rename(
        &self,
        (from, name): (&Handle, &[u8]),
        (to, new_name): (&Handle, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.0
            .rename((&from.0, plain(name)?), (&to.0, plain(new_name)?), flags)
    }

    /// readlinkat(2).
    pub fn read_link(&self, link: &Handle) -> Result<Vec<u8>> {
        self.0.read_link(&link.0)
    }

    /// Opens what is there: open(2) by `/proc/self/fd`.
    pub fn open(&self, file: &Handle, flags: OpenFlags) -> Result<OpenHandle> {
        Ok(OpenHandle(Arc::new(self.0.open_at(file.0.clone(), flags)?)))
    }

    /// openat(2) with O_CREAT.
    pub fn create(
        &self,
        directory: &Handle,
        name: &[u8],
        flags: OpenFlags,
        mode: u16,
    ) -> Result<OpenHandle> {
        let flags = flags | OpenFlags::CREAT | OpenFlags::NOFOLLOW;
        Ok(OpenHandle(Arc::new(self.0.open(
            &directory.0,
            plain(name)?,
            flags,
            mode,
        )?)))
    }

    /// openat(2) with O_TMPFILE.
    pub fn create_unnamed(
        &self,
        directory: &Handle,
        flags: OpenFlags,
        mode: u16,
    ) -> Result<OpenHandle> {
        let flags = flags | OpenFlags::TMPFILE;
        Ok(OpenHandle(Arc::new(self.0.open(
            &directory.0,
            b".",
            flags,
            mode,
        )?)))
    }

    /// Calls `sink` for each entry of a directory from `cookie` on (0 starts), `.` and `..`
    /// included, until it breaks. The directory is locked meanwhile: `sink` makes no calls.
    pub fn read_directory(
        &self,
        directory: &Handle,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        vfs::read_directory(&directory.0, cookie, sink)?;
        vfs::touch_accessed(&directory.0.mount, &**directory.0.inode());
        Ok(())
    }

    /// pwrite(2).
    pub fn write(&self, file: &OpenHandle, bytes: &[u8], offset: u64) -> Result<usize> {
        file.0
            .write(self.0.credentials, Start::Offset(offset), &bytes.into())
    }

    /// ftruncate(2).
    pub fn ftruncate(&self, file: &OpenHandle, size_bytes: u64) -> Result<()> {
        file.0.truncate(self.0.credentials, size_bytes)
    }

    /// fallocate(2).
    pub fn fallocate(
        &self,
        file: &OpenHandle,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        file.0
            .fallocate(self.0.credentials, mode, offset, len_bytes)
    }

    /// copy_file_range(2).
    pub fn copy_file_range(
        &self,
        (input, input_offset): (&OpenHandle, u64),
        (out, out_offset): (&OpenHandle, u64),
        count: usize,
    ) -> Result<usize> {
        let from = (&*input.0, Start::Offset(input_offset));
        let to = (&*out.0, Start::Offset(out_offset));
        vfs::copy_range(self.0.credentials, from, to, count)
    }

    /// truncate(2).
    pub fn truncate(&self, file: &Handle, size_bytes: u64) -> Result<()> {
        self.0.truncate(&file.0, size_bytes)
    }

    /// fchmodat(2).
    pub fn chmod(&self, file: &Handle, mode: u16) -> Result<()> {
        self.0.chmod(&file.0, mode)
    }

    /// fchownat(2). `None` leaves owner or group as it is.
    pub fn chown(&self, file: &Handle, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.0.chown(&file.0, uid, gid)
    }

    /// utimensat(2). `None` leaves a time as it is.
    pub fn set_times(
        &self,
        file: &Handle,
        accessed: Option<SetTime>,
        modified: Option<SetTime>,
    ) -> Result<()> {
        self.0.set_times(&file.0, accessed, modified)
    }

    /// fsync(2) of what is not open, a directory for instance.
    pub fn sync(&self, file: &Handle, data_only: bool) -> Result<()> {
        file.0.inode().sync(data_only)
    }

    /// statfs(2).
    pub fn statfs(&self, file: &Handle) -> Result<FileSystemStatistics> {
        file.0.mount.file_system().statistics()
    }

    /// getxattr(2).
    pub fn getxattr(&self, file: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        self.0.xattr(&file.0, name)
    }

    /// setxattr(2).
    pub fn setxattr(
        &self,
        file: &Handle,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.0.set_xattr(&file.0, name, value, flags)
    }

    /// listxattr(2).
    pub fn listxattr(&self, file: &Handle) -> Result<Vec<Vec<u8>>> {
        self.0.list_xattrs(&file.0)
    }

    /// removexattr(2).
    pub fn removexattr(&self, file: &Handle, name: &[u8]) -> Result<()> {
        self.0.remove_xattr(&file.0, name)
    }
}

/// A name that leads from a directory to one of its entries; clients may send anything.
fn plain(name: &[u8]) -> Result<&[u8]> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    Ok(name)
}
