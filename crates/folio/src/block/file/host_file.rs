//! A regular file or block device of the host: positional vectored I/O, holes, and the image lock.

use super::direct_read::DirectReads;
use super::image_file::ImageFile;
use super::remote::refuse_remote;
use super::write_behind::WriteBehind;
use super::{kernel_use, lock};
use crate::base::lock::Mutex;
use crate::base::{Errno, Error, Result};
use crate::block::Allocation;
use crate::block::iov::{self, IOV_MAX};
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, ResolveFlags, SeekFrom};
use std::fs::{File, FileType, Metadata};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::ops::Range;
#[cfg(feature = "qcow2")]
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(feature = "qcow2")]
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// File system type of tmpfs in statfs(2) (linux/magic.h).
#[cfg(feature = "qcow2")]
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// An open file of the host. Its length is read from the host each time.
pub(crate) struct HostFile {
    file: File,
    name: String,
    is_read_only: AtomicBool,
    is_block_device: bool,
    is_synced: bool,
    /// A range that was all data at the last `SEEK_HOLE`, which examines every page up to the next
    /// hole each time. A hole punched since by another process still reads as zeros.
    known_data: Mutex<Range<u64>>,
    write_behind: WriteBehind,
    direct_reads: DirectReads,
    /// Whether fdatasync(2) has failed. The kernel may have marked the lost pages as clean, so that
    /// a second call would succeed.
    has_failed_sync: AtomicBool,
    /// The largest length seen, less what [`ImageFile::set_len`] cut off. A shorter file was
    /// truncated by another program.
    expected_len: AtomicU64,
    /// Held while the length and `expected_len` differ.
    resizing: Mutex<()>,
    is_truncation_logged: AtomicBool,
}

/// What an open does at symbolic links in its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    Followed,
    Refused,
}

/// Opens a path without symbolic links. Linux: openat2(2), `RESOLVE_NO_SYMLINKS`.
fn open_without_links(path: &Path, read_only: bool, flags: OFlags) -> std::io::Result<File> {
    let access = if read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    let flags = flags | access | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?;
    Ok(file.into())
}

impl Drop for HostFile {
    fn drop(&mut self) {
        lock::release(&self.file);
    }
}

/// Whether an open file of an image is locked against other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileLock {
    Locked,
    Unlocked,
}

impl HostFile {
    /// Opens a regular file or block device and locks it.
    ///
    /// # Errors
    ///
    /// EBUSY if another open file's lock forbids it or the kernel uses a file to be written, EISDIR
    /// or EINVAL for another kind of file, else the host's errors.
    pub(crate) fn open(path: &Path, read_only: bool) -> Result<Self> {
        Self::open_with(path, read_only, FileLock::Locked, Links::Followed)
    }

    /// Opens the regular file at `path` like [`HostFile::open`], or without a lock. No part of the
    /// path may be a symbolic link: a path that was checked before leads nowhere else.
    ///
    /// # Errors
    ///
    /// ELOOP for a symbolic link, EPERM for another kind of file, else those of [`HostFile::open`].
    pub(crate) fn open_exactly(path: &Path, read_only: bool, lock: FileLock) -> Result<Self> {
        Self::open_with(path, read_only, lock, Links::Refused)
    }

    /// Opens a file for reading without a lock, even while another process writes it.
    pub(crate) fn open_unlocked(path: &Path) -> Result<Self> {
        Self::open_with(path, true, FileLock::Unlocked, Links::Followed)
    }

    /// Returns the file with its syncs turned off: a failure of the machine may lose any write.
    pub(crate) fn unsynced(mut self) -> Self {
        self.is_synced = false;
        self
    }

