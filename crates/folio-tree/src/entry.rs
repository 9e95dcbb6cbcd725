//! One file of an archive: its name, kind and metadata.

use crate::attributes::Xattrs;
use folio::syscall::{Fd, OpenFlags};
use folio::vfs::{Attributes, FileType};
use folio::{Process, Result, Timespec};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file of an archive, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name in the archive, with its slashes.
    pub path: Vec<u8>,
    /// The kind of file.
    pub kind: EntryKind,
    /// Permission bits with setuid, setgid and sticky: the low 12 bits of `st_mode`.
    pub mode: u16,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Time of the last change of content.
    pub modified: Timespec,
    /// Time of the last access, if the archive has it.
    pub accessed: Option<Timespec>,
    /// Extended attributes; ACLs are among them, as `system.posix_acl_*`.
    pub xattrs: Xattrs,
    /// Attributes that the archive has in a form that cannot be read, as messages.
    pub unreadable: Vec<String>,
}

/// The kind of a file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file of this size in bytes, holes included.
    File {
        /// Size in bytes.
        size_bytes: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// Another name of the file with this name in the archive.
    HardLink(Vec<u8>),
    /// A character device with its major and minor number.
    CharacterDevice(u32, u32),
    /// A block device with its major and minor number.
    BlockDevice(u32, u32),
    /// A FIFO.
    Fifo,
}

impl Entry {
    /// Returns the size of the content in bytes, 0 for anything but a regular file.
    pub fn size_bytes(&self) -> u64 {
        match self.kind {
            EntryKind::File { size_bytes } => size_bytes,
            _ => 0,
        }
    }

    /// Limits the times to `latest`, for reproducible output.
    pub fn clamp_times(&mut self, latest: Option<Timespec>) {
        if let Some(latest) = latest {
            self.modified = self.modified.min(latest);
            self.accessed = None;
        }
    }
}

/// Whether a layer of a container image would take a file of this name for a whiteout.
pub fn is_whiteout(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|byte| *byte == b'/');
    let name = parts.find(|part| !part.is_empty()).unwrap_or(b"");
    name.starts_with(b".wh.")
}

/// Returns a name as a path.
pub(crate) fn as_path(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

/// Returns the names that are left in an open directory.
pub(crate) fn read_names(process: &Process, fd: Fd) -> Result<Vec<Vec<u8>>> {
    let entries = process.readdir(fd)?.into_iter();
    Ok(entries.map(|entry| entry.name).collect())
}

/// Reads the start of a file: at most `len_max` bytes, rounded up to 64 KiB.
///
/// # Errors
///
/// Those of open(2), read(2) and close(2).
pub fn read_file(process: &Process, path: &Path, len_max: usize) -> Result<Vec<u8>> {
    let fd = process.open(path, OpenFlags::empty(), 0)?;
    let (mut bytes, mut buf) = (Vec::new(), vec![0; 64 << 10]);
    let read = loop {
        match process.read(fd, &mut buf) {
            Ok(0) => break Ok(()),
            Ok(count) => bytes.extend_from_slice(&buf[..count]),
            Err(error) => break Err(error),
        }
        if bytes.len() >= len_max {
            break Ok(());
        }
    };
    process.close(fd)?;
    read.map(|()| bytes)
}

/// Calls `visit` for all files below a directory, each with the result of lstat(2), and a directory
/// before its files. Keeps its place in a list, because a tree may have more levels than a thread
/// has stack.
pub(crate) fn walk_below(
    process: &Process,
    top: &Path,
    visit: &mut dyn FnMut(&Path, &Attributes) -> Result<()>,
) -> Result<()> {
    let mut pending: Vec<PathBuf> = vec![top.into()];
    while let Some(folder) = pending.pop() {
        let flags = OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        let fd = process.open(&folder, flags, 0)?;
        let listed = read_names(process, fd);
        process.close(fd)?;
        for name in listed? {
            let path = folder.join(as_path(&name));
            let found = process.lstat(&path)?;
            visit(&path, &found)?;
            if found.file_type == FileType::Directory {
                pending.push(path);
            }
        }
    }
    Ok(())
}

/// Returns `path/name`.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if name == b"." {
        return path.to_vec();
    }
    let slash: &[u8] = if path.is_empty() || path.last() == Some(&b'/') {
        b""
    } else {
        b"/"
    };
    [path, slash, name].concat()
}
