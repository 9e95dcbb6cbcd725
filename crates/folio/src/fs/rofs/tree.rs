//! All inodes of a read-only file system, in memory, as the VFS sees them.

use super::panics::without_panic;
use crate::base::{Errno, Error, InodeNumber, Result};
use crate::cache::{Mapping, PageCache, Store};
use crate::vfs::Credentials;
use crate::vfs::{
    AttributeChange, Attributes, DirectoryEntry, FileOperations, FileSystem, FileSystemStatistics,
    FileType, Inode, InodeCommon, NewInode, RenameRequest, SeekKind,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock, Weak};

/// Longest name in bytes.
const NAME_MAX: u32 = 255;

/// The index of a node in its tree. The root is 0.
pub(crate) type NodeIndex = usize;

/// The index of the root.
pub(crate) const ROOT: NodeIndex = 0;

/// Names and values of extended attributes.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What is read on demand: the data of regular files, and extended attributes.
pub(crate) trait Content: Send + Sync {
    /// Fills `buf` from byte `offset` of the file; returns fewer bytes at its end.
    fn read_at(&self, node: NodeIndex, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Returns the extended attributes of an inode.
    fn xattrs(&self, node: NodeIndex) -> Result<Xattrs>;
}

/// An inode as the reader of an image found it.
pub(crate) struct Node {
    pub(crate) attributes: Attributes,
    /// The names of a directory.
    pub(crate) names: BTreeMap<Vec<u8>, NodeIndex>,
    /// The directory above, of a directory.
    pub(crate) parent: NodeIndex,
    /// The target of a symbolic link.
    pub(crate) target: Vec<u8>,
}

/// All inodes of an image.
pub(crate) struct Tree {
    pub(crate) kind: &'static str,
    /// `f_type` of statfs(2).
    pub(crate) magic: u64,
    pub(crate) block_size: u32,
    pub(crate) len_bytes: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) content: Arc<dyn Content>,
}

struct Mounted {
    tree: Tree,
    inodes: OnceLock<Vec<Arc<TreeInode>>>,
}

struct TreeInode {
    common: InodeCommon,
    index: NodeIndex,
    mounted: Weak<Mounted>,
    /// Keeps the store of the mapping.
    _store: Option<Arc<ContentStore>>,
}

/// The pages of a file come from here.
struct ContentStore {
    content: Arc<dyn Content>,
    node: NodeIndex,
    size_bytes: u64,
}

impl Node {
    pub(crate) fn new(attributes: Attributes, parent: NodeIndex) -> Self {
        Self {
            attributes,
            names: BTreeMap::new(),
            parent,
            target: Vec::new(),
        }
    }
}

impl Tree {
    /// Makes the tree a file system whose pages are in `cache`.
    pub(crate) fn mount(self, cache: &Arc<PageCache>) -> Arc<dyn FileSystem> {
        let writeback = cache.writeback();
        let mounted = Arc::new(Mounted {
            tree: self,
            inodes: OnceLock::new(),
        });
        let tree = &mounted.tree;
        let inodes = tree.nodes.iter().enumerate().map(|(index, node)| {
            let attributes = &node.attributes;
            let store = (attributes.file_type == FileType::Regular).then(|| {
                Arc::new(ContentStore {
                    content: tree.content.clone(),
                    node: index,
                    size_bytes: attributes.size_bytes,
                })
            });
            let mapping = store.as_ref().map(|store| {
                let weak = Arc::downgrade(store) as Weak<dyn Store>;
                Mapping::new(&writeback, weak, attributes.size_bytes)
            });
            Arc::new(TreeInode {
                common: InodeCommon::new(attributes, mapping),
                index,
                mounted: Arc::downgrade(&mounted),
                _store: store,
            })
        });
        let inodes = inodes.collect();
        // Empty until here.
        let _ = mounted.inodes.set(inodes);
        mounted
    }
}

impl Mounted {
    fn inode(&self, index: NodeIndex) -> Option<Arc<TreeInode>> {
        self.inodes.get()?.get(index).cloned()
    }
}

