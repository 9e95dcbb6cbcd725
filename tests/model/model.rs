//! The model: a minimal file system, with nodes and bytes in vectors.
//!
//! Acts as the superuser with umask 0, and returns Linux's errnos.

use crate::operation::{HELD, Operation};
use folio::Errno;
use folio::vfs::{FallocateMode, RenameFlags};
use std::collections::BTreeMap;

type Answer<T> = Result<T, Errno>;

/// A file, directory or link.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u32,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The modification time in seconds, if it was set and the contents have not changed since.
    pub(crate) modified: Option<i64>,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    File(Vec<u8>),
    Directory {
        names: BTreeMap<String, usize>,
        parent: usize,
    },
    Link(String),
}

/// The tree; node 0 is the root.
pub(crate) struct Model {
    pub(crate) nodes: Vec<Node>,
    held: [Option<usize>; HELD],
    /// The unit in bytes by which the file system moves ranges (`CollapseRange`, `InsertRange`).
    block_size: Option<u64>,
}

enum Last {
    Name(String),
    Dot,
    DotDot,
}

/// A directory, the last component in it, and whether a slash follows it.
struct Place {
    directory: usize,
    last: Last,
    has_slash: bool,
}

const ROOT: usize = 0;

impl Model {
    pub(crate) fn new(block_size: Option<u64>) -> Self {
        let root = Self::node(
            Kind::Directory {
                names: BTreeMap::new(),
                parent: ROOT,
            },
            0o755,
        );
        Self {
            nodes: vec![root],
            held: [None; HELD],
            block_size,
        }
    }

    fn node(kind: Kind, mode: u16) -> Node {
        let links = if matches!(kind, Kind::Directory { .. }) {
            2
        } else {
            1
        };
        Node {
            kind,
            mode,
            uid: 0,
            gid: 0,
            links,
            xattrs: BTreeMap::new(),
            modified: None,
        }
    }

    /// Runs one operation; returns the data read, or the errno.
    pub(crate) fn apply(&mut self, operation: &Operation) -> Answer<Vec<u8>> {
        let nothing = |()| Vec::new();
        match operation {
            Operation::Mkdir(path, mode) => {
                let kind = Kind::Directory {
                    names: BTreeMap::new(),
                    parent: ROOT,
                };
                self.make(path, kind, mode & 0o1777).map(nothing)
            }
            Operation::Symlink(target, path) => self
                .make(path, Kind::Link(target.clone()), 0o777)
                .map(nothing),
            Operation::Create(path, mode, exclusive) => {
                self.create(path, *mode, *exclusive).map(nothing)
            }
            Operation::Rmdir(path) => self.rmdir(path).map(nothing),
            Operation::Unlink(path) => self.unlink(path).map(nothing),
            Operation::Rename(from, to, flags) => self.rename(from, to, *flags).map(nothing),
            Operation::Link(from, to) => self.link(from, to).map(nothing),
            Operation::Readlink(path) => match &self.nodes[self.find(path, false)?].kind {
                Kind::Link(target) => Ok(target.clone().into_bytes()),
                _ => Err(Errno::INVAL),
            },
            Operation::Chmod(path, mode) => {
                let at = self.find(path, true)?;
                self.nodes[at].mode = *mode;
                Ok(Vec::new())
            }
            Operation::Chown(path, uid, gid) => self.chown(path, *uid, *gid).map(nothing),
            Operation::SetModified(path, secs) => {
                let at = self.find(path, true)?;
                self.nodes[at].modified = Some(*secs);
                Ok(Vec::new())
            }
            Operation::SetXattr(path, name, len) => {
                let at = self.find(path, true)?;
                self.nodes[at]
                    .xattrs
                    .insert(xattr_name(*name), vec![*name; *len]);
                Ok(Vec::new())
            }
            Operation::RemoveXattr(path, name) => {
                let at = self.find(path, true)?;
                let removed = self.nodes[at].xattrs.remove(&xattr_name(*name));
                removed.map(|_| Vec::new()).ok_or(Errno::NODATA)
            }
            Operation::Fsync(path) => self.find(path, true).map(|_| Vec::new()),
            Operation::Sync | Operation::Check => Ok(Vec::new()),
            data => self.apply_data(data),
        }
    }