    fn open_with(path: &Path, read_only: bool, lock: FileLock, links: Links) -> Result<Self> {
        refuse_remote(path)?;
        let name = path.display().to_string();
        let open = || {
            // An open has side effects on some devices, so the kind of file is checked first. If it
            // is replaced by a FIFO meanwhile, O_NONBLOCK keeps the open from waiting.
            let found = std::fs::metadata(path).map_err(|error| Error::io("open", error))?;
            check_kind(found.file_type())?;
            let mut flags = OFlags::NONBLOCK;
            let is_exclusive = found.file_type().is_block_device() && !read_only;
            if is_exclusive {
                // Fails with EBUSY for a block device that the kernel has mounted.
                flags |= OFlags::EXCL;
            }
            let opened = match links {
                Links::Followed => File::options()
                    .read(true)
                    .write(!read_only)
                    .custom_flags(flags.bits() as i32)
                    .open(path),
                Links::Refused => open_without_links(path, read_only, flags),
            };
            let file = match opened {
                Err(error) if is_exclusive && error.kind() == ErrorKind::ResourceBusy => {
                    return Err(kernel_use::explain_busy(&found));
                }
                opened => opened.map_err(|error| Error::io("open", error))?,
            };
            let kind = file.metadata().map_err(|error| Error::io("stat", error))?;
            check_kind(kind.file_type())?;
            if links == Links::Refused && !kind.is_file() {
                // A device node gives access to a device outside, wherever the node is.
                let why = "not a regular file, as the backing policy requires";
                return Err(Error::new(Errno::PERM, why));
            }
            if lock == FileLock::Locked {
                lock::acquire(&file, read_only)?;
                kernel_use::check(&file, path, read_only).inspect_err(|_| lock::release(&file))?;
            }
            Ok(file)
        };
        let file = open().map_err(|error: Error| error.at(name.clone()))?;
        Self::new(file, name, read_only)
    }

    /// Creates an empty file and locks it.
    ///
    /// # Errors
    ///
    /// EEXIST if the file exists, else the host's errors.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        refuse_remote(path)?;
        let name = path.display().to_string();
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path);
        let file = file.map_err(|error| Error::io("create", error).at(name.clone()))?;
        Self::adopt(file, name)
    }

    /// Locks a file that the caller has created for writing.
    pub(crate) fn adopt(file: File, name: String) -> Result<Self> {
        lock::acquire(&file, false).map_err(|error| error.at(name.clone()))?;
        Self::new(file, name, false)
    }

    fn new(file: File, name: String, is_read_only: bool) -> Result<Self> {
        let metadata = file
            .metadata()
            .map_err(|error| Error::io("stat", error).at(name.clone()))?;
        let is_block_device = metadata.file_type().is_block_device();
        Ok(Self {
            direct_reads: DirectReads::open(&file, is_block_device),
            file,
            name,
            is_read_only: AtomicBool::new(is_read_only),
            is_block_device,
            is_synced: true,
            known_data: Mutex::default(),
            write_behind: WriteBehind::default(),
            has_failed_sync: AtomicBool::new(false),
            expected_len: AtomicU64::new(metadata.len()),
            resizing: Mutex::default(),
            is_truncation_logged: AtomicBool::new(false),
        })
    }

    /// Makes the file read-only, for this process too. From now on it is locked as a backing file
    /// is: other programs may read it, and none may write it.
    #[cfg(feature = "qcow2")]
    pub(crate) fn freeze(&self) {
        self.is_read_only.store(true, Ordering::Relaxed);
        lock::downgrade(&self.file);
    }

    /// Whether the file is a block device.
    pub(crate) fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Returns the file's attributes.
    pub(crate) fn metadata(&self) -> Result<Metadata> {
        self.file
            .metadata()
            .map_err(|error| Error::io("stat", error).at(self.name.clone()))
    }

    /// Returns the host's file.
    pub(crate) fn as_file(&self) -> &File {
        &self.file
    }

    /// Fails if another program truncated the file: a write would leave a hole where data was.
    fn check_len(&self) -> Result<()> {
        if self.is_block_device {
            // Writes behind its end fail.
            return Ok(());
        }
        // Read first: the file is never shorter than this, except while it is resized.
        let mut expected = self.expected_len.load(Ordering::Relaxed);
        let mut found = self.len_bytes()?;
        if found < expected {
            let _resizing = self.resizing.lock();
            expected = self.expected_len.load(Ordering::Relaxed);
            found = self.len_bytes()?;
        }
        if found >= expected {
            return Ok(());
        }
        let why = format!(
            "another program truncated the file from {expected} to {found} bytes while it was in \
             use; data is lost: restore a backup, or check the file system"
        );
        if !self.is_truncation_logged.swap(true, Ordering::Relaxed) {
            tracing::error!("{}: {why}", self.name);
        }
        Err(Error::new(Errno::IO, why).at(self.name.clone()))
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len_bytes: u64) -> Result<bool> {
        if len_bytes == 0 {
            return Ok(true);
        }
        *self.known_data.lock() = 0..0;
        tracing::debug!(file = %self.name, ?flags, offset, len_bytes, "fallocate");
        loop {
            match rustix::fs::fallocate(&self.file, flags, offset, len_bytes) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::NOSYS | Errno::INVAL) => {
                    return Ok(false);
                }
                Err(errno) => return Err(self.failed("fallocate", errno)),
            }
        }
    }

    fn retry<T>(
        &self,
        operation: &'static str,
        mut call: impl FnMut() -> rustix::io::Result<T>,
    ) -> Result<T> {
        loop {
            match call() {
                Err(Errno::INTR) => {}
                other => return other.map_err(|errno| self.failed(operation, errno)),
            }
        }
    }

    fn failed(&self, operation: &'static str, errno: Errno) -> Error {
        Error::io(operation, errno.into()).at(self.name.clone())
    }
}

