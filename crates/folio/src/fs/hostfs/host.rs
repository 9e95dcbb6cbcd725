//! What is asked of the host: one name below one directory descriptor at a time, and never what a
//! link points to.

use crate::base::{Errno, Result, Timespec};
use crate::vfs::FileType;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp};

/// A host's inode: as long as somebody has it open, no other has the same. The time of birth tells
/// apart two that had the same number one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: (u32, u32),
    pub(super) number: u64,
    pub(super) file_type: FileType,
    pub(super) born: Option<Timespec>,
}

/// What changes when a file's contents or attributes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) size_bytes: u64,
    pub(super) modified: Timespec,
    pub(super) changed: Timespec,
}

/// What the host tells of an inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Status {
    pub(super) identity: Identity,
    pub(super) stamp: Stamp,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) link_count: u32,
    pub(super) blocks_512: u64,
    pub(super) block_size: u32,
    pub(super) accessed: Timespec,
    /// Of a device node.
    pub(super) node: (u32, u32),
}

impl Status {
    fn new(told: &Statx) -> Result<Self> {
        let has_born = told.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Self {
            identity: Identity {
                device: (told.stx_dev_major, told.stx_dev_minor),
                number: told.stx_ino,
                file_type: file_type(rustix::fs::FileType::from_raw_mode(told.stx_mode.into()))
                    .ok_or(Errno::IO)?,
                born: has_born.then(|| time(told.stx_btime)),
            },
            stamp: Stamp {
                size_bytes: told.stx_size,
                modified: time(told.stx_mtime),
                changed: time(told.stx_ctime),
            },
            mode: told.stx_mode & 0o7777,
            uid: told.stx_uid,
            gid: told.stx_gid,
            link_count: told.stx_nlink,
            blocks_512: told.stx_blocks,
            block_size: told.stx_blksize,
            accessed: time(told.stx_atime),
            node: (told.stx_rdev_major, told.stx_rdev_minor),
        })
    }
}

fn time(told: StatxTimestamp) -> Timespec {
    Timespec::new(told.tv_sec, told.tv_nsec)
}

/// The type as the VFS calls it; `None` where the host does not say.
pub(super) fn file_type(told: rustix::fs::FileType) -> Option<FileType> {
    use rustix::fs::FileType as Host;
    Some(match told {
        Host::RegularFile => FileType::Regular,
        Host::Directory => FileType::Directory,
        Host::Symlink => FileType::Symlink,
        Host::CharacterDevice => FileType::CharacterDevice,
        Host::BlockDevice => FileType::BlockDevice,
        Host::Fifo => FileType::Fifo,
        Host::Socket => FileType::Socket,
        Host::Unknown => return None,
    })
}

/// Calls until no signal comes in between.
pub(super) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return Ok(answer?),
        }
    }
}

/// EINVAL unless it is one plain name, which leads from a directory to what is in it and nowhere
/// else.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    let is_plain =
        !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if is_plain {
        Ok(())
    } else {
        Err(Errno::INVAL.into())
    }
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME
}

/// What `name` leads to, itself if it is a link; `None` if it is not there.
pub(super) fn status_of(directory: impl AsFd, name: &[u8]) -> Result<Option<Status>> {
    check_name(name)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match retry(|| rustix::fs::statx(&directory, name, flags, wanted())) {
        Ok(told) => Status::new(&told).map(Some),
        Err(error) if error.errno() == Errno::NOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a descriptor leads to.
pub(super) fn status(fd: impl AsFd) -> Result<Status> {
    Status::new(&retry(|| {
        rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, wanted())
    })?)
}

/// Opens `name` in a directory, itself if it is a link.
fn open_beneath(directory: impl AsFd, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    check_name(name)?;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match retry(|| rustix::fs::openat2(&directory, name, flags, mode, resolve)) {
        // Before Linux 5.6, and where a sandbox knows no better. One name without a slash leads no
        // further without it.
        Err(error) if error.errno() == Errno::NOSYS => {
            retry(|| rustix::fs::openat(&directory, name, flags, mode))
        }
        opened => opened,
    }
}

/// A descriptor of `name` in a directory, whatever it is, for calls that are not about data.
pub(super) fn open_path(directory: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    open_beneath(directory, name, OFlags::PATH, Mode::empty())
}

/// Makes a regular file, which nobody may have made before.
pub(super) fn create_file(directory: impl AsFd, name: &[u8], mode: Mode) -> Result<OwnedFd> {
    open_beneath(
        directory,
        name,
        OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NONBLOCK,
        mode,
    )
}

/// Opens a directory for reading its entries, or to sync it.
pub(super) fn open_directory(directory: impl AsFd) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat(&directory, c".", flags, Mode::empty()))
}

/// The path of a descriptor, which leads to what the descriptor does even if that has moved. Never
/// to be used for a link, which would be followed.
pub(super) fn path_of(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Opens the regular file that `fd` leads to, by whatever name.
pub(super) fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    retry(|| rustix::fs::openat(CWD, path_of(&fd), flags, Mode::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_names() {
        for name in [b"a".as_slice(), b"...", b" ", b"\xff"] {
            check_name(name).unwrap();
        }
        for name in [b"".as_slice(), b".", b"..", b"/", b"a/b", b"../a", b"a\0b"] {
            assert_eq!(
                check_name(name).unwrap_err().errno(),
                Errno::INVAL,
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_link_is_opened_itself() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", folder.path().join("link")).unwrap();
        let directory = std::fs::File::open(folder.path()).unwrap();
        let told = status_of(&directory, b"link").unwrap().unwrap();
        assert_eq!(told.identity.file_type, FileType::Symlink);
        assert_eq!(
            status(open_path(&directory, b"link").unwrap())
                .unwrap()
                .identity,
            told.identity
        );
        assert!(status_of(&directory, b"nothing").unwrap().is_none());
    }
}