    fn apply_data(&mut self, operation: &Operation) -> Answer<Vec<u8>> {
        match operation {
            Operation::Write(path, offset, len, byte) => {
                let at = self.find_writable(path)?;
                self.write(at, *offset, *len, *byte);
            }
            Operation::Append(path, len, byte) => {
                let at = self.find_writable(path)?;
                let end = self.bytes(at).len() as u64;
                self.write(at, end, *len, *byte);
            }
            Operation::Read(path) => {
                let at = self.find(path, true)?;
                return match &self.nodes[at].kind {
                    Kind::File(bytes) => Ok(bytes.clone()),
                    _ => Err(Errno::ISDIR),
                };
            }
            Operation::Truncate(path, size) => {
                let at = self.find_writable(path)?;
                if self.bytes(at).len() as u64 != *size {
                    self.nodes[at].modified = None;
                }
                self.bytes_mut(at).resize(*size as usize, 0);
            }
            Operation::Fallocate(path, mode, offset, len) => {
                let at = self.find_writable(path)?;
                self.fallocate(at, *mode, *offset as usize, *len as usize)?;
            }
            Operation::Hold(slot, path) => self.held[*slot] = Some(self.find_writable(path)?),
            Operation::WriteHeld(slot, offset, len, byte) => {
                let at = self.held[*slot].ok_or(Errno::BADF)?;
                self.write(at, *offset, *len, *byte);
            }
            Operation::ReadHeld(slot) => {
                let at = self.held[*slot].ok_or(Errno::BADF)?;
                return Ok(self.bytes(at).to_vec());
            }
            Operation::CloseHeld(slot) => {
                self.held[*slot].take().ok_or(Errno::BADF)?;
            }
            _ => unreachable!("not about data"),
        }
        Ok(Vec::new())
    }

    // Paths

