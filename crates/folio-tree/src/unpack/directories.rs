//! Names of an archive to open directories, within the destination.

use crate::attributes::is_plain_directory;
use crate::entry::{Entry, as_path};
use folio::syscall::{Fd, OpenFlags};
use folio::{Errno, Error, Process, Result};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Symbolic links that one name may lead through. Linux: `MAXSYMLINKS`.
const LINKS_MAX: usize = 40;

/// Splits a name into its components, without empty ones and ".".
///
/// # Errors
///
/// EPERM: a component is "..".
pub(super) fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let parts = path.split(|byte| *byte == b'/');
    let parts: Vec<_> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
    if parts.contains(&&b".."[..]) {
        return Err(Error::new(
            Errno::PERM,
            "skipped: the name has '..', which may lead out of the destination",
        ));
    }
    Ok(parts)
}

/// The open directories from the destination down to the last one used. Entries of an archive
/// mostly follow each other in one directory.
pub(crate) struct Directories<'a> {
    process: &'a Process,
    destination: PathBuf,
    root: Fd,
    root_is_plain: bool,
    /// Below the current directory these are of earlier names, and may serve again.
    stack: Vec<Open>,
    /// The depth of the current directory.
    depth: usize,
}

struct Open {
    name: Vec<u8>,
    fd: Fd,
    /// New files get root's group and no inherited ACL.
    is_plain: bool,
    /// Created with the entry's mode, in a plain directory.
    is_exact: bool,
}

impl Drop for Directories<'_> {
    fn drop(&mut self) {
        self.truncate(0);
        // A directory that was only read loses nothing.
        let _ = self.process.close(self.root);
    }
}

impl<'a> Directories<'a> {
    /// Opens the destination.
    pub(crate) fn open(process: &'a Process, destination: &Path) -> Result<Self> {
        let root = process.open(destination, OpenFlags::DIRECTORY, 0)?;
        let mut this = Self {
            process,
            destination: destination.to_path_buf(),
            root,
            root_is_plain: false,
            stack: Vec::new(),
            depth: 0,
        };
        this.root_is_plain = is_plain_directory(process, root)?;
        Ok(this)
    }

