//! The path walk with references: from a path to a location. Linux: fs/namei.c ("REF-walk"),
//! Documentation/filesystems/path-lookup.rst.

use super::access_time::touch_accessed;
use super::attributes::FileType;
use super::credentials::{Access, Credentials};
use super::dentry::{Dentry, Location};
use super::dentry_cache::{Cached, Found};
use super::host_names::HostNames;
use super::open_flags::LastLink;
use super::permission::check_access;
use super::vfs::Vfs;
use crate::base::{Detail, Errno, Error, Result};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Longest name in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// A path has fewer bytes than this.
pub(crate) const PATH_MAX: usize = 4096;
/// Maximum number of symbolic links followed in one walk.
const LINKS_MAX: u32 = 40;

/// The caller's context: everything that a call needs besides its arguments.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) vfs: &'a Vfs,
    pub(crate) credentials: &'a Credentials,
    pub(crate) umask: u16,
}

/// The last component of a path.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Last {
    /// A name: these bytes of the path.
    Name(Range<usize>),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// The path is `/`.
    Root,
}

/// A walk in progress: `at` is the location reached, `path[position..]` is the rest.
pub(crate) struct Walk<'c, 'p> {
    context: &'c Context<'c>,
    at: Location,
    path: Cow<'p, [u8]>,
    position: usize,
    links: u32,
}

