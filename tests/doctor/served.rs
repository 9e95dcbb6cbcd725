//! A FUSE file system of one file, with configurable caching of pages and attributes.

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry,
    ReplyOpen, Request,
};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};
use tempfile::TempDir;

/// Time of an answer about attributes: a fast machine needs less than is counted as a wait.
const ROUND_TRIP: Duration = Duration::from_micros(100);
/// Size of the file.
pub(crate) const LEN: u64 = 8 << 20;

/// Caching of the file's pages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pages {
    /// The pages stay in memory.
    Kept,
    /// The pages stay until the next open of the file, as libfuse does without `kernel_cache`.
    DroppedAtOpen,
    /// Reads bypass the page cache (`FOPEN_DIRECT_IO`).
    Bypassed,
}

/// Caching that the server allows the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeps {
    /// Pages of the file.
    pub(crate) pages: Pages,
    /// Timeout of names and attributes.
    pub(crate) ttl: Duration,
}

/// The mount; dropping it unmounts.
pub(crate) struct Served {
    session: Option<BackgroundSession>,
    folder: TempDir,
}

impl Served {
    pub(crate) fn new(keeps: Keeps) -> Self {
        let folder = TempDir::with_prefix("folio-doctor-").unwrap();
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("nowhere".to_owned())];
        let session =
            fuser::spawn_mount(Server { keeps }, folder.path(), &config).expect("a FUSE mount");
        Self {
            session: Some(session),
            folder,
        }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("file")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

struct Server {
    keeps: Keeps,
}

const FILE: u64 = 2;

fn attributes(number: u64) -> FileAttr {
    let is_file = number == FILE;
    FileAttr {
        ino: INodeNo(number),
        size: if is_file { LEN } else { 0 },
        blocks: if is_file { LEN / 512 } else { 0 },
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_file {
            FileType::RegularFile
        } else {
            FileType::Directory
        },
        perm: if is_file { 0o644 } else { 0o755 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

impl Filesystem for Server {
    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        std::thread::park_timeout(ROUND_TRIP);
        if name == "file" {
            reply.entry(&self.keeps.ttl, &attributes(FILE), Generation(0))
        } else {
            reply.error(Errno::ENOENT)
        }
    }

    fn getattr(
        &self,
        _req: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        std::thread::park_timeout(ROUND_TRIP);
        reply.attr(&self.keeps.ttl, &attributes(number.0));
    }

    fn open(&self, _req: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = match self.keeps.pages {
            Pages::Kept => FopenFlags::FOPEN_KEEP_CACHE,
            Pages::DroppedAtOpen => FopenFlags::empty(),
            Pages::Bypassed => FopenFlags::FOPEN_DIRECT_IO,
        };
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _req: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let count = LEN.saturating_sub(offset).min(u64::from(size));
        reply.data(&vec![7; count as usize]);
    }
}
