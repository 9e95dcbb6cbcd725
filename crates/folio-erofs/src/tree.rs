//! The tree of an image in memory: names and attributes, with the places of contents.

use crate::content::Content;
use crate::xattr::XattrId;
use folio::base::DeviceNumber;
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error, Result, Timespec};
use std::collections::BTreeMap;

/// Identifies a node.
pub(crate) type NodeId = usize;

/// The top of the tree.
pub(crate) const ROOT: NodeId = 0;

/// What an inode will have.
pub(crate) struct Node {
    pub(crate) file_type: FileType,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Timespec,
    pub(crate) xattrs: Vec<XattrId>,
    pub(crate) body: Body,
}

/// What a file consists of.
pub(crate) enum Body {
    File(Content),
    Directory(Directory),
    Symlink(Vec<u8>),
    Special(DeviceNumber),
}

/// The names in a directory.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    pub(crate) parent: NodeId,
    pub(crate) names: BTreeMap<Vec<u8>, NodeId>,
}

/// All files of an image.
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
}

impl Node {
    pub(crate) fn new(attributes: &Attributes, xattrs: Vec<XattrId>, body: Body) -> Self {
        let mut node = Self {
            file_type: attributes.file_type,
            mode: 0,
            uid: 0,
            gid: 0,
            modified: Timespec::default(),
            xattrs: Vec::new(),
            body,
        };
        node.set(attributes, xattrs);
        node
    }

    /// Sets the attributes.
    pub(crate) fn set(&mut self, attributes: &Attributes, xattrs: Vec<XattrId>) {
        self.mode = attributes.mode;
        self.uid = attributes.uid;
        self.gid = attributes.gid;
        self.modified = attributes.modified;
        self.xattrs = xattrs;
    }

    fn directory(&self) -> Option<&Directory> {
        match &self.body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }
}

impl Tree {
    /// Creates a tree whose root belongs to user 0.
    pub(crate) fn new(created: Timespec) -> Self {
        let body = Body::Directory(Directory::default());
        let root = Node {
            file_type: FileType::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            modified: created,
            xattrs: Vec::new(),
            body,
        };
        Self { nodes: vec![root] }
    }

    /// Returns the names in a directory.
    ///
    /// # Errors
    ///
    /// ENOTDIR.
    pub(crate) fn directory(&self, id: NodeId) -> Result<&Directory> {
        Ok(self.nodes[id].directory().ok_or(Errno::NOTDIR)?)
    }

    fn names_mut(&mut self, id: NodeId) -> Result<&mut BTreeMap<Vec<u8>, NodeId>> {
        match &mut self.nodes[id].body {
            Body::Directory(directory) => Ok(&mut directory.names),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Returns the node at a path from the root.
    ///
    /// # Errors
    ///
    /// ENOENT, ENOTDIR.
    pub(crate) fn find(&self, path: &[u8]) -> Result<NodeId> {
        let parts = path.split(|byte| *byte == b'/');
        let mut parts = parts.filter(|part| !matches!(*part, b"" | b"."));
        parts.try_fold(ROOT, |at, name| {
            let found = self.directory(at)?.names.get(name);
            Ok(*found.ok_or(Errno::NOENT)?)
        })
    }

    /// Gives a node a name, which another file may have had.
    ///
    /// # Errors
    ///
    /// EISDIR: a directory has the name; EINVAL for what is not one name; ENAMETOOLONG.
    pub(crate) fn link(&mut self, at: NodeId, name: &[u8], id: NodeId) -> Result<()> {
        if name.len() > 255 {
            return Err(Errno::NAMETOOLONG.into());
        }
        let is_own = matches!(name, b"." | b"..");
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        let found = self.directory(at)?.names.get(name);
        if is_own || found.is_some_and(|found| self.nodes[*found].directory().is_some()) {
            let reason = "cannot overwrite a directory with a non-directory";
            return Err(Error::new(Errno::ISDIR, reason));
        }
        self.names_mut(at)?.insert(name.to_vec(), id);
        Ok(())
    }

    /// Adds a node with a name.
    ///
    /// # Errors
    ///
    /// As [`Tree::link`].
    pub(crate) fn add(&mut self, at: NodeId, name: &[u8], node: Node) -> Result<NodeId> {
        let id = self.nodes.len();
        self.link(at, name, id)?;
        self.nodes.push(node);
        Ok(id)
    }

    /// Removes the name of a file.
    pub(crate) fn unlink(&mut self, at: NodeId, name: &[u8]) {
        if let Ok(names) = self.names_mut(at) {
            names.remove(name);
        }
    }

    /// Returns all nodes that have names, each directory before what is in it, and the number of
    /// names of each node.
    pub(crate) fn walk(&self) -> (Vec<NodeId>, Vec<u32>) {
        let mut counts = vec![0; self.nodes.len()];
        let (mut order, mut pending) = (Vec::new(), vec![ROOT]);
        while let Some(id) = pending.pop() {
            let Some(directory) = self.nodes[id].directory() else {
                counts[id] += 1;
                if counts[id] == 1 {
                    order.push(id);
                }
                continue;
            };
            order.push(id);
            // Its name and `.`; `..` of each directory in it.
            counts[id] += 2;
            if id != ROOT {
                counts[directory.parent] += 1;
            }
            pending.extend(directory.names.values().rev());
        }
        (order, counts)
    }
}
