//! hostfs: a host directory as a file system, cached, and coherent with external writers.
//!
//! ```text
//!   [traits of the VFS: FileSystem, Inode, FileOperations]
//!        v
//!   mod.rs            Hostfs: the mounted directory         options.rs owners.rs
//!   operations.rs     Inode, FileOperations                 xattr.rs readdir.rs
//!   directory.rs      lookup, create, remove, rename        notifications.rs  inotify events
//!   file.rs           pages and writes                      open_file.rs      host descriptors
//!   revalidate.rs     is cached data still valid?           location.rs       path from the root
//!                                                           events.rs         events of clients' watchers
//!        v
//!   inode.rs          one object per host inode; the state that a mount shares
//!        v
//!   data_state.rs descriptors.rs directory_cache.rs inode_numbers.rs inotify.rs
//!        v
//!   host_calls.rs     one name below one directory at a time      cache/
//! ```
//!
//! Neighbors: the VFS calls through its traits, and asks for revalidation
//! ([`AttrValidity`](crate::vfs::AttrValidity)); the page cache holds data; below is only the
//! host's kernel, called with statx(2), openat2(2) and the like.
//!
//! Validity: an answer of the host is valid for the time to live, which starts before the question.
//! Every data path revalidates after that. revalidate.rs describes how a change is detected, and
//! where pages are dropped although none is visible. Stores by mmap(2) on the host set no time
//! before they are written back: they are seen late, as on NFS.
//!
//! Lock order:
//! ```text
//!   inode lock (VFS)
//!     HostInode::revalidating        of an inode, then of its ancestors, which are only try-locked
//!       bytes of a page (cache/mod.rs)
//!         HostInode::data_state      writeback holds bytes; a holder of this lock never waits for bytes
//!           MountState::inodes; locations; descriptors; directories; Inotify: one at a time, and no
//!             question to the host meanwhile
//!             table of a mapping     its dirty state and size; the cache holds it over no store call
//! ```
//!
//! Invariants:
//! - H1: the host receives one plain name and a directory's descriptor, never a path from a client,
//!   and no call follows a link. /proc/self/fd is used for a descriptor, never for one of a link;
//!   of the host's path of a directory, each name is looked up like one from a client.
//! - H2: a directory's descriptor is used only if its position below the root was checked within
//!   the last second.
//! - H3: only regular files and directories are opened with more than `O_PATH`; the type of a file
//!   opened for data is checked first, by the same descriptor.
//! - H4: an answer to an earlier question never replaces an answer to a later question (tickets).
//! - H5: cached pages are no older than the valid answer, except for later changes through Folio.

mod data_state;
mod descriptors;
mod directory;
mod directory_cache;
mod events;
mod file;
mod host_calls;
mod inode;
mod inode_numbers;
mod inotify;
mod location;
mod notifications;
mod open_file;
mod operations;
mod options;
mod owners;
mod readdir;
mod revalidate;
mod xattr;

pub(crate) use options::HOSTFS_WORDS;

use self::directory_cache::DirectoryRing;
use self::host_calls::retry;
use self::inode::{HostInode, MountState};
use self::inode_numbers::InodeNumbers;
use self::inotify::Inotify;
use self::options::HostfsOptions;
use crate::base::lock::Mutex;
use crate::base::{Errno, Error, Result};
use crate::cache::PageCache;
use crate::vfs::{ChangeListener, FileSystem, FileSystemStatistics, FileType, Inode, MountOptions};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

/// The type of proc in statfs(2) (linux/magic.h).
const PROC_MAGIC: rustix::fs::FsWord = 0x9fa0;
/// Maximum number of open directory descriptors, whatever the descriptor limit.
const DIRECTORIES_MAX: u64 = 1 << 16;
/// Descriptor limit where the host reports none.
const DESCRIPTORS_DEFAULT: u64 = 1024;

/// A mounted directory of the host.
pub(crate) struct Hostfs {
    root: Arc<HostInode>,
    shared: Arc<MountState>,
    is_read_only: bool,
}

impl Hostfs {
    /// Mounts a directory of the host.
    ///
    /// # Errors
    ///
    /// EINVAL for invalid options, ENOSYS without /proc, ENOTDIR if `path` is not a directory, and
    /// the errors of openat(2).
    pub(crate) fn mount(
        path: &Path,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        Self::build(path, cache, options)
            .map_err(|error| error.at("hostfs").at(path.display().to_string()))
    }

