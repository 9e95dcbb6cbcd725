//! Calls to the host: one name below one directory descriptor at a time, without following links.

use crate::base::{DeviceNumber, Errno, Owner, Result, Timespec};
use crate::vfs::FileType;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The identity of a host inode, unique among open inodes. The creation time distinguishes two
/// inodes that had the same number one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: DeviceNumber,
    pub(super) number: u64,
    pub(super) file_type: FileType,
    pub(super) created: Option<Timespec>,
}

/// The values that change with a file's contents or attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) size_bytes: u64,
    pub(super) modified: Timespec,
    pub(super) changed: Timespec,
}

/// The host's status of an inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Status {
    pub(super) identity: Identity,
    pub(super) stamp: Stamp,
    pub(super) mode: u16,
    pub(super) owner: Owner,
    pub(super) link_count: u32,
    pub(super) blocks_512: u64,
    pub(super) block_size: u32,
    pub(super) accessed: Timespec,
    /// Device number of a device node.
    pub(super) node: DeviceNumber,
}

impl Status {
    fn new(statx: &Statx) -> Result<Self> {
        let has_created = statx.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Self {
            identity: Identity {
                device: DeviceNumber::new(statx.stx_dev_major, statx.stx_dev_minor),
                number: statx.stx_ino,
                file_type: file_type(rustix::fs::FileType::from_raw_mode(statx.stx_mode.into()))
                    .ok_or(Errno::IO)?,
                created: has_created.then(|| time(statx.stx_btime)),
            },
            stamp: Stamp {
                size_bytes: statx.stx_size,
                modified: time(statx.stx_mtime),
                changed: time(statx.stx_ctime),
            },
            mode: statx.stx_mode & 0o7777,
            owner: Owner::new(statx.stx_uid, statx.stx_gid),
            link_count: statx.stx_nlink,
            blocks_512: statx.stx_blocks,
            block_size: statx.stx_blksize,
            accessed: time(statx.stx_atime),
            node: DeviceNumber::new(statx.stx_rdev_major, statx.stx_rdev_minor),
        })
    }
}

fn time(time: StatxTimestamp) -> Timespec {
    Timespec::new(time.tv_sec, time.tv_nsec)
}

/// Returns the VFS's file type; `None` if the host does not report it.
pub(super) fn file_type(host_type: rustix::fs::FileType) -> Option<FileType> {
    use rustix::fs::FileType as Host;
    Some(match host_type {
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

/// Repeats a call while signals interrupt it.
pub(super) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return Ok(answer?),
        }
    }
}

/// Fails with EINVAL unless the name is plain: it refers to an entry of its directory.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    let is_plain =
        !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if is_plain {
        Ok(())
    } else {
        Err(Errno::INVAL.into())
    }
}

fn statx_mask() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME
}

/// Returns the status of `name`, without following a link; `None` if the name does not exist.
pub(super) fn status_of(directory: impl AsFd, name: &[u8]) -> Result<Option<Status>> {
    check_name(name)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match retry(|| rustix::fs::statx(&directory, name, flags, statx_mask())) {
        Ok(statx) => Status::new(&statx).map(Some),
        Err(error) if error.errno() == Errno::NOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the status of a descriptor's inode.
pub(super) fn status(fd: impl AsFd) -> Result<Status> {
    Status::new(&retry(|| {
        rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, statx_mask())
    })?)
}

/// Opens `name` in a directory, without following a link.
fn open_beneath(directory: impl AsFd, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    check_name(name)?;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match retry(|| rustix::fs::openat2(&directory, name, flags, mode, resolve)) {
        // Linux before 5.6, and some sandboxes, lack openat2(2). A single name without a slash
        // stays in the directory without it.
        Err(error) if error.errno() == Errno::NOSYS => {
            retry(|| rustix::fs::openat(&directory, name, flags, mode))
        }
        opened => opened,
    }
}

/// Opens a descriptor of `name`, of any type, for calls other than data.
pub(super) fn open_path(directory: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    open_beneath(directory, name, OFlags::PATH, Mode::empty())
}

/// Creates a regular file; EEXIST if the name exists.
pub(super) fn create_file(directory: impl AsFd, name: &[u8], mode: Mode) -> Result<OwnedFd> {
    open_beneath(
        directory,
        name,
        OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NONBLOCK,
        mode,
    )
}

/// Opens a directory to read its entries, or to sync it.
pub(super) fn open_directory(directory: impl AsFd) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat(&directory, c".", flags, Mode::empty()))
}

/// Returns a path that refers to a descriptor's inode, even after the inode was moved. Must not be
/// used for a symbolic link, which the host would follow.
pub(super) fn path_of(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Returns the path of a directory's descriptor, as this process sees it. Another directory may be
/// at that path by now, or none. `None` if it has more than 4095 bytes. Linux: `d_path`.
pub(super) fn host_path(directory: impl AsFd) -> Result<Option<PathBuf>> {
    match retry(|| rustix::fs::readlinkat(CWD, path_of(&directory), Vec::new())) {
        Ok(path) => Ok(Some(OsString::from_vec(path.into_bytes()).into())),
        Err(error) if error.errno() == Errno::NAMETOOLONG => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens the regular file of a descriptor again.
pub(super) fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    retry(|| rustix::fs::openat(CWD, path_of(&fd), flags, Mode::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_slash_or_dots_is_rejected() {
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
    fn symlink_is_opened_itself() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", folder.path().join("link")).unwrap();
        let directory = std::fs::File::open(folder.path()).unwrap();
        let found = status_of(&directory, b"link").unwrap().unwrap();
        assert_eq!(found.identity.file_type, FileType::Symlink);
        assert_eq!(
            status(open_path(&directory, b"link").unwrap())
                .unwrap()
                .identity,
            found.identity
        );
        assert!(status_of(&directory, b"nothing").unwrap().is_none());
    }
}