    fn names(&self, directory: usize) -> Answer<&BTreeMap<String, usize>> {
        match &self.nodes[directory].kind {
            Kind::Directory { names, .. } => Ok(names),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn names_mut(&mut self, directory: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.nodes[directory].kind {
            Kind::Directory { names, .. } => names,
            _ => unreachable!("looked up as a directory"),
        }
    }

    fn parent(&self, directory: usize) -> usize {
        match &self.nodes[directory].kind {
            Kind::Directory { parent, .. } => *parent,
            _ => unreachable!("looked up as a directory"),
        }
    }

    fn is_directory(&self, at: usize) -> bool {
        matches!(self.nodes[at].kind, Kind::Directory { .. })
    }

    fn child(&self, directory: usize, name: &str) -> Answer<Option<usize>> {
        Ok(self.names(directory)?.get(name).copied())
    }

    /// Walks one component, following links.
    fn enter(&self, directory: usize, name: &str, links: &mut u32) -> Answer<usize> {
        match name {
            "." => self.names(directory).map(|_| directory),
            ".." => self.names(directory).map(|_| self.parent(directory)),
            name => {
                let at = self.child(directory, name)?.ok_or(Errno::NOENT)?;
                self.follow(directory, at, links)
            }
        }
    }

    fn follow(&self, directory: usize, at: usize, links: &mut u32) -> Answer<usize> {
        let Kind::Link(target) = &self.nodes[at].kind else {
            return Ok(at);
        };
        *links += 1;
        if *links > 40 {
            return Err(Errno::LOOP);
        }
        let mut at = directory;
        for name in target.split('/') {
            at = self.enter(at, name, links)?;
        }
        Ok(at)
    }

    fn place(&self, path: &str, links: &mut u32) -> Answer<Place> {
        self.place_from(ROOT, path, links)
    }

    fn place_from(&self, start: usize, path: &str, links: &mut u32) -> Answer<Place> {
        let trimmed = path.trim_end_matches('/');
        let mut names: Vec<_> = trimmed.split('/').collect();
        let last = names.pop().unwrap_or_default();
        let mut directory = start;
        for name in names {
            directory = self.enter(directory, name, links)?;
        }
        self.names(directory)?;
        let last = match last {
            "." => Last::Dot,
            ".." => Last::DotDot,
            name => Last::Name(name.to_owned()),
        };
        Ok(Place {
            directory,
            last,
            has_slash: path.len() > trimmed.len(),
        })
    }

    fn find(&self, path: &str, follows: bool) -> Answer<usize> {
        let mut links = 0;
        let place = self.place(path, &mut links)?;
        let name = match place.last {
            Last::Dot => return Ok(place.directory),
            Last::DotDot => return Ok(self.parent(place.directory)),
            Last::Name(name) => name,
        };
        let mut at = self.child(place.directory, &name)?.ok_or(Errno::NOENT)?;
        if follows || place.has_slash {
            at = self.follow(place.directory, at, &mut links)?;
        }
        if place.has_slash {
            self.names(at).map(|_| at)
        } else {
            Ok(at)
        }
    }

    fn find_writable(&self, path: &str) -> Answer<usize> {
        let at = self.find(path, true)?;
        if self.is_directory(at) {
            Err(Errno::ISDIR)
        } else {
            Ok(at)
        }
    }

    // Names

    fn make(&mut self, path: &str, kind: Kind, mode: u16) -> Answer<()> {
        let place = self.place(path, &mut 0)?;
        let Last::Name(name) = place.last else {
            return Err(Errno::EXIST);
        };
        if self.child(place.directory, &name)?.is_some() {
            return Err(Errno::EXIST);
        }
        if place.has_slash && !matches!(kind, Kind::Directory { .. }) {
            return Err(Errno::NOENT);
        }
        self.add(place.directory, name, kind, mode);
        Ok(())
    }

    fn add(&mut self, directory: usize, name: String, mut kind: Kind, mut mode: u16) -> usize {
        let is_directory = matches!(kind, Kind::Directory { .. });
        if let Kind::Directory { parent, .. } = &mut kind {
            *parent = directory;
            self.nodes[directory].links += 1;
        }
        let inherits = self.nodes[directory].mode & 0o2000 != 0;
        if inherits && is_directory {
            mode |= 0o2000;
        }
        let at = self.nodes.len();
        let mut node = Self::node(kind, mode);
        if inherits {
            node.gid = self.nodes[directory].gid;
        }
        self.nodes.push(node);
        self.names_mut(directory).insert(name, at);
        self.nodes[directory].modified = None;
        at
    }

    fn create(&mut self, path: &str, mode: u16, exclusive: bool) -> Answer<()> {
        let mut links = 0;
        let mut place = self.place(path, &mut links)?;
        loop {
            let Last::Name(name) = &place.last else {
                return Err(if exclusive {
                    Errno::EXIST
                } else {
                    Errno::ISDIR
                });
            };
            if place.has_slash {
                return Err(Errno::ISDIR);
            }
            let Some(at) = self.child(place.directory, name)? else {
                self.add(place.directory, name.clone(), Kind::File(Vec::new()), mode);
                return Ok(());
            };
            if exclusive {
                return Err(Errno::EXIST);
            }
            match &self.nodes[at].kind {
                Kind::File(_) => return Ok(()),
                Kind::Directory { .. } => return Err(Errno::ISDIR),
                Kind::Link(target) => {
                    links += 1;
                    if links > 40 {
                        return Err(Errno::LOOP);
                    }
                    place = self.place_from(place.directory, target, &mut links)?;
                }
            }
        }
    }

    fn drop_name(&mut self, directory: usize, name: &str) {
        if let Some(at) = self.names_mut(directory).remove(name) {
            self.nodes[directory].modified = None;
            self.lose_name(directory, at);
        }
    }

    fn lose_name(&mut self, directory: usize, at: usize) {
        if self.is_directory(at) {
            self.nodes[directory].links -= 1;
            self.nodes[at].links = 0;
        } else {
            self.nodes[at].links -= 1;
        }
    }

    fn rmdir(&mut self, path: &str) -> Answer<()> {
        let place = self.place(path, &mut 0)?;
        let name = match place.last {
            Last::Dot => return Err(Errno::INVAL),
            Last::DotDot => return Err(Errno::NOTEMPTY),
            Last::Name(name) => name,
        };
        let at = self.child(place.directory, &name)?.ok_or(Errno::NOENT)?;
        if !self.names(at)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.drop_name(place.directory, &name);
        Ok(())
    }

    fn unlink(&mut self, path: &str) -> Answer<()> {
        let place = self.place(path, &mut 0)?;
        let Last::Name(name) = place.last else {
            return Err(Errno::ISDIR);
        };
        let at = self.child(place.directory, &name)?.ok_or(Errno::NOENT)?;
        if self.is_directory(at) {
            return Err(Errno::ISDIR);
        }
        if place.has_slash {
            return Err(Errno::NOTDIR);
        }
        self.drop_name(place.directory, &name);
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str) -> Answer<()> {
        let at = self.find(from, false)?;
        let place = self.place(to, &mut 0)?;
        let Last::Name(name) = place.last else {
            return Err(Errno::EXIST);
        };
        if self.child(place.directory, &name)?.is_some() {
            return Err(Errno::EXIST);
        }
        if place.has_slash {
            return Err(Errno::NOENT);
        }
        if self.is_directory(at) {
            return Err(Errno::PERM);
        }
        self.nodes[at].links += 1;
        self.names_mut(place.directory).insert(name, at);
        self.nodes[place.directory].modified = None;
        Ok(())
    }

    /// Returns whether `above` is `at` or an ancestor of it.
    fn is_above(&self, above: usize, mut at: usize) -> bool {
        while at != above && at != ROOT {
            at = self.parent(at);
        }
        at == above
    }

    fn rename(&mut self, from: &str, to: &str, flags: RenameFlags) -> Answer<()> {
        let (exchange, no_replace) = (
            flags.contains(RenameFlags::EXCHANGE),
            flags.contains(RenameFlags::NOREPLACE),
        );
        let old = self.place(from, &mut 0)?;
        let new = self.place(to, &mut 0)?;
        let Last::Name(old_name) = old.last else {
            return Err(Errno::BUSY);
        };
        let Last::Name(new_name) = new.last else {
            return Err(if no_replace {
                Errno::EXIST
            } else {
                Errno::BUSY
            });
        };
        let source = self.child(old.directory, &old_name)?.ok_or(Errno::NOENT)?;
        let target = self.child(new.directory, &new_name)?;
        let is_directory = self.is_directory(source);
        let target_is_directory = target.is_some_and(|target| self.is_directory(target));
        if no_replace && target.is_some() {
            return Err(Errno::EXIST);
        }
        if exchange && target.is_none() {
            return Err(Errno::NOENT);
        }
        if exchange && new.has_slash && !target_is_directory {
            return Err(Errno::NOTDIR);
        }
        if !is_directory && (old.has_slash || (!exchange && new.has_slash)) {
            return Err(Errno::NOTDIR);
        }
        if is_directory && self.is_above(source, new.directory) {
            return Err(Errno::INVAL);
        }
        if let Some(target) = target {
            if target_is_directory && self.is_above(target, old.directory) {
                return Err(if exchange {
                    Errno::INVAL
                } else {
                    Errno::NOTEMPTY
                });
            }
            if source == target {
                return Ok(());
            }
            if !exchange {
                if is_directory && !target_is_directory {
                    return Err(Errno::NOTDIR);
                }
                if target_is_directory && !is_directory {
                    return Err(Errno::ISDIR);
                }
                if target_is_directory && !self.names(target)?.is_empty() {
                    return Err(Errno::NOTEMPTY);
                }
                self.drop_name(new.directory, &new_name);
            }
        }
        self.names_mut(old.directory).remove(&old_name);
        self.put(old.directory, new.directory, new_name, source);
        if let (true, Some(target)) = (exchange, target) {
            self.put(new.directory, old.directory, old_name, target);
        }
        Ok(())
    }

    fn put(&mut self, from: usize, to: usize, name: String, at: usize) {
        self.names_mut(to).insert(name, at);
        if let Kind::Directory { parent, .. } = &mut self.nodes[at].kind {
            *parent = to;
            self.nodes[from].links -= 1;
            self.nodes[to].links += 1;
        }
        self.nodes[from].modified = None;
        self.nodes[to].modified = None;
    }

    // Attributes and data

    fn chown(&mut self, path: &str, uid: Option<u32>, gid: Option<u32>) -> Answer<()> {
        let at = self.find(path, true)?;
        let is_directory = self.is_directory(at);
        let node = &mut self.nodes[at];
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        if !is_directory {
            node.mode &= !0o4000;
            if node.mode & 0o010 != 0 {
                node.mode &= !0o2000;
            }
        }
        Ok(())
    }

    fn bytes(&self, at: usize) -> &[u8] {
        match &self.nodes[at].kind {
            Kind::File(bytes) => bytes,
            _ => unreachable!("opened as a file"),
        }
    }

    fn bytes_mut(&mut self, at: usize) -> &mut Vec<u8> {
        match &mut self.nodes[at].kind {
            Kind::File(bytes) => bytes,
            _ => unreachable!("opened as a file"),
        }
    }

    fn write(&mut self, at: usize, offset: u64, len: usize, byte: u8) {
        if len == 0 {
            return;
        }
        self.nodes[at].modified = None;
        let (start, bytes) = (offset as usize, self.bytes_mut(at));
        let end = start + len;
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].fill(byte);
    }

    fn fallocate(
        &mut self,
        at: usize,
        mode: FallocateMode,
        offset: usize,
        len: usize,
    ) -> Answer<()> {
        use FallocateMode::{
            Allocate, CollapseRange, InsertRange, PunchHole, ZeroRange, ZeroRangeKeepSize,
        };
        if matches!(mode, CollapseRange | InsertRange) {
            let block_size = self.block_size.ok_or(Errno::OPNOTSUPP)?;
            let size = self.bytes(at).len();
            let last = if mode == CollapseRange {
                offset + len
            } else {
                offset
            };
            if !((offset | len) as u64).is_multiple_of(block_size) || last >= size {
                return Err(Errno::INVAL);
            }
        }
        // A file system may or may not set the time when nothing changes.
        self.nodes[at].modified = None;
        let bytes = self.bytes_mut(at);
        let end = offset + len;
        if matches!(mode, Allocate | ZeroRange) {
            bytes.resize(bytes.len().max(end), 0);
        }
        let end = end.min(bytes.len());
        match mode {
            PunchHole | ZeroRange | ZeroRangeKeepSize if offset < end => bytes[offset..end].fill(0),
            CollapseRange => drop(bytes.drain(offset..end)),
            InsertRange => drop(bytes.splice(offset..offset, std::iter::repeat_n(0, len))),
            _ => {}
        }
        Ok(())
    }
}

/// Returns the attribute name for a number.
pub(crate) fn xattr_name(name: u8) -> Vec<u8> {
    let names = ["user.a", "user.longer_name", "trusted.b", "security.c"];
    names[name as usize % names.len()].as_bytes().to_vec()
}