    fn build(
        path: &Path,
        cache: &Arc<PageCache>,
        options: &MountOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        let host_options: HostfsOptions = options.file_system.parse()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root_fd = Arc::new(retry(|| {
            rustix::fs::openat(CWD, path, flags, Mode::empty())
        })?);
        let proc = retry(|| rustix::fs::statfs("/proc/self/fd"));
        if !proc.is_ok_and(|stat| stat.f_type == PROC_MAGIC) {
            return Err(Error::new(
                Errno::NOSYS,
                "cannot share a host directory without /proc: mount proc on /proc",
            ));
        }
        let status = host_calls::status(&*root_fd)?;
        if status.identity.file_type != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let (inotify, warning) = Inotify::new(host_options.push, &root_fd)?;
        let descriptors_max = raise_descriptor_limit();
        let directories_max = (descriptors_max / 2).min(DIRECTORIES_MAX);
        let shared = Arc::new(MountState {
            options: host_options,
            clock: options.clock,
            writeback: cache.writeback(),
            objects: cache.objects().clone(),
            root_fd,
            root_identity: status.identity,
            is_root: rustix::process::geteuid().is_root(),
            inode_numbers: InodeNumbers::default(),
            inodes: Mutex::default(),
            directories: DirectoryRing::new(directories_max as usize),
            recently_created: Mutex::default(),
            idle_files: Mutex::default(),
            held_count: AtomicUsize::new(0),
            held_max: (descriptors_max / 4) as usize,
            tickets: AtomicU64::new(0),
            invalidations: AtomicU64::new(0),
            inotify,
            listeners: Mutex::default(),
            wants_events: AtomicBool::new(false),
            warning,
        });
        shared.start_notifications()?;
        let root = shared.inode(&status);
        Ok(Arc::new(Self {
            root,
            shared,
            is_read_only: options.read_only,
        }))
    }
}

/// Raises the descriptor limit of this process to its maximum; returns the limit.
fn raise_descriptor_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    let limit = if raised.is_ok() { maximum } else { current };
    limit.unwrap_or(DESCRIPTORS_DEFAULT)
}

impl FileSystem for Hostfs {
    fn kind(&self) -> &'static str {
        "hostfs"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        let stat = retry(|| rustix::fs::fstatfs(&*self.shared.root_fd))?;
        Ok(FileSystemStatistics {
            magic: stat.f_type as u64,
            block_size: stat.f_bsize as u32,
            blocks: stat.f_blocks,
            blocks_free: stat.f_bfree,
            blocks_available: stat.f_bavail,
            inodes: stat.f_files,
            inodes_free: stat.f_ffree,
            name_max: stat.f_namelen as u32,
        })
    }

    fn sync(&self) -> Result<()> {
        self.shared.writeback.write_back_all()?;
        let mut synced = Vec::new();
        let mut result = Ok(());
        // Syncs each host file system that a directory in memory is on; any other has no data of
        // this mount.
        for inode in [self.root.clone()].into_iter().chain(self.shared.inodes()) {
            if inode.is_directory() && !synced.contains(&inode.identity.device) {
                synced.push(inode.identity.device);
                let sync = |directory: &OwnedFd| {
                    let fd = host_calls::open_directory(directory)?;
                    retry(|| rustix::fs::syncfs(&fd))
                };
                // A directory that is no longer below the root no longer belongs to the mount.
                result = result.and(inode.reach().map_or(Ok(()), |directory| sync(&directory)));
            }
        }
        result
    }

    /// Writes back dirty pages to the host, which writes them to its disk at its own time.
    fn unmount(&self) -> Result<()> {
        let result = self.shared.writeback.write_back_all();
        // Known locations hold directories, which may form loops.
        self.shared
            .inodes()
            .iter()
            .for_each(|inode| drop(inode.locations.take()));
        result
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn listen(&self, listener: Weak<dyn ChangeListener>) -> bool {
        self.shared.listen(listener)
    }

    fn warnings(&self) -> Vec<String> {
        let inotify = self.shared.inotify.as_ref();
        let warnings = inotify.map(Inotify::warnings).unwrap_or_default();
        let warning = self.shared.warning.iter().cloned();
        warning.chain(warnings).collect()
    }
}

impl Drop for Hostfs {
    fn drop(&mut self) {
        if let Some(inotify) = &self.shared.inotify {
            inotify.stop(&self.shared.root_fd);
        }
    }
}