impl<'c, 'p> Walk<'c, 'p> {
    /// Starts a walk along `path` from `start`, or from the root if the path is absolute.
    pub(crate) fn new(context: &'c Context<'c>, start: &Location, path: &'p [u8]) -> Result<Self> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if path.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if path.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        let at = if path[0] == b'/' {
            context.vfs.root()
        } else {
            start.clone()
        };
        Ok(Self {
            context,
            at,
            path: Cow::Borrowed(path),
            position: 0,
            links: 0,
        })
    }

    /// Returns the location reached: after [`Walk::go_to_last`], the directory of the last
    /// component.
    pub(crate) fn at(&self) -> &Location {
        &self.at
    }

    /// Returns the bytes of the last component.
    pub(crate) fn name(&self, range: &Range<usize>) -> &[u8] {
        &self.path[range.clone()]
    }

    /// Returns whether slashes follow the last component, which then must be a directory.
    pub(crate) fn has_trailing_slash(&self, range: &Range<usize>) -> bool {
        range.end < self.path.len()
    }

    /// Walks to the directory of the last component, and checks that it may be searched.
    pub(crate) fn go_to_last(&mut self) -> Result<Last> {
        loop {
            let rest = &self.path[self.position..];
            let Some(start) = rest.iter().position(|byte| *byte != b'/') else {
                self.check_end()?;
                return Ok(Last::Root);
            };
            let name = &rest[start..];
            let len = name
                .iter()
                .position(|byte| *byte == b'/')
                .unwrap_or(name.len());
            let is_last = name[len..].iter().all(|byte| *byte == b'/');
            let range = self.position + start..self.position + start + len;
            let name = &name[..len];
            if !self.at.dentry.is_directory() {
                return Err(Errno::NOTDIR.into());
            }
            check_access(
                &**self.at.inode(),
                self.context.credentials,
                Access::EXECUTE,
            )?;
            if let Some(names) = self.at.mount.host_names()
                && self.is_of_host(names, name, is_last)?
            {
                return Err(self.context.elsewhere(&self.at, &self.path[range.start..]));
            }
            match (name, is_last) {
                (b".", true) => return Ok(Last::Dot),
                (b"..", true) => return Ok(Last::DotDot),
                (b".", false) => self.position = range.end,
                (b"..", false) => {
                    self.position = range.end;
                    self.context.vfs.go_up(&mut self.at);
                }
                (_, true) => return Ok(Last::Name(range)),
                (_, false) => self.step(range)?,
            }
        }
    }

    /// Returns whether `name` in the directory reached, which has `names`, belongs to the host.
    fn is_of_host(&self, names: &HostNames, name: &[u8], is_last: bool) -> Result<bool> {
        let directory = &self.at.dentry;
        if *names != HostNames::Rest {
            return Ok(directory.is_root() && names.has_in_root(name));
        }
        if matches!(name, b"." | b"..") {
            return Ok(is_last);
        }
        let child = self.context.child(directory, name)?;
        Ok(child.is_none_or(|child| is_last && !child.is_mountpoint()))
    }

    /// Fails if the directory reached belongs to the host.
    fn check_end(&self) -> Result<()> {
        if self.at.mount.is_hosts() {
            return Err(self.context.elsewhere(&self.at, b""));
        }
        Ok(())
    }

    /// Walks through a component that is not the last.
    fn step(&mut self, range: Range<usize>) -> Result<()> {
        let child = self
            .context
            .child(&self.at.dentry, &self.path[range.clone()])?
            .ok_or(Errno::NOENT)?;
        match child.file_type() {
            FileType::Symlink => self.enter_link(&child, range.end),
            FileType::Directory => {
                self.position = range.end;
                self.at.dentry = child;
                self.context.vfs.enter_mounts(&mut self.at);
                Ok(())
            }
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Replaces the path before `rest` with the target of a link.
    pub(crate) fn enter_link(&mut self, link: &Arc<Dentry>, rest: usize) -> Result<()> {
        if self.links == LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        self.links += 1;
        let mut path = link.inode().read_link()?;
        touch_accessed(&self.at.mount, &**link.inode());
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if path[0] == b'/' {
            self.at = self.context.vfs.root();
        }
        path.extend_from_slice(&self.path[rest..]);
        self.path = Cow::Owned(path);
        self.position = 0;
        Ok(())
    }

    /// Walks to the end of the path.
    pub(crate) fn go_to_end(mut self, last_link: LastLink) -> Result<Location> {
        loop {
            let range = match self.go_to_last()? {
                Last::Root | Last::Dot => return Ok(self.at),
                Last::DotDot => {
                    self.context.vfs.go_up(&mut self.at);
                    self.check_end()?;
                    return Ok(self.at);
                }
                Last::Name(range) => range,
            };
            let must_be_directory = self.has_trailing_slash(&range);
            let child = self
                .context
                .child(&self.at.dentry, self.name(&range))?
                .ok_or(Errno::NOENT)?;
            if child.file_type() == FileType::Symlink
                && (last_link == LastLink::Follow || must_be_directory)
            {
                self.enter_link(&child, range.end)?;
                continue;
            }
            self.at.dentry = child;
            self.context.vfs.enter_mounts(&mut self.at);
            if must_be_directory && !self.at.dentry.is_directory() {
                return Err(Errno::NOTDIR.into());
            }
            return Ok(self.at);
        }
    }
}

impl Context<'_> {
    /// Returns the location of `path`, from `start` if it is relative.
    pub(crate) fn resolve(
        &self,
        start: &Location,
        path: &[u8],
        last_link: LastLink,
    ) -> Result<Location> {
        Walk::new(self, start, path)?.go_to_end(last_link)
    }

    /// Returns the location of `name` in the directory `parent`, if it exists. Follows no link and
    /// stays in the mount.
    pub(crate) fn lookup(&self, parent: &Location, name: &[u8]) -> Result<Option<Location>> {
        self.check_working_directory(parent)?;
        let child = self.child(&parent.dentry, name)?;
        Ok(child.map(|dentry| Location {
            mount: parent.mount.clone(),
            dentry,
        }))
    }

    /// Returns the dentry called `name` in the directory `parent`, from the cache or the file
    /// system.
    pub(crate) fn child(&self, parent: &Arc<Dentry>, name: &[u8]) -> Result<Option<Arc<Dentry>>> {
        match self.vfs.dentries.get(parent, name) {
            Cached::Positive(dentry) => Ok(Some(dentry)),
            Cached::Negative => Ok(None),
            Cached::Unknown => {
                let _lock = parent.inode().common().lock.read();
                self.child_locked(parent, name)
            }
        }
    }

    /// Returns the same as [`Context::child`], for a caller that holds the directory's lock.
    pub(crate) fn child_locked(
        &self,
        parent: &Arc<Dentry>,
        name: &[u8],
    ) -> Result<Option<Arc<Dentry>>> {
        match self.vfs.dentries.get(parent, name) {
            Cached::Positive(dentry) => return Ok(Some(dentry)),
            Cached::Negative => return Ok(None),
            Cached::Unknown => {}
        }
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if parent.is_deleted() {
            return Ok(None);
        }
        let ticket = parent.name_ticket();
        let stored = if parent.folds_names() {
            parent.inode().stored_name(name)?
        } else {
            None
        };
        let name = stored.as_deref().unwrap_or(name);
        match parent.inode().lookup(name)? {
            // A damaged image; it would be locked twice, and its tree has no end. Linux:
            // `d_splice_alias`. An external move may only look like it, and is spliced.
            Some(inode) if parent.validity().is_none() && parent.is_at_or_below(&inode) => {
                Err(Error::new(Errno::LOOP, "the directory contains itself"))
            }
            Some(inode) => Ok(Some(self.vfs.dentries.add(
                parent,
                name,
                Found { inode, ticket },
            ))),
            None => {
                self.vfs.dentries.add_negative(parent, name, ticket);
                Ok(None)
            }
        }
    }

    /// Returns the failure of a walk that reached `at`, whose `rest` belongs to the host.
    #[cold]
    fn elsewhere(&self, at: &Location, rest: &[u8]) -> Error {
        let mut path = match self.path_of(at) {
            Ok(path) => path,
            Err(error) => return error,
        };
        if !rest.is_empty() && path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(rest);
        Error::new(Errno::XDEV, "the path leads to the host").about(Detail::Elsewhere { path })
    }

    /// Returns the absolute path of a directory; ENOENT if it has been removed.
    pub(crate) fn path_of(&self, location: &Location) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = location.clone();
        loop {
            if at.dentry.is_deleted() {
                return Err(Errno::NOENT.into());
            }
            if let Some(parent) = at.dentry.parent() {
                names.push(at.dentry.name());
                at.dentry = parent;
            } else if let Some(covered) = Vfs::covered(&at.mount) {
                at = covered.clone();
            } else {
                break;
            }
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }
}
