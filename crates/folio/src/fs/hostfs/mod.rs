//! A directory of the host as a file system: cached like any other, and true although others change
//! it.
//!
//! ```text
//!   [file system seam]
//!        v
//!   mod.rs         Hostfs: the mounted directory              options.rs owners.rs numbers.rs
//!   inode.rs       one object per inode of the host            vfs_glue.rs   the seam's calls
//!   names.rs       lookup, making and taking away names        listing.rs xattr.rs
//!   places.rs      the way from the root to an inode           descriptors.rs   of open files
//!   revalidate.rs  what is still true of it                    push.rs      told by the host, not asked
//!   file.rs        pages and writes                            cache/
//!        v
//!   host.rs        the host: one name below one directory at a time
//! ```
//!
//! Neighbours: the VFS asks by way of the seam and says when
//! ([`AttrValidity`](crate::vfs::AttrValidity)); the page cache holds data; below is the host's kernel
//! alone, asked with statx(2), openat2(2) and the like.
//!
//! What is true: an answer of the host is believed for the time to live, counted from before the
//! question. Every path to data asks once that has passed. revalidate.rs says how a change shows,
//! and where pages are dropped although none does. Stores by mmap(2) on the host set no time before
//! they are written back: they are seen late, as on NFS.
//!
//! Lock order:
//! ```text
//!   inode lock (VFS)
//!     HostInode::revalidating        of an inode, then of directories above it, which are only tried
//!       bytes of a page (cache/mod.rs)
//!         HostInode::known           writeback holds bytes; nobody who holds this waits for bytes
//!           Shared::table; places; descriptors; the ring of directories; what push.rs keeps: one at a time, and
//!             nothing is asked meanwhile
//!             table of a mapping     whether it is dirty, its size; the cache holds it over no call of the store
//! ```
//!
//! Invariants:
//! - H1: the host is given one plain name and a directory's descriptor, never a path from a client,
//!   and no call follows a link. /proc/self/fd stands for a descriptor, never of a link.
//! - H2: a directory's descriptor is used only if its place below the root was seen within the last
//!   second.
//! - H3: nothing but regular files and directories is opened with more than `O_PATH`; what is
//!   opened for data was looked at first, by the same descriptor.
//! - H4: an answer to an earlier question never takes the place of one to a later question
//!   (tickets).
//! - H5: pages in memory are no older than the answer that is believed, but for own changes that
//!   went on top.

mod descriptors;
mod file;
mod host;
mod inode;
mod listing;
mod names;
mod numbers;
mod options;
mod owners;
mod places;
mod push;
mod revalidate;
mod vfs_glue;
mod xattr;

pub(crate) use options::HOSTFS_WORDS;

use self::descriptors::{IdleFiles, Newborns};
use self::host::{Identity, retry};
use self::inode::HostInode;
use self::numbers::Numbers;
use self::options::HostfsOptions;
use self::places::DirectoryRing;
use self::push::Push;
use crate::base::{Clock, Errno, Error, Result};
use crate::cache::{PageCache, Writeback};
use crate::vfs::{ChangeListener, FileSystem, FileSystemStatistics, FileType, Inode, MountOptions};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// What statfs(2) says of proc (linux/magic.h).
const PROC_MAGIC: rustix::fs::FsWord = 0x9fa0;
/// Directories kept open at most, however many descriptors there may be.
const DIRECTORIES_MAX: u64 = 1 << 16;
/// Descriptors where nobody says how many there may be.
const DESCRIPTORS_DEFAULT: u64 = 1024;

/// A mounted directory of the host.
pub struct Hostfs {
    root: Arc<HostInode>,
    shared: Arc<Shared>,
    is_read_only: bool,
}

