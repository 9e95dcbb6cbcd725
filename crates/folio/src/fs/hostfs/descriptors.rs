//! The host's descriptors of one file: for its data while it is open, and for what has no name any
//! more.

use super::host::{self, Status};
use super::inode::HostInode;
use super::options::CacheMode;
use crate::base::{Errno, Result};
use crate::vfs::FileType;
use parking_lot::MutexGuard;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Files just made, whose descriptors wait for the open that follows.
const NEWBORNS_MAX: usize = 16;

/// The descriptors of one inode.
#[derive(Default)]
pub(super) struct Descriptors {
    read: Option<Arc<OwnedFd>>,
    write: Option<Writable>,
    readers: usize,
    writers: usize,
    /// Whether the list of idle files has it.
    is_listed: bool,
    /// Of what lost its last name by us: no data may go by it.
    nameless: Option<Arc<OwnedFd>>,
}

/// A descriptor for writing.
#[derive(Clone)]
pub(super) struct Writable {
    pub(super) fd: Arc<OwnedFd>,
    /// Whether it is for reading, too.
    pub(super) is_readable: bool,
}

impl Descriptors {
    pub(super) fn readable(&self) -> Option<Arc<OwnedFd>> {
        let both = self
            .write
            .as_ref()
            .filter(|writable| writable.is_readable)
            .map(|both| &both.fd);
        self.read.as_ref().or(both).cloned()
    }

    fn any(&self) -> Option<Arc<OwnedFd>> {
        let write = self.write.as_ref().map(|writable| &writable.fd);
        self.read
            .as_ref()
            .or(write)
            .or(self.nameless.as_ref())
            .cloned()
    }
}

/// Files that were made a moment ago, by the address of their inode. What made them may write them
/// whatever their mode says, but only by the descriptor that it got.
#[derive(Default)]
pub(super) struct Newborns(VecDeque<(usize, OwnedFd)>);

impl Newborns {
    pub(super) fn add(&mut self, inode: &HostInode, fd: OwnedFd) {
        if self.0.len() == NEWBORNS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((address(inode), fd));
    }

    pub(super) fn take(&mut self, inode: &HostInode) -> Option<OwnedFd> {
        let place = self.0.iter().position(|(of, _)| *of == address(inode))?;
        self.0.remove(place).map(|(_, fd)| fd)
    }
}

fn address(inode: &HostInode) -> usize {
    std::ptr::from_ref(inode) as usize
}

/// Files whose descriptors for reading stay open although nobody reads them any more.
const IDLE_MAX: usize = 64;

/// Files that were closed last: who opens one of them again to read it need not ask the host.
#[derive(Default)]
pub(super) struct IdleFiles(VecDeque<Weak<HostInode>>);

impl IdleFiles {
    /// Adds one; returns the one that has to go.
    fn add(&mut self, inode: Weak<HostInode>) -> Option<Weak<HostInode>> {
        self.0.push_back(inode);
        if self.0.len() > IDLE_MAX {
            self.0.pop_front()
        } else {
            None
        }
    }
}

/// A file that is open; dropped when it is closed.
struct Open {
    inode: Arc<HostInode>,
    is_written: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        let inode = &self.inode;
        let mut descriptors = inode.descriptors.lock();
        let mut written = Ok(());
        // Nobody else may be able to write it later. Who syncs the file is told of an error, which
        // the mapping remembers. Others may open, write and close meanwhile, and leave it to this
        // one.
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
        let gone = match self.is_written {
            true => {
                descriptors.writers -= 1;
                let write = if descriptors.writers == 0 {
                    descriptors.write.take()
                } else {
                    None
                };
                write.map(|writable| writable.fd)
            }
            false => {
                descriptors.readers -= 1;
                None
            }
        };
        let is_idle =
            descriptors.readers == 0 && descriptors.read.is_some() && !descriptors.is_listed;
        descriptors.is_listed |= is_idle;
        drop(descriptors);
        drop(gone);
        if is_idle {
            let last = inode.shared.idle_files.lock().add(inode.me.clone());
            if let Some(last) = last.and_then(|last| last.upgrade()) {
                last.leave_idle();
            }
        }
    }
}

impl HostInode {
    /// Closes what nobody reads any more.
    fn leave_idle(&self) {
        let mut descriptors = self.descriptors.lock();
        descriptors.is_listed = false;
        let gone = if descriptors.readers == 0 {
            descriptors.read.take()
        } else {
            None
        };
        drop(descriptors);
        drop(gone);
    }

