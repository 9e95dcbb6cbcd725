//! Reads from the host, with few system calls per file and without following links.

use super::{FileId, FoundFile, OpenMode, Source, SourceName};
use crate::attributes::Xattrs;
use folio::base::InodeNumber;
use folio::vfs::{Attributes, DeviceNumber, FileType};
use folio::{Errno, Error, Timespec};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

/// The files of the host, read as the calling user. Paths are absolute, or relative to the working
/// directory.
#[derive(Debug, Default)]
pub struct HostSource {
    images: Vec<FileId>,
    /// Devices whose file systems have no extended attributes.
    without_xattrs: Mutex<Vec<u64>>,
}

/// An open file, or the working directory.
#[derive(Debug)]
pub struct HostNode(Option<OwnedFd>);

impl HostNode {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().map_or(CWD, |fd| fd.as_fd())
    }
}

impl HostSource {
    /// Creates the source. `images` are the open images, which it does not copy.
    pub fn new(images: Vec<FileId>) -> Self {
        Self {
            images,
            without_xattrs: Mutex::default(),
        }
    }

    fn has_xattrs(&self, device: u64) -> bool {
        !self
            .without_xattrs
            .lock()
            .is_ok_and(|known| known.contains(&device))
    }

    /// Reads the list and each value. Both calls fill a buffer and return the length, as
    /// listxattr(2).
    fn read_xattrs(
        &self,
        device: u64,
        list: impl Fn(&mut [u8]) -> io::Result<usize>,
        get: impl Fn(&CString, &mut [u8]) -> io::Result<usize>,
    ) -> Result<Xattrs, Error> {
        if !self.has_xattrs(device) {
            return Ok(Vec::new());
        }
        let mut small = [0; 256];
        let names = match list(&mut small) {
            Ok(len) => small[..len].to_vec(),
            Err(Errno::RANGE) => grown(list)?,
            Err(Errno::NOTSUP) => {
                if let Ok(mut known) = self.without_xattrs.lock() {
                    known.push(device);
                }
                return Ok(Vec::new());
            }
            Err(errno) => return Err(errno.into()),
        };
        let mut xattrs = Vec::new();
        for name in names
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            let Ok(c_name) = CString::new(name) else {
                continue;
            };
            match grown(|buf| get(&c_name, buf)) {
                Ok(value) => xattrs.push((name.to_vec(), value)),
                // The attribute was removed since, or the kernel denies access to it: cp skips
                // these too.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        xattrs.sort_unstable();
        Ok(xattrs)
    }
}

/// Repeats the call until the buffer is large enough. Linux has no value above 64 KiB.
fn grown(call: impl Fn(&mut [u8]) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut len = 256;
    loop {
        let mut buf = vec![0; len];
        match call(&mut buf) {
            Err(Errno::RANGE) if len < 1 << 20 => len *= 4,
            Ok(count) => {
                buf.truncate(count);
                return Ok(buf);
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Returns `name` in `dir` as a path, for calls without an `at` form.
fn path_at(dir: &HostNode, name: &[u8]) -> Vec<u8> {
    match &dir.0 {
        None => name.to_vec(),
        Some(fd) => [
            format!("/proc/self/fd/{}/", fd.as_raw_fd()).as_bytes(),
            name,
        ]
        .concat(),
    }
}

fn found(stat: &Stat) -> FoundFile {
    FoundFile {
        attributes: attributes_of(stat),
        device_id: stat.st_dev,
    }
}

/// Converts the host's stat.
pub(crate) fn attributes_of(stat: &Stat) -> Attributes {
    let file_type = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        rustix::fs::FileType::CharacterDevice => FileType::CharacterDevice,
        rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
        rustix::fs::FileType::Fifo => FileType::Fifo,
        rustix::fs::FileType::Socket => FileType::Socket,
        _ => FileType::Regular,
    };
    let time = |secs: i64, nanos: i64| Timespec::new(secs, u32::try_from(nanos).unwrap_or(0));
    Attributes {
        number: InodeNumber(stat.st_ino),
        file_type,
        mode: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        link_count: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
        blocks_512: u64::try_from(stat.st_blocks).unwrap_or(0),
        block_size: u32::try_from(stat.st_blksize).unwrap_or(4096),
        device: DeviceNumber::new(
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        ),
        accessed: time(stat.st_atime, stat.st_atime_nsec),
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
        created: None,
    }
}

impl Source for HostSource {
    type Node = HostNode;

    fn start(&self) -> HostNode {
        HostNode(None)
    }

    fn stat(&self, dir: &HostNode, name: &[u8], follows_links: bool) -> Result<FoundFile, Error> {
        let flags = if follows_links {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        let stat = rustix::fs::statat(dir.fd(), name, flags)?;
        Ok(found(&stat))
    }

    fn open(
        &self,
        dir: &HostNode,
        name: &[u8],
        mode: OpenMode,
    ) -> Result<(HostNode, FoundFile), Error> {
        // O_NONBLOCK: if the file has become a FIFO since, open must not wait for a writer.
        let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        flags.set(OFlags::NOFOLLOW, !mode.follows_links);
        flags.set(OFlags::DIRECTORY, mode.is_directory);
        let fd = rustix::fs::openat(dir.fd(), name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        Ok((HostNode(Some(fd)), found(&stat)))
    }

    fn list(&self, dir: &HostNode) -> Result<Vec<SourceName>, Error> {
        let mut buf = [const { MaybeUninit::uninit() }; 32 << 10];
        let mut raw = RawDir::new(dir.fd(), &mut buf);
        let mut names = Vec::new();
        while let Some(entry) = raw.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let file_type = match entry.file_type() {
                rustix::fs::FileType::RegularFile => Some(FileType::Regular),
                rustix::fs::FileType::Directory => Some(FileType::Directory),
                _ => None,
            };
            names.push(SourceName {
                name: name.to_vec(),
                file_type,
            });
        }
        Ok(names)
    }

    fn read_at(&self, file: &HostNode, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        loop {
            match rustix::io::pread(file.fd(), &mut *buf, offset) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn next_data(&self, file: &HostNode, offset: u64) -> Result<Option<Range<u64>>, Error> {
        let start = match rustix::fs::seek(file.fd(), SeekFrom::Data(offset)) {
            Err(Errno::NXIO) => return Ok(None),
            // The file system does not support holes.
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(Some(offset..u64::MAX)),
            other => other?,
        };
        let end = rustix::fs::seek(file.fd(), SeekFrom::Hole(start))?;
        Ok(Some(start..end))
    }

    fn read_link(&self, dir: &HostNode, name: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(rustix::fs::readlinkat(dir.fd(), name, Vec::new())?.into_bytes())
    }

    fn xattrs(&self, node: &HostNode, found: &FoundFile) -> Result<Xattrs, Error> {
        self.read_xattrs(
            found.device_id,
            |buf| rustix::fs::flistxattr(node.fd(), buf),
            |name, buf| rustix::fs::fgetxattr(node.fd(), name.as_c_str(), buf),
        )
    }

    fn link_xattrs(&self, dir: &HostNode, name: &[u8], found: &FoundFile) -> Result<Xattrs, Error> {
        if !self.has_xattrs(found.device_id) {
            return Ok(Vec::new());
        }
        let path = path_at(dir, name);
        self.read_xattrs(
            found.device_id,
            |buf| rustix::fs::llistxattr(path.as_slice(), buf),
            |name, buf| rustix::fs::lgetxattr(path.as_slice(), name.as_c_str(), buf),
        )
    }

    fn is_own_image(&self, found: &FoundFile) -> bool {
        self.images.contains(&found.id())
    }
}