    /// Returns the process that opens the directories.
    pub(super) fn process(&self) -> &'a Process {
        self.process
    }

    /// Returns the descriptor of the destination.
    pub(crate) fn root(&self) -> Fd {
        self.root
    }

    /// Returns the descriptor of the current directory, valid until the next call that enters one.
    pub(crate) fn fd(&self) -> Fd {
        self.depth
            .checked_sub(1)
            .map_or(self.root, |at| self.stack[at].fd)
    }

    /// Whether new files in the current directory get root's group and no inherited ACL.
    pub(super) fn is_plain(&self) -> bool {
        self.depth
            .checked_sub(1)
            .map_or(self.root_is_plain, |at| self.stack[at].is_plain)
    }

    /// Whether the current directory was just created with its entry's mode and root's ids.
    pub(super) fn is_exact(&self) -> bool {
        self.depth
            .checked_sub(1)
            .is_some_and(|at| self.stack[at].is_exact)
    }

    /// Takes note that the current directory got the attributes of its entry.
    pub(super) fn has_attributes(&mut self, entry: &Entry) {
        let is_inherited = entry.mode & 0o2000 != 0;
        match self.depth.checked_sub(1) {
            None => self.root_is_plain &= !is_inherited,
            Some(at) => {
                self.stack[at].is_plain &= !is_inherited;
                self.stack[at].is_exact = false;
            }
        }
    }

    /// Returns the path of the current directory below the destination.
    pub(super) fn path(&self) -> Vec<u8> {
        let names: Vec<_> = self.stack[..self.depth]
            .iter()
            .map(|open| open.name.as_slice())
            .collect();
        names.join(&b'/')
    }

    /// Returns the path of `name` in the current directory, below the destination.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// Returns the absolute path of `name` in the current directory, for calls without an `at`
    /// form.
    pub(crate) fn absolute(&self, name: &[u8]) -> PathBuf {
        self.below(&self.path_of(name))
    }

    /// Returns the absolute path of a path below the destination.
    pub(super) fn below(&self, path: &[u8]) -> PathBuf {
        self.destination.join(as_path(path))
    }

    /// Makes the destination the current directory.
    pub(crate) fn go_to_root(&mut self) {
        self.depth = 0;
    }

    /// Enters the directory with these components. Symbolic links are followed as if the
    /// destination were the root directory. With `make`, missing directories are created.
    ///
    /// # Errors
    ///
    /// ENOENT without `make`, ENOTDIR, ELOOP.
    pub(crate) fn enter(&mut self, names: &[&[u8]], make: bool) -> Result<()> {
        self.depth = 0;
        let is_known = names.len() <= self.stack.len()
            && names
                .iter()
                .zip(&self.stack)
                .all(|(name, open)| *name == open.name);
        if is_known {
            self.depth = names.len();
            return Ok(());
        }
        let mut pending: VecDeque<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    self.depth = self.depth.saturating_sub(1);
                    continue;
                }
                _ => {}
            }
            if self
                .stack
                .get(self.depth)
                .is_some_and(|open| open.name == name)
            {
                self.depth += 1;
                continue;
            }
            match self.enter_existing(&name) {
                Ok(()) => {}
                Err(error) if error.errno() == Errno::NOENT && make => {
                    self.process.mkdirat(self.fd(), as_path(&name), 0o755)?;
                    self.enter_new(&name)?;
                }
                Err(error) if matches!(error.errno(), Errno::NOTDIR | Errno::LOOP) => {
                    let target = match self.process.readlinkat(self.fd(), as_path(&name)) {
                        Err(other) if other.errno() == Errno::INVAL => {
                            return Err(Errno::NOTDIR.into());
                        }
                        target => target?,
                    };
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    if target.first() == Some(&b'/') {
                        self.depth = 0;
                    }
                    for part in target.split(|byte| *byte == b'/').rev() {
                        pending.push_front(part.to_vec());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Enters an existing directory of the current one. Fails for a symbolic link.
    pub(super) fn enter_existing(&mut self, name: &[u8]) -> Result<()> {
        if self
            .stack
            .get(self.depth)
            .is_some_and(|open| open.name == name)
        {
            self.depth += 1;
            return Ok(());
        }
        let flags = OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        let fd = self.process.openat(self.fd(), as_path(name), flags, 0)?;
        let is_plain = is_plain_directory(self.process, fd);
        self.push(name, fd, is_plain.unwrap_or(false), false);
        Ok(())
    }

    /// Enters a directory that the caller has created in the current one.
    pub(super) fn enter_new(&mut self, name: &[u8]) -> Result<()> {
        let flags = OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW;
        let fd = self.process.openat(self.fd(), as_path(name), flags, 0)?;
        let is_plain = self.is_plain();
        self.push(name, fd, is_plain, is_plain);
        Ok(())
    }

    fn push(&mut self, name: &[u8], fd: Fd, is_plain: bool, is_exact: bool) {
        self.truncate(self.depth);
        self.stack.push(Open {
            name: name.to_vec(),
            fd,
            is_plain,
            is_exact,
        });
        self.depth += 1;
    }

    /// Closes the directory `name` in the current one, which the caller is about to remove.
    pub(super) fn forget(&mut self, name: &[u8]) {
        if self
            .stack
            .get(self.depth)
            .is_some_and(|open| open.name == name)
        {
            self.truncate(self.depth);
        }
    }

    fn truncate(&mut self, depth: usize) {
        for open in self.stack.drain(depth..) {
            // A directory that was only read loses nothing.
            let _ = self.process.close(open.fd);
        }
    }
}