/// What all inodes of a mount share.
struct Shared {
    options: HostfsOptions,
    clock: Clock,
    writeback: Arc<Writeback>,
    root_fd: Arc<OwnedFd>,
    root_identity: Identity,
    /// Whether owners can be given away.
    is_root: bool,
    numbers: Numbers,
    /// Inodes in memory, by device and number on the host.
    table: Mutex<HashMap<((u32, u32), u64), Weak<HostInode>>>,
    ring: DirectoryRing,
    newborns: Mutex<Newborns>,
    idle_files: Mutex<IdleFiles>,
    /// Drawn before each question to the host.
    tickets: AtomicU64,
    /// How often anything was doubted.
    doubts: AtomicU64,
    push: Option<Push>,
    listeners: Mutex<Vec<Weak<dyn ChangeListener>>>,
    /// Why there is no push, if there should be.
    warning: Option<String>,
}

impl Shared {
    fn take_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Hostfs {
    /// Mounts a directory of the host.
    pub fn mount(
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
        if !proc.is_ok_and(|told| told.f_type == PROC_MAGIC) {
            return Err(Error::new(
                Errno::NOSYS,
                "/proc is needed to share a host directory, and is not there",
            ));
        }
        let status = host::status(&*root_fd)?;
        if status.identity.file_type != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let (push, warning) = Push::new(host_options.push, &root_fd)?;
        let shared = Arc::new(Shared {
            options: host_options,
            clock: options.clock,
            writeback: cache.writeback(),
            root_fd,
            root_identity: status.identity,
            is_root: rustix::process::geteuid().is_root(),
            numbers: Numbers::default(),
            table: Mutex::default(),
            ring: DirectoryRing::new((raise_descriptor_limit() / 2).min(DIRECTORIES_MAX) as usize),
            newborns: Mutex::default(),
            idle_files: Mutex::default(),
            tickets: AtomicU64::new(0),
            doubts: AtomicU64::new(0),
            push,
            listeners: Mutex::default(),
            warning,
        });
        if let Some(push) = &shared.push {
            push.start(&shared)?;
        }
        let root = shared.inode(&status);
        Ok(Arc::new(Self {
            root,
            shared,
            is_read_only: options.read_only,
        }))
    }
}

/// Raises the number of descriptors to what is allowed; returns it.
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
        let told = retry(|| rustix::fs::fstatfs(&*self.shared.root_fd))?;
        Ok(FileSystemStatistics {
            magic: told.f_type as u64,
            block_size: told.f_bsize as u32,
            blocks: told.f_blocks,
            blocks_free: told.f_bfree,
            blocks_available: told.f_bavail,
            inodes: told.f_files,
            inodes_free: told.f_ffree,
            name_max: told.f_namelen as u32,
        })
    }

    fn sync(&self) -> Result<()> {
        self.shared.writeback.write_back_all()?;
        let mut synced = Vec::new();
        let mut result = Ok(());
        // Each of the host's file systems that directories in memory lie on; others have nothing of
        // ours.
        for inode in [self.root.clone()].into_iter().chain(self.shared.inodes()) {
            if inode.is_directory() && !synced.contains(&inode.identity.device) {
                synced.push(inode.identity.device);
                let sync = |directory: &OwnedFd| {
                    let fd = host::open_directory(directory)?;
                    retry(|| rustix::fs::syncfs(&fd))
                };
                // What is no longer below the root is no longer ours.
                result = result.and(inode.reach().map_or(Ok(()), |directory| sync(&directory)));
            }
        }
        result
    }

    /// Writes back what is dirty. When it reaches the disk is the host's business, as for whoever
    /// writes there.
    fn unmount(&self) -> Result<()> {
        let result = self.shared.writeback.write_back_all();
        // Places hold directories, perhaps each other.
        self.shared
            .inodes()
            .iter()
            .for_each(|inode| drop(inode.places.take()));
        result
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn listen(&self, listener: Weak<dyn ChangeListener>) -> bool {
        self.shared.listen(listener)
    }

    fn warnings(&self) -> Vec<String> {
        let push = self
            .shared
            .push
            .as_ref()
            .map(Push::warnings)
            .unwrap_or_default();
        self.shared.warning.iter().cloned().chain(push).collect()
    }
}

impl Drop for Hostfs {
    fn drop(&mut self) {
        if let Some(push) = &self.shared.push {
            push.stop(&self.shared.root_fd);
        }
    }
}
