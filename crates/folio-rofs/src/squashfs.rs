//! The tree of a squashfs, by the crate `backhand`.

use crate::device_reader::DeviceReader;
use crate::tree::{Content, Node, NodeIndex, ROOT, Tree};
use backhand::{BackhandError, FilesystemReader, InnerNode, NodeHeader, SquashfsFileReader};
use folio::base::{Errno, Error, InodeNumber, Result, Timespec};
use folio::block::Device;
use folio::vfs::{Attributes, FileType};
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

/// `f_type` of statfs(2).
const MAGIC: u64 = 0x7371_7368;

/// Offset in the superblock of the start of the table of extended attributes, or of !0.
const XATTR_TABLE_OFFSET: u64 = 56;

/// The data of the files, by the index in the reader's own list.
struct SquashfsContent {
    reader: FilesystemReader<'static>,
    /// The index in the reader's list of each node.
    sources: Vec<usize>,
}

/// What two names of one inode have in common: the place of the data, and the attributes.
/// `backhand` does not return the inode number.
#[derive(PartialEq, Eq, Hash)]
struct LinkKey {
    blocks_start: u64,
    fragment: (usize, u32),
    len_bytes: usize,
    link_count: u32,
    header: (u16, u32, u32, u32),
}

/// Reads all inodes.
pub(crate) fn read_tree(device: Arc<dyn Device>) -> Result<Tree> {
    let len_bytes = device.len_bytes();
    let reader =
        FilesystemReader::from_reader(DeviceReader::buffered(device)).map_err(|e| error(&e))?;
    let links = count_links(&reader);
    let mut indexes: HashMap<&Path, NodeIndex> = HashMap::new();
    let mut first_names: HashMap<LinkKey, NodeIndex> = HashMap::new();
    let (mut nodes, mut sources) = (Vec::<Node>::new(), Vec::new());
    for (source, found) in reader.root.nodes.iter().enumerate() {
        let parent = match (found.fullpath.parent(), found.fullpath.file_name()) {
            (Some(above), Some(name)) => {
                let parent = *indexes.get(above).ok_or_else(|| {
                    Error::new(Errno::UCLEAN, "squashfs: a name has no directory")
                })?;
                Some((parent, name.as_bytes().to_vec()))
            }
            _ => None,
        };
        let key = link_key(&found.header, &found.inner)
            .filter(|key| links.get(key) == Some(&key.link_count));
        let first = key.as_ref().and_then(|key| first_names.get(key)).copied();
        let index = first.unwrap_or(nodes.len());
        if let Some((parent, name)) = &parent {
            nodes[*parent].names.insert(name.clone(), index);
        }
        indexes.insert(&found.fullpath, index);
        if first.is_some() {
            continue;
        }
        if let (Some((parent, _)), InnerNode::Dir(_)) = (&parent, &found.inner) {
            // The name ".." of this directory.
            nodes[*parent].attributes.link_count += 1;
        }
        let links = key.as_ref().map_or(1, |key| key.link_count);
        let attributes = attributes(index, &found.header, &found.inner, links);
        let mut node = Node::new(attributes, parent.map_or(ROOT, |(parent, _)| parent));
        if let InnerNode::Symlink(link) = &found.inner {
            node.target = link.link.clone().into_os_string().into_vec();
        }
        nodes.push(node);
        sources.push(source);
        if let Some(key) = key {
            first_names.insert(key, index);
        }
    }
    drop(indexes);
    Ok(Tree {
        kind: "squashfs",
        magic: MAGIC,
        block_size: reader.block_size,
        len_bytes,
        nodes,
        content: Arc::new(SquashfsContent { reader, sources }),
    })
}

/// Whether some inode has extended attributes.
pub(crate) fn has_xattrs(device: &dyn Device) -> Result<bool> {
    let mut start = [0xff; 8];
    if device.len_bytes() >= XATTR_TABLE_OFFSET + 8 {
        device.read_at(&mut start, XATTR_TABLE_OFFSET)?;
    }
    Ok(start != [0xff; 8])
}

/// Counts the names of each inode that has several.
fn count_links(reader: &FilesystemReader<'_>) -> HashMap<LinkKey, u32> {
    let mut counts = HashMap::new();
    for node in reader.files() {
        if let Some(key) = link_key(&node.header, &node.inner) {
            *counts.entry(key).or_default() += 1;
        }
    }
    counts
}

/// Returns the key of a regular file with several names.
fn link_key(header: &NodeHeader, inner: &InnerNode<SquashfsFileReader>) -> Option<LinkKey> {
    let InnerNode::File(SquashfsFileReader::Extended(file)) = inner else {
        return None;
    };
    (file.link_count > 1).then_some(LinkKey {
        blocks_start: file.blocks_start,
        fragment: (file.frag_index as usize, file.block_offset),
        len_bytes: file.file_size as usize,
        link_count: file.link_count,
        header: (header.permissions, header.uid, header.gid, header.mtime),
    })
}

fn attributes(
    index: NodeIndex,
    header: &NodeHeader,
    inner: &InnerNode<SquashfsFileReader>,
    links: u32,
) -> Attributes {
    let (file_type, size_bytes, device) = match inner {
        InnerNode::File(file) => (FileType::Regular, file.file_len() as u64, 0),
        InnerNode::Symlink(link) => (FileType::Symlink, link.link.as_os_str().len() as u64, 0),
        InnerNode::Dir(_) => (FileType::Directory, 0, 0),
        InnerNode::CharacterDevice(node) => (FileType::CharacterDevice, 0, node.device_number),
        InnerNode::BlockDevice(node) => (FileType::BlockDevice, 0, node.device_number),
        InnerNode::NamedPipe => (FileType::Fifo, 0, 0),
        InnerNode::Socket => (FileType::Socket, 0, 0),
    };
    let modified = Timespec::new(header.mtime.into(), 0);
    let is_directory = file_type == FileType::Directory;
    Attributes {
        number: InodeNumber(index as u64 + 1),
        file_type,
        mode: header.permissions & 0o7777,
        uid: header.uid,
        gid: header.gid,
        link_count: if is_directory { 2 } else { links },
        size_bytes,
        blocks_512: size_bytes.div_ceil(512),
        block_size: 4096,
        // include/linux/kdev_t.h, `new_decode_dev`.
        device: (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00),
        accessed: modified,
        modified,
        changed: modified,
        created: None,
    }
}

impl Content for SquashfsContent {
    fn read_at(&self, node: NodeIndex, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let source = self
            .sources
            .get(node)
            .and_then(|at| self.reader.root.nodes.get(*at));
        let Some(InnerNode::File(file)) = source.map(|node| &node.inner) else {
            return Err(Errno::IO.into());
        };
        let file = self.reader.file(file);
        let mut reader = file.reader_checked().map_err(|e| error(&e))?;
        let read = reader
            .seek(SeekFrom::Start(offset))
            .and_then(|_| reader.read(buf));
        read.map_err(|error| Error::new(Errno::UCLEAN, format!("squashfs: {error}")))
    }
}

fn error(error: &BackhandError) -> Error {
    let errno = match error {
        BackhandError::StdIo(_) => Errno::IO,
        BackhandError::UnsupportedCompression(_)
        | BackhandError::UnsupportedSquashfsVersion(..) => Errno::OPNOTSUPP,
        _ => Errno::UCLEAN,
    };
    Error::new(errno, format!("squashfs: {error}"))
}