    /// Opens the regular file for data. What is returned keeps the host's descriptor.
    pub(super) fn open_data(&self, is_written: bool) -> Result<Box<dyn Send + Sync>> {
        let inode = self.me.upgrade().ok_or(Errno::IO)?;
        let is_there = |descriptors: &Descriptors| match is_written {
            true => descriptors.write.is_some(),
            false => descriptors.readable().is_some(),
        };
        let newborn = self.shared.newborns.lock().take(self);
        let is_known = newborn.is_none() && is_there(&self.descriptors.lock());
        let opened = match (is_known, newborn) {
            (true, _) => None,
            (false, Some(fd)) => Some((fd, true)),
            (false, None) if is_written => Some(self.open_for_writing()?),
            (false, None) => Some((self.reopen_data(OFlags::RDONLY)?, true)),
        };
        let mut descriptors = self.descriptors.lock();
        if let Some((fd, is_readable)) = opened
            && !is_there(&descriptors)
        {
            match is_written {
                true => {
                    descriptors.write = Some(Writable {
                        fd: Arc::new(fd),
                        is_readable,
                    })
                }
                false => descriptors.read = Some(Arc::new(fd)),
            }
        } else if !is_there(&descriptors) {
            // Closed by the last one in between.
            drop(descriptors);
            return self.open_data(is_written);
        }
        match is_written {
            true => descriptors.writers += 1,
            false => {
                if descriptors.read.is_none() {
                    // Whoever writes may close first.
                    descriptors.read = descriptors.readable();
                }
                descriptors.readers += 1;
            }
        }
        drop(descriptors);
        Ok(Box::new(Open { inode, is_written }))
    }

    /// Opens for both, as pages that are written in part are read first; or for writing alone if
    /// that is all there is.
    fn open_for_writing(&self) -> Result<(OwnedFd, bool)> {
        match self.reopen_data(OFlags::RDWR) {
            Ok(fd) => Ok((fd, true)),
            Err(error) if error.errno() == Errno::ACCESS => {
                Ok((self.reopen_data(OFlags::WRONLY)?, false))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the data, of a regular file alone: to open a device or a pipe may be to use it.
    pub(super) fn reopen_data(&self, flags: OFlags) -> Result<OwnedFd> {
        if self.common.file_type != FileType::Regular {
            return Err(Errno::INVAL.into());
        }
        host::reopen(&*self.descriptor()?, flags)
    }

    /// A descriptor for calls that are not about data: one that is open, or one by name.
    pub(super) fn descriptor(&self) -> Result<Arc<OwnedFd>> {
        self.open_descriptor()
            .map_or_else(|| self.open_by_name(), Ok)
    }

    /// A descriptor that is open anyway.
    pub(super) fn open_descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.descriptors.lock().any()
    }

    /// A descriptor to read data by.
    pub(super) fn readable(&self) -> Result<Arc<OwnedFd>> {
        let open = self.descriptors.lock().readable();
        open.map_or_else(|| self.reopen_data(OFlags::RDONLY).map(Arc::new), Ok)
    }

    /// A descriptor to write data by.
    pub(super) fn writable(&self) -> Result<Writable> {
        let open = self.descriptors.lock().write.clone();
        let reopen = || {
            let fd = Arc::new(self.reopen_data(OFlags::WRONLY)?);
            Ok(Writable {
                fd,
                is_readable: false,
            })
        };
        open.map_or_else(reopen, Ok)
    }

    /// The same, if there is one.
    pub(super) fn writable_if_open(&self) -> Option<Arc<OwnedFd>> {
        self.descriptors
            .lock()
            .write
            .as_ref()
            .map(|writable| writable.fd.clone())
    }

    /// Whether the cache takes writes: then pages written in part are read first.
    pub(super) fn is_written_back(&self) -> bool {
        self.shared.options.cache == CacheMode::WriteBack
            && self.descriptors.lock().readable().is_some()
    }

    /// Keeps what is about to lose its last name, so that who has it goes on as with any file
    /// system.
    pub(super) fn keep_nameless(&self, fd: Arc<OwnedFd>) {
        self.descriptors.lock().nameless = Some(fd);
    }

    /// What was about to lose its last name has one.
    pub(super) fn has_name_again(&self) {
        let nameless = self.descriptors.lock().nameless.take();
        drop(nameless);
    }

    /// What the host tells by a descriptor that is open anyway.
    pub(super) fn status_if_open(&self) -> Option<Result<Status>> {
        self.open_descriptor().map(|fd| host::status(&*fd))
    }
}
