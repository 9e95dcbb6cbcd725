//! Sources of a copy: trees that can be walked.

mod host;
mod mounted;

pub use host::HostSource;
pub(crate) use host::attributes_of;
pub use mounted::MountSource;

use crate::attributes::Xattrs;
use folio::Error;
use folio::vfs::{Attributes, FileType};
use std::ops::Range;
use std::path::Path;

/// Identifies a file among those of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl FileId {
    /// Returns that of the file at a path of the host, through links; `None` if there is none.
    pub fn at(path: &Path) -> Option<Self> {
        rustix::fs::stat(path).ok().map(|found| Self::of(&found))
    }

    pub(crate) fn of(stat: &rustix::fs::Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

/// The attributes of a file, and the file system that has it.
#[derive(Debug, Clone, Copy)]
pub struct FoundFile {
    /// What stat(2) returns.
    pub attributes: Attributes,
    /// The device of the file system (`st_dev`): with the inode number it identifies a file.
    pub device_id: u64,
}

impl FoundFile {
    /// Returns what identifies the file among those of the source.
    pub fn id(&self) -> FileId {
        FileId {
            device: self.device_id,
            inode: self.attributes.number.0,
        }
    }
}

/// A name in a directory.
#[derive(Debug, Clone)]
pub struct SourceName {
    /// One component of a path.
    pub name: Vec<u8>,
    /// The type, if the directory records it.
    pub file_type: Option<FileType>,
}

/// How a name is opened.
#[derive(Debug, Clone, Copy)]
pub struct OpenMode {
    /// A symbolic link is followed; else it is ELOOP.
    pub follows_links: bool,
    /// Anything but a directory is ENOTDIR.
    pub is_directory: bool,
}

/// The source of a copy: a tree of files. Names are bytes without slashes, but for those of
/// [`Source::start`], which are paths.
pub trait Source: Sync {
    /// An open file or directory.
    type Node: Send;

    /// Returns the directory where paths start.
    fn start(&self) -> Self::Node;
    /// Returns the attributes of a file: stat(2), or lstat(2) without `follows_links`.
    ///
    /// # Errors
    ///
    /// Those of stat(2).
    fn stat(&self, dir: &Self::Node, name: &[u8], follows_links: bool) -> Result<FoundFile, Error>;
    /// Opens a file or directory for reading.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    fn open(
        &self,
        dir: &Self::Node,
        name: &[u8],
        mode: OpenMode,
    ) -> Result<(Self::Node, FoundFile), Error>;
    /// Lists the names in a directory, without `.` and `..`.
    ///
    /// # Errors
    ///
    /// Those of getdents(2).
    fn list(&self, dir: &Self::Node) -> Result<Vec<SourceName>, Error>;
    /// Reads bytes of a file; returns 0 at its end.
    ///
    /// # Errors
    ///
    /// Those of pread(2).
    fn read_at(&self, file: &Self::Node, buf: &mut [u8], offset: u64) -> Result<usize, Error>;
    /// Returns the next range of data at or after `offset`, in bytes; `None` if only a hole is
    /// left.
    ///
    /// # Errors
    ///
    /// Those of lseek(2).
    fn next_data(&self, file: &Self::Node, offset: u64) -> Result<Option<Range<u64>>, Error>;
    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// Those of readlink(2).
    fn read_link(&self, dir: &Self::Node, name: &[u8]) -> Result<Vec<u8>, Error>;
    /// Returns the extended attributes of an open file.
    ///
    /// # Errors
    ///
    /// Those of listxattr(2) and getxattr(2).
    fn xattrs(&self, node: &Self::Node, found: &FoundFile) -> Result<Xattrs, Error>;
    /// Returns the extended attributes of a file that cannot be opened.
    ///
    /// # Errors
    ///
    /// Those of llistxattr(2) and lgetxattr(2).
    fn link_xattrs(
        &self,
        dir: &Self::Node,
        name: &[u8],
        found: &FoundFile,
    ) -> Result<Xattrs, Error>;
    /// Whether this file is the image that the copy reads or writes. To copy it would never end.
    fn is_own_image(&self, _found: &FoundFile) -> bool {
        false
    }
}

/// Returns the ranges of a regular file that are not holes, ascending, in bytes. The file has fewer
/// blocks than bytes if it has holes, or if the file system compresses: then SEEK_DATA decides.
pub(crate) fn data_ranges<S: Source>(
    source: &S,
    file: &S::Node,
    found: &FoundFile,
) -> Result<Vec<Range<u64>>, Error> {
    let size = found.attributes.size_bytes;
    let mut ranges = Vec::new();
    if size == 0 {
        return Ok(ranges);
    }
    if found.attributes.blocks_512.saturating_mul(512) >= size {
        ranges.push(0..size);
        return Ok(ranges);
    }
    let mut offset = 0;
    while offset < size
        && let Some(data) = source.next_data(file, offset)?
    {
        let end = data.end.min(size);
        // The file has changed.
        if end <= data.start || data.start < offset {
            break;
        }
        ranges.push(data.start..end);
        offset = end;
    }
    Ok(ranges)
}

/// Whether a name stays in its directory.
pub(crate) fn is_plain_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}
