//! Layers of container images: whiteouts and opaque directories hide files of the layers below.
//!
//! Source: the OCI image specification, layer.md. A whiteout never hides a file of its own layer,
//! whichever comes first in the archive.

use super::directories::Directories;
use crate::entry::{as_path, read_names};
use folio::syscall::{AtFlags, Fd, OpenFlags};
use folio::vfs::FileType;
use folio::{Errno, Error, Process, Result};
use std::collections::HashSet;

/// The start of a whiteout's name.
const WHITEOUT: &[u8] = b".wh.";
/// The whiteout of all files in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The files of the current layer so far.
#[derive(Default)]
pub(super) struct Layer {
    /// Paths below the destination, and the directories above them.
    paths: HashSet<Vec<u8>>,
}

impl Layer {
    /// Adds a file.
    pub(super) fn add(&mut self, path: Vec<u8>) {
        self.paths.insert(path);
    }

    /// Adds the current directory and those above it: they hold files of this layer.
    pub(super) fn keep(&mut self, directories: &Directories<'_>) {
        let path = directories.path();
        let mut len = path.len();
        while len > 0 && !self.paths.contains(&path[..len]) {
            self.paths.insert(path[..len].to_vec());
            len = path[..len]
                .iter()
                .rposition(|byte| *byte == b'/')
                .unwrap_or(0);
        }
    }
}

impl Layer {
    /// Applies an entry of this name if it is a whiteout. Returns the directories that it removed,
    /// `None` if it is another file.
    pub(super) fn whiteout(
        &self,
        directories: &mut Directories<'_>,
        parents: &[&[u8]],
        name: &[u8],
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(hidden) = name.strip_prefix(WHITEOUT) else {
            return Ok(None);
        };
        let mut removed = Vec::new();
        if name != OPAQUE && hidden.starts_with(WHITEOUT) {
            // Bookkeeping of aufs.
            return Ok(Some(removed));
        }
        if matches!(hidden, b"" | b"." | b"..") {
            let reason = "skipped: a whiteout of a directory above it";
            return Err(Error::new(Errno::PERM, reason));
        }
        match directories.enter(parents, false) {
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => {
                return Ok(Some(removed));
            }
            entered => entered?,
        }
        if name == OPAQUE {
            self.hide_all(directories, &mut removed)?;
        } else {
            self.hide(directories, hidden, &mut removed)?;
        }
        Ok(Some(removed))
    }

    /// Removes `name` in the current directory, as far as it is of the layers below.
    fn hide(
        &self,
        directories: &mut Directories<'_>,
        name: &[u8],
        removed: &mut Vec<Vec<u8>>,
    ) -> Result<()> {
        let (process, at) = (directories.process(), directories.fd());
        let path = directories.path_of(name);
        let found = match process.fstatat(at, as_path(name), AtFlags::SYMLINK_NOFOLLOW) {
            Err(error) if error.errno() == Errno::NOENT => return Ok(()),
            found => found?,
        };
        let is_directory = found.file_type == FileType::Directory;
        if !self.paths.contains(&path) {
            return remove_hidden(directories, name, is_directory, removed);
        }
        if is_directory {
            directories.enter_existing(name)?;
            self.hide_all(directories, removed)?;
        }
        Ok(())
    }

    /// Removes everything in the current directory that is of the layers below.
    fn hide_all(
        &self,
        directories: &mut Directories<'_>,
        removed: &mut Vec<Vec<u8>>,
    ) -> Result<()> {
        let mut pending = vec![directories.path()];
        while let Some(path) = pending.pop() {
            let parts = path.split(|byte| *byte == b'/');
            let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
            directories.enter(&parts, false)?;
            let (process, at) = (directories.process(), directories.fd());
            for name in names(process, at)? {
                let below = directories.path_of(&name);
                let found = process.fstatat(at, as_path(&name), AtFlags::SYMLINK_NOFOLLOW)?;
                let is_directory = found.file_type == FileType::Directory;
                if !self.paths.contains(&below) {
                    remove_hidden(directories, &name, is_directory, removed)?;
                } else if is_directory {
                    pending.push(below);
                }
            }
        }
        Ok(())
    }
}

/// Removes `name` in the current directory; adds a directory to `removed`.
fn remove_hidden(
    directories: &mut Directories<'_>,
    name: &[u8],
    is_directory: bool,
    removed: &mut Vec<Vec<u8>>,
) -> Result<()> {
    let (process, at) = (directories.process(), directories.fd());
    if !is_directory {
        return process.unlinkat(at, as_path(name), AtFlags::empty());
    }
    directories.forget(name);
    remove_tree(process, at, name)?;
    removed.push(directories.path_of(name));
    Ok(())
}

/// Returns the names in an open directory.
fn names(process: &Process, fd: Fd) -> Result<Vec<Vec<u8>>> {
    let fd = process.openat(fd, ".", OpenFlags::DIRECTORY, 0)?;
    let listed = read_names(process, fd);
    process.close(fd)?;
    listed
}

/// Removes a directory with everything in it. It keeps its place in a list, because a hostile layer
/// may have more levels than a thread has stack.
pub(super) fn remove_tree(process: &Process, at: Fd, name: &[u8]) -> Result<()> {
    let open = |at: Fd, name: &[u8]| -> Result<(Fd, Vec<u8>, Vec<Vec<u8>>)> {
        let flags = OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        let fd = process.openat(at, as_path(name), flags, 0)?;
        let names = read_names(process, fd);
        if names.is_err() {
            process.close(fd)?;
        }
        Ok((fd, name.to_vec(), names?))
    };
    let mut levels = vec![open(at, name)?];
    let removed = (|| {
        while let Some((fd, _, names)) = levels.last_mut() {
            if let Some(name) = names.pop() {
                let fd = *fd;
                match process.unlinkat(fd, as_path(&name), AtFlags::empty()) {
                    Err(error) if matches!(error.errno(), Errno::ISDIR | Errno::PERM) => {
                        levels.push(open(fd, &name)?);
                    }
                    unlinked => unlinked?,
                }
                continue;
            }
            let Some((fd, name, _)) = levels.pop() else {
                break;
            };
            process.close(fd)?;
            let above = levels.last().map_or(at, |(fd, _, _)| *fd);
            process.unlinkat(above, as_path(&name), AtFlags::REMOVEDIR)?;
        }
        Ok(())
    })();
    for (fd, _, _) in levels {
        // Only after a failure, which is returned.
        let _ = process.close(fd);
    }
    removed
}