/// Rejects a kind of file that cannot store an image.
fn check_kind(kind: FileType) -> Result<()> {
    if kind.is_file() || kind.is_block_device() {
        Ok(())
    } else if kind.is_dir() {
        Err(Errno::ISDIR.into())
    } else {
        let what = match () {
            () if kind.is_fifo() => "a FIFO",
            () if kind.is_socket() => "a socket",
            () if kind.is_char_device() => "a character device",
            () => "another kind of file",
        };
        let why = format!("{what}: an image is a regular file or a block device");
        Err(Error::new(Errno::INVAL, why))
    }
}

impl ImageFile for HostFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    #[cfg(feature = "qcow2")]
    fn host_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn len_bytes(&self) -> Result<u64> {
        rustix::fs::seek(&self.file, SeekFrom::End(0)).map_err(|errno| self.failed("seek", errno))
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        *self.known_data.lock() = 0..0;
        if self.is_block_device {
            let device_bytes = self.len_bytes()?;
            if len_bytes <= device_bytes {
                return Ok(());
            }
            let why = format!("the image needs {len_bytes} bytes, the device has {device_bytes}");
            return Err(Error::new(Errno::NOSPC, why).at(self.name.clone()));
        }
        tracing::debug!(file = %self.name, len_bytes, "ftruncate");
        let _resizing = self.resizing.lock();
        self.file
            .set_len(len_bytes)
            .map_err(|error| Error::io("truncate", error).at(self.name.clone()))?;
        self.expected_len.store(len_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn read_some(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<u64> {
        let mut at = offset;
        for bufs in bufs.chunks_mut(IOV_MAX) {
            let want = iov::len_mut(bufs);
            let mut done = 0;
            while done < want {
                let count = if done == 0 {
                    self.retry("read", || rustix::io::preadv(&self.file, bufs, at))?
                } else {
                    let mut rest = iov::window_mut(bufs, done, want - done);
                    self.retry("read", || rustix::io::preadv(&self.file, &mut rest, at))?
                };
                if count == 0 {
                    return Ok(at - offset);
                }
                done += count as u64;
                at += count as u64;
            }
        }
        Ok(at - offset)
    }

    fn read_some_uncached(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<u64> {
        let done = self.direct_reads.read(&self.file, bufs, offset);
        if done == 0 {
            return self.read_some(bufs, offset);
        }
        let rest = iov::len_mut(bufs) - done;
        Ok(done + self.read_some(&mut iov::window_mut(bufs, done, rest), offset + done)?)
    }

    fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.check_len()?;
        let mut at = offset;
        for bufs in bufs.chunks(IOV_MAX) {
            let want = iov::len(bufs);
            let mut done = 0;
            while done < want {
                let count = if done == 0 {
                    self.retry("write", || rustix::io::pwritev(&self.file, bufs, at))?
                } else {
                    let rest = iov::window(bufs, done, want - done);
                    self.retry("write", || rustix::io::pwritev(&self.file, &rest, at))?
                };
                if count == 0 {
                    return Err(self.failed("write", Errno::IO));
                }
                done += count as u64;
                at += count as u64;
            }
        }
        self.expected_len.fetch_max(at, Ordering::Relaxed);
        if self.is_synced {
            self.write_behind.wrote(&self.file, offset..at);
        }
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        if !self.is_synced {
            return Ok(());
        }
        if self.has_failed_sync.load(Ordering::Acquire) {
            let why = "an earlier fdatasync failed: the host may have lost written data";
            return Err(Error::new(Errno::IO, why).at(self.name.clone()));
        }
        tracing::debug!(file = %self.name, "fdatasync");
        let synced = self.retry("fdatasync", || rustix::fs::fdatasync(&self.file));
        if synced.is_err() {
            self.has_failed_sync.store(true, Ordering::Release);
        }
        synced?;
        self.check_len()
    }

    fn punch_hole(&self, offset: u64, len_bytes: u64) -> Result<bool> {
        self.fallocate(
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset,
            len_bytes,
        )
    }

    fn reserve(&self, offset: u64, len_bytes: u64) -> Result<bool> {
        self.fallocate(FallocateFlags::KEEP_SIZE, offset, len_bytes)
    }

    #[cfg(feature = "qcow2")]
    fn gains_from_reserve(&self) -> bool {
        // tmpfs fills the pages with zeros at once.
        rustix::fs::fstatfs(&self.file).is_ok_and(|found| found.f_type != TMPFS_MAGIC)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        if len_bytes == 0 || self.punch_hole(offset, len_bytes)? {
            return Ok(());
        }
        self.write_allocated_zeroes(offset, len_bytes)
    }

    fn write_allocated_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_len()?;
        if self.fallocate(FallocateFlags::ZERO_RANGE, offset, len_bytes)? {
            self.expected_len
                .fetch_max(offset + len_bytes, Ordering::Relaxed);
            return Ok(());
        }
        self.fill_with_zeros(offset, len_bytes)
    }

    #[cfg(feature = "qcow2")]
    fn allocated_bytes(&self) -> Result<Option<u64>> {
        let found = self.metadata()?;
        Ok(found
            .is_file()
            .then_some(found.blocks().saturating_mul(512)))
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        let known = self.known_data.lock().clone();
        if known.contains(&offset) {
            return Ok((Allocation::Data, (known.end - offset).min(len_bytes)));
        }
        let data = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok((Allocation::Hole, len_bytes)),
            // The host has no SEEK_DATA here: everything counts as data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((Allocation::Data, len_bytes)),
            Err(errno) => return Err(self.failed("seek", errno)),
        };
        if data > offset {
            return Ok((Allocation::Hole, (data - offset).min(len_bytes)));
        }
        match rustix::fs::seek(&self.file, SeekFrom::Hole(offset)) {
            Ok(hole) if hole > offset => {
                *self.known_data.lock() = offset..hole;
                Ok((Allocation::Data, (hole - offset).min(len_bytes)))
            }
            // The file has changed meanwhile; one byte of data is always a safe result.
            Ok(_) | Err(Errno::NXIO) => Ok((Allocation::Data, 1.min(len_bytes))),
            Err(errno) => Err(self.failed("seek", errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_open_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        std::fs::create_dir(at("inside")).unwrap();
        std::fs::write(at("inside/file"), "").unwrap();
        std::os::unix::fs::symlink("inside", at("link")).unwrap();
        std::os::unix::fs::symlink("file", at("inside/name")).unwrap();
        let errno = |name| HostFile::open_exactly(&at(name), true, FileLock::Locked).err();
        let errno = |name| errno(name).map(|error: Error| error.errno());
        assert_eq!(errno("inside/file"), None);
        assert_eq!(errno("link/file"), Some(Errno::LOOP));
        assert_eq!(errno("inside/name"), Some(Errno::LOOP));
    }
}
