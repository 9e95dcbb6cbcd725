//! Open files of the host: descriptors kept while a file is open, and reopened when needed.

use super::descriptors::{Descriptors, WriteDescriptor};
use super::host_calls::{self, Status};
use super::inode::HostInode;
use super::options::CacheMode;
use crate::base::lock::MutexGuard;
use crate::base::{Errno, Result};
use crate::vfs::FileType;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The state of one open file; dropped when the file is closed.
struct OpenHostFile {
    inode: Arc<HostInode>,
    is_written: bool,
}

impl Drop for OpenHostFile {
    fn drop(&mut self) {
        let inode = &self.inode;
        let mut descriptors = inode.descriptors.lock();
        let mut written = Ok(());
        // The last writer writes back dirty pages, as no later descriptor may be able to write. The
        // mapping remembers an error, and the next sync reports it. Another thread may open, write
        // and close the file meanwhile, and leave the writeback to this one.
        while self.is_written
            && descriptors.writers == 1
            && written.is_ok()
            && let Some(mapping) = inode
                .common
                .mapping
                .as_ref()
                .filter(|mapping| mapping.is_dirty())
        {
            written = MutexGuard::unlocked(&mut descriptors, || mapping.write_back(0..u64::MAX));
        }
        let mut unused = None;
        if self.is_written {
            descriptors.writers -= 1;
            if descriptors.writers == 0 {
                unused = descriptors.write.take();
            }
        } else {
            descriptors.readers -= 1;
        }
        let becomes_idle =
            descriptors.readers == 0 && descriptors.read.is_some() && !descriptors.is_idle;
        descriptors.is_idle |= becomes_idle;
        // Closed without the lock: close(2) may wait for the host.
        drop(descriptors);
        drop(unused);
        if becomes_idle {
            let last = inode.shared.idle_files.lock().add(inode.me.clone());
            if let Some(last) = last.and_then(|last| last.upgrade()) {
                last.close_idle();
            }
        }
    }
}

impl HostInode {
    /// Closes the descriptor for reading, unless the file is open again.
    fn close_idle(&self) {
        let mut descriptors = self.descriptors.lock();
        descriptors.is_idle = false;
        let unused = if descriptors.readers == 0 {
            descriptors.read.take()
        } else {
            None
        };
        drop(descriptors);
        drop(unused);
    }

    /// Opens the regular file for data. The result keeps the host's descriptor.
    pub(super) fn open_data(&self, is_written: bool) -> Result<Box<dyn Send + Sync>> {
        let inode = self.me.upgrade().ok_or(Errno::IO)?;
        let is_open = |descriptors: &Descriptors| {
            if is_written {
                descriptors.write.is_some()
            } else {
                descriptors.readable().is_some()
            }
        };
        let created = self.shared.recently_created.lock().take(&self.me);
        let was_open = created.is_none() && is_open(&self.descriptors.lock());
        let opened = match (was_open, created) {
            (true, _) => None,
            (false, Some(fd)) => Some((fd, true)),
            (false, None) if is_written => Some(self.open_for_writing()?),
            (false, None) => Some((self.reopen_data(OFlags::RDONLY)?, true)),
        };
        let mut descriptors = self.descriptors.lock();
        if let Some((fd, is_readable)) = opened
            && !is_open(&descriptors)
        {
            let fd = Arc::new(fd);
            if is_written {
                descriptors.write = Some(WriteDescriptor { fd, is_readable });
            } else {
                descriptors.read = Some(fd);
            }
        } else if !is_open(&descriptors) {
            // The last user closed the descriptor meanwhile.
            drop(descriptors);
            return self.open_data(is_written);
        }
        if is_written {
            descriptors.writers += 1;
        } else {
            if descriptors.read.is_none() {
                // The writer may close its descriptor before this reader.
                descriptors.read = descriptors.readable();
            }
            descriptors.readers += 1;
        }
        drop(descriptors);
        Ok(Box::new(OpenHostFile { inode, is_written }))
    }

    /// Opens for reading and writing, as partially written pages are read first; for writing only
    /// if the host denies reading.
    fn open_for_writing(&self) -> Result<(OwnedFd, bool)> {
        match self.reopen_data(OFlags::RDWR) {
            Ok(fd) => Ok((fd, true)),
            Err(error) if error.errno() == Errno::ACCESS => {
                Ok((self.reopen_data(OFlags::WRONLY)?, false))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the data of a regular file. EINVAL for other types: opening a device or a pipe may
    /// have side effects.
    pub(super) fn reopen_data(&self, flags: OFlags) -> Result<OwnedFd> {
        if self.common.file_type != FileType::Regular {
            return Err(Errno::INVAL.into());
        }
        host_calls::reopen(&*self.descriptor()?, flags)
    }

    /// Returns a descriptor for calls other than data: an open one, or a new one by name.
    pub(super) fn descriptor(&self) -> Result<Arc<OwnedFd>> {
        self.open_descriptor()
            .map_or_else(|| self.open_by_name(), Ok)
    }

    /// Returns a descriptor that is already open.
    pub(super) fn open_descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.descriptors.lock().any()
    }

    /// Returns a descriptor for reading data.
    pub(super) fn readable(&self) -> Result<Arc<OwnedFd>> {
        let open = self.descriptors.lock().readable();
        open.map_or_else(|| self.reopen_data(OFlags::RDONLY).map(Arc::new), Ok)
    }

    /// Returns a descriptor for writing data.
    pub(super) fn writable(&self) -> Result<Arc<OwnedFd>> {
        let reopen = || self.reopen_data(OFlags::WRONLY).map(Arc::new);
        self.writable_if_open().map_or_else(reopen, Ok)
    }

    /// Returns a descriptor for writing data that is already open.
    pub(super) fn writable_if_open(&self) -> Option<Arc<OwnedFd>> {
        let descriptors = self.descriptors.lock();
        descriptors.write.as_ref().map(|write| write.fd.clone())
    }

    /// Returns whether writes go to the cache first. This needs a readable descriptor, as partially
    /// written pages are read first.
    pub(super) fn is_written_back(&self) -> bool {
        self.shared.options.cache == CacheMode::WriteBack
            && self.descriptors.lock().readable().is_some()
    }

    /// Keeps a descriptor of an inode that is about to lose its last name, so that its users can
    /// continue as with any file system.
    pub(super) fn keep_unlinked(&self, fd: Arc<OwnedFd>) {
        self.descriptors.lock().unlinked = Some(fd);
    }

    /// Keeps a descriptor for as long as the inode is in memory, if there are enough. Without it,
    /// the file is out of reach once an external writer has unlinked it.
    pub(super) fn hold_descriptor(&self) {
        if self.descriptors.lock().held.is_some() {
            return;
        }
        // Counted before the open: threads together must not exceed the limit.
        let held_count = &self.shared.held_count;
        if held_count.fetch_add(1, Ordering::Relaxed) < self.shared.held_max
            && let Ok(fd) = self.open_by_name()
        {
            let spare = self.descriptors.lock().held.replace(fd);
            held_count.fetch_sub(usize::from(spare.is_some()), Ordering::Relaxed);
        } else {
            held_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Drops the descriptor of [`HostInode::keep_unlinked`]: the inode has a name.
    pub(super) fn release_unlinked(&self) {
        let unlinked = self.descriptors.lock().unlinked.take();
        drop(unlinked);
    }

    /// Returns the host's status of the inode, if a descriptor is already open.
    pub(super) fn status_if_open(&self) -> Option<Result<Status>> {
        self.open_descriptor().map(|fd| host_calls::status(&*fd))
    }
}