impl FileSystem for Mounted {
    fn kind(&self) -> &'static str {
        self.tree.kind
    }

    #[expect(clippy::expect_used, reason = "a tree has a root")]
    fn root(&self) -> Arc<dyn Inode> {
        self.inode(ROOT).expect("a tree has a root")
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        Ok(FileSystemStatistics {
            magic: self.tree.magic,
            block_size: self.tree.block_size,
            blocks: self.tree.len_bytes.div_ceil(self.tree.block_size.into()),
            inodes: self.tree.nodes.len() as u64,
            name_max: NAME_MAX,
            ..FileSystemStatistics::default()
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

impl TreeInode {
    fn mounted(&self) -> Result<Arc<Mounted>> {
        // The file system is unmounted.
        Ok(self.mounted.upgrade().ok_or(Errno::IO)?)
    }

    fn with_node<T>(&self, work: impl FnOnce(&Mounted, &Node) -> Result<T>) -> Result<T> {
        let mounted = self.mounted()?;
        let node = mounted.tree.nodes.get(self.index).ok_or(Errno::IO)?;
        work(&mounted, node)
    }

    fn xattrs(&self) -> Result<Xattrs> {
        let mounted = self.mounted()?;
        without_panic(|| mounted.tree.content.xattrs(self.index))
    }

    fn with_directory<T>(&self, work: impl FnOnce(&Mounted, &Node) -> Result<T>) -> Result<T> {
        self.with_node(|mounted, node| match node.attributes.file_type {
            FileType::Directory => work(mounted, node),
            _ => Err(Errno::NOTDIR.into()),
        })
    }
}

impl Inode for TreeInode {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn file_operations(&self) -> Option<&dyn FileOperations> {
        (self.common.file_type == FileType::Regular).then_some(self)
    }

    fn set_attributes(&self, _: &Credentials, _: &AttributeChange) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        self.with_directory(|mounted, node| {
            let inode = node.names.get(name).and_then(|index| mounted.inode(*index));
            Ok(inode.map(|inode| inode as Arc<dyn Inode>))
        })
    }

    fn create(&self, _: &Credentials, _: &[u8], _: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        Err(Errno::ROFS.into())
    }

    fn rename(&self, _: &RenameRequest<'_>) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.with_directory(|mounted, node| {
            let dots: [(&[u8], NodeIndex); 2] = [(b".", self.index), (b"..", node.parent)];
            let names = node.names.iter().map(|(name, index)| (&**name, *index));
            let all = dots.into_iter().chain(names).zip(1..);
            let skipped = usize::try_from(cookie).unwrap_or(usize::MAX);
            for ((name, index), next_cookie) in all.skip(skipped) {
                let attributes = &mounted.tree.nodes[index].attributes;
                let entry = DirectoryEntry {
                    name,
                    number: attributes.number,
                    file_type: Some(attributes.file_type),
                    next_cookie,
                };
                if sink(&entry).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }

    fn parent_number(&self) -> Result<InodeNumber> {
        self.with_directory(|mounted, node| Ok(mounted.tree.nodes[node.parent].attributes.number))
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.with_node(|_, node| match node.attributes.file_type {
            FileType::Symlink => Ok(node.target.clone()),
            _ => Err(Errno::INVAL.into()),
        })
    }

    fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.xattrs()?.remove(name))
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self.xattrs()?.into_keys().collect())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FileOperations for TreeInode {
    fn write_begin(&self, _: &Credentials, _: u64, _: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn write_end(&self, _: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    /// Holes are not known.
    fn seek(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        let size = self.common.attributes().size_bytes;
        Ok((offset < size).then_some(match kind {
            SeekKind::Data => offset,
            SeekKind::Hole => size,
        }))
    }
}

impl Store for ContentStore {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let left = self.size_bytes.saturating_sub(offset);
        let wanted = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut bytes = vec![0; len];
        let mut filled = 0;
        // One call for all pages: the readers decompress a whole block for each.
        while filled < wanted {
            let (at, rest) = (offset + filled as u64, &mut bytes[filled..wanted]);
            let count = without_panic(|| self.content.read_at(self.node, at, rest))?;
            if count == 0 {
                return Err(Error::new(Errno::UCLEAN, "the data of a file ends early"));
            }
            filled += count;
        }
        let mut rest = &*bytes;
        for buf in bufs {
            let (head, tail) = rest.split_at(buf.len());
            buf.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn write_pages(&self, _: u64, _: &[IoSlice<'_>]) -> Result<()> {
        Err(Errno::ROFS.into())
    }
}
