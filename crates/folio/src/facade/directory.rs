//! Listings: the entries of one directory, and of a whole tree.

use super::file::File;
use super::metadata::Metadata;
use crate::syscall::{AtFlags, Dirent, OpenFlags, Process};
use crate::vfs::FileType;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Entries that one call of getdents64(2) brings.
const BATCH_ENTRIES: usize = 256;

/// One entry of a directory.
#[derive(Clone)]
pub struct DirEntry {
    process: Arc<Process>,
    path: PathBuf,
    file_type: Option<FileType>,
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirEntry")
            .field("path", &self.path)
            .field("file_type", &self.file_type)
            .finish_non_exhaustive()
    }
}

impl DirEntry {
    /// Returns the path: that of the directory, as it was given, with the name behind it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name.
    pub fn file_name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Returns the file type; of a symbolic link itself, not of its target.
    ///
    /// # Errors
    ///
    /// Those of [`metadata`](Self::metadata), if the directory does not record the type.
    pub fn file_type(&self) -> io::Result<FileType> {
        match self.file_type {
            Some(file_type) => Ok(file_type),
            None => Ok(self.metadata()?.file_type()),
        }
    }

    /// Returns the attributes; of a symbolic link itself, not of its target. Linux: lstat(2).
    ///
    /// # Errors
    ///
    /// `NotFound` if the entry was removed meanwhile; else those of lstat(2).
    pub fn metadata(&self) -> io::Result<Metadata> {
        Ok(Metadata::new(self.process.lstat(&self.path)?))
    }
}

/// The entries of a directory, without `.` and `..`, in the directory's order.
pub struct ReadDir {
    process: Arc<Process>,
    directory: File,
    path: PathBuf,
    batch: std::vec::IntoIter<Dirent>,
    is_at_end: bool,
}

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl ReadDir {
    pub(super) fn open(process: &Arc<Process>, path: &Path) -> io::Result<Self> {
        let directory = File::open(process, path, OpenFlags::DIRECTORY, 0)?;
        Ok(Self {
            process: process.clone(),
            directory,
            path: path.to_owned(),
            batch: Vec::new().into_iter(),
            is_at_end: false,
        })
    }
}

impl Iterator for ReadDir {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            for entry in self.batch.by_ref() {
                if entry.name != b"." && entry.name != b".." {
                    return Some(Ok(DirEntry {
                        process: self.process.clone(),
                        path: self.path.join(OsString::from_vec(entry.name)),
                        file_type: entry.file_type,
                    }));
                }
            }
            if self.is_at_end {
                return None;
            }
            match self.process.getdents(self.directory.fd(), BATCH_ENTRIES) {
                Ok(batch) => {
                    self.is_at_end = batch.is_empty();
                    self.batch = batch.into_iter();
                }
                Err(error) => {
                    self.is_at_end = true;
                    return Some(Err(error.into()));
                }
            }
        }
    }
}

/// The entries of a tree: each directory before what is in it. Symbolic links are listed, not
/// followed. After an error the walk goes on with the next directory.
pub struct Walk {
    process: Arc<Process>,
    /// The directories from the root of the walk down to the current one.
    open: Vec<ReadDir>,
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk")
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl Walk {
    pub(super) fn open(process: &Arc<Process>, path: &Path) -> io::Result<Self> {
        Ok(Self {
            process: process.clone(),
            open: vec![ReadDir::open(process, path)?],
        })
    }

    fn enter(&mut self, entry: &DirEntry) -> io::Result<()> {
        if entry.file_type()? == FileType::Directory {
            self.open.push(ReadDir::open(&self.process, entry.path())?);
        }
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(directory) = self.open.last_mut() {
            match directory.next() {
                Some(Ok(entry)) => return Some(self.enter(&entry).map(|()| entry)),
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    self.open.pop();
                }
            }
        }
        None
    }
}

/// Removes the directory at `path` and all below it. Each directory is reached by descriptor, so a
/// symbolic link put in place meanwhile leads nowhere else.
pub(super) fn remove_tree(process: &Arc<Process>, path: &Path) -> io::Result<()> {
    // Directories from the top down to the current one: handle, own name, subdirectories left.
    let mut open = vec![OpenDirectory::empty_of_files(
        File::open(process, path, OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW, 0)?,
        Vec::new(),
    )?];
    while let Some(current) = open.last_mut() {
        if let Some(name) = current.subdirectories.pop() {
            let flags = OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
            let child = current.handle.open_below(OsStr::from_bytes(&name), flags)?;
            open.push(OpenDirectory::empty_of_files(child, name)?);
            continue;
        }
        let Some(done) = open.pop() else { break };
        let Some(parent) = open.last() else { break };
        drop(done.handle);
        let name = OsStr::from_bytes(&done.name);
        process.unlinkat(parent.handle.fd(), name, AtFlags::REMOVEDIR)?;
    }
    drop(open);
    Ok(process.rmdir(path)?)
}

struct OpenDirectory {
    handle: File,
    name: Vec<u8>,
    subdirectories: Vec<Vec<u8>>,
}

impl OpenDirectory {
    /// Removes every entry of `handle` that is not a directory; keeps the names of those that are.
    fn empty_of_files(handle: File, name: Vec<u8>) -> io::Result<Self> {
        let process = handle.process();
        let mut subdirectories = Vec::new();
        for entry in process.readdir(handle.fd())? {
            let name = OsStr::from_bytes(&entry.name);
            let file_type = match entry.file_type {
                Some(file_type) => file_type,
                None => {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    process.fstatat(handle.fd(), name, flags)?.file_type
                }
            };
            if file_type == FileType::Directory {
                subdirectories.push(entry.name);
            } else {
                process.unlinkat(handle.fd(), name, AtFlags::empty())?;
            }
        }
        Ok(Self {
            handle,
            name,
            subdirectories,
        })
    }
}
