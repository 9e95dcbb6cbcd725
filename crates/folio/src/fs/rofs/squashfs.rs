//! The tree of a squashfs, by the crate `backhand`.

use super::device_reader::DeviceReader;
use super::squashfs_xattrs::{NO_XATTRS, XattrTable, error};
use super::tree::{Content, Node, NodeIndex, ROOT, Tree, Xattrs};
use crate::base::{DeviceNumber, Errno, Error, InodeNumber, Result, Timespec};
use crate::block::Device;
use crate::vfs::{Attributes, FileType};
use backhand::v4::inode::InodeInner;
use backhand::{FilesystemReader, Inode, NodeHeader, Squashfs, SquashfsFileReader};
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

/// `f_type` of statfs(2).
const MAGIC: u64 = 0x7371_7368;
/// Bytes that the size of a directory counts for its names `.` and `..`, which are not stored.
const DOT_BYTES: usize = 3;
/// Header of a run of directory entries, and of one entry.
const RUN_HEADER_LEN: usize = 12;
const ENTRY_HEADER_LEN: usize = 8;

/// The data and the extended attributes of the files.
struct SquashfsContent {
    reader: FilesystemReader<'static>,
    xattrs: Option<XattrTable>,
    /// For each node.
    places: Vec<Place>,
}

/// The places of an inode's data, if it is a regular file, and of its extended attributes.
struct Place {
    file: Option<SquashfsFileReader>,
    xattr_id: u32,
}

/// The nodes that are read so far.
struct TreeReader<'a> {
    squashfs: &'a Squashfs<'static>,
    nodes: Vec<Node>,
    places: Vec<Place>,
    inodes: Vec<&'a Inode>,
    /// The node of each inode number.
    indexes: HashMap<u32, NodeIndex>,
}

/// Reads all inodes.
pub(crate) fn read_tree(device: Arc<dyn Device>) -> Result<Tree> {
    let len_bytes = device.len_bytes();
    let squashfs =
        Squashfs::from_reader(DeviceReader::buffered(device.clone())).map_err(|e| error(&e))?;
    let mut tree = TreeReader {
        squashfs: &squashfs,
        nodes: Vec::new(),
        places: Vec::new(),
        inodes: Vec::new(),
        indexes: HashMap::new(),
    };
    tree.add(&squashfs.root_inode, ROOT)?;
    // A directory's own node precedes those of its names.
    let mut index = ROOT;
    while index < tree.nodes.len() {
        tree.directory(index)?;
        index += 1;
    }
    let TreeReader { nodes, places, .. } = tree;
    let xattrs = XattrTable::of(device, &squashfs)?;
    let mut reader = squashfs.into_filesystem_reader().map_err(|e| error(&e))?;
    // Its own list of all files.
    reader.root.nodes = Vec::new();
    Ok(Tree {
        kind: "squashfs",
        magic: MAGIC,
        block_size: reader.block_size,
        len_bytes,
        nodes,
        content: Arc::new(SquashfsContent {
            reader,
            xattrs,
            places,
        }),
    })
}

impl<'a> TreeReader<'a> {
    /// Adds an inode.
    fn add(&mut self, inode: &'a Inode, parent: NodeIndex) -> Result<NodeIndex> {
        let index = self.nodes.len();
        let header = NodeHeader::from_inode(inode.header, &self.squashfs.id);
        let header = header.map_err(|e| error(&e))?;
        let mut node = Node::new(attributes(inode, &header), parent);
        node.target = match &inode.inner {
            InodeInner::BasicSymlink(link) => link.target_path.clone(),
            InodeInner::ExtendedSymlink(link) => link.target_path.clone(),
            _ => Vec::new(),
        };
        self.nodes.push(node);
        self.places.push(place(&inode.inner));
        self.inodes.push(inode);
        self.indexes.insert(inode.header.inode_number, index);
        Ok(index)
    }

    /// Adds the names of a node, if it is a directory, and their inodes.
    fn directory(&mut self, parent: NodeIndex) -> Result<()> {
        let (block, offset, len) = match &self.inodes[parent].inner {
            InodeInner::BasicDirectory(dir) => {
                (dir.block_index, dir.block_offset, dir.file_size.into())
            }
            InodeInner::ExtendedDirectory(dir) => {
                (dir.block_index, dir.block_offset, dir.file_size as usize)
            }
            _ => return Ok(()),
        };
        let Some(len) = len.checked_sub(DOT_BYTES).filter(|len| *len > 0) else {
            return Ok(());
        };
        let (blocks, bytes) = &self.squashfs.dir_blocks;
        let start = blocks.get(&u64::from(block)).copied();
        let start = start.and_then(|start| usize::try_from(start).ok());
        let start = start.ok_or_else(damaged)? + usize::from(offset);
        let entries = bytes.get(start..).and_then(|bytes| bytes.get(..len));
        for (name, number) in parse_entries(entries.ok_or_else(damaged)?)? {
            let inode = self.squashfs.inodes.get(&number).ok_or_else(damaged)?;
            let known = self.indexes.get(&number).copied();
            let is_directory = file_type(&inode.inner) == FileType::Directory;
            if known.is_some() && is_directory {
                // Else a few blocks could be a tree without an end.
                let text = "squashfs: a directory has two names";
                return Err(Error::new(Errno::UCLEAN, text));
            }
            let index = known.map_or_else(|| self.add(inode, parent), Ok)?;
            self.nodes[parent].names.insert(name.to_vec(), index);
        }
        Ok(())
    }
}

/// Returns the names of a directory with their inode numbers. Linux: `squashfs_readdir`.
fn parse_entries(mut bytes: &[u8]) -> Result<Vec<(&[u8], u32)>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let (header, mut rest) = bytes.split_at_checked(RUN_HEADER_LEN).ok_or_else(damaged)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let (last, base) = (word(0), word(8));
        for _ in 0..=last {
            let (entry, after) = rest
                .split_at_checked(ENTRY_HEADER_LEN)
                .ok_or_else(damaged)?;
            let distance = i16::from_le_bytes([entry[2], entry[3]]);
            let name_len = usize::from(u16::from_le_bytes([entry[6], entry[7]])) + 1;
            let (name, after) = after.split_at_checked(name_len).ok_or_else(damaged)?;
            let number = base.checked_add_signed(distance.into());
            if name.contains(&b'/') || name.contains(&0) || matches!(name, b"." | b"..") {
                return Err(damaged());
            }
            entries.push((name, number.ok_or_else(damaged)?));
            rest = after;
        }
        bytes = rest;
    }
    Ok(entries)
}

fn damaged() -> Error {
    Error::new(Errno::UCLEAN, "squashfs: a damaged directory")
}

fn place(inner: &InodeInner) -> Place {
    let file = match inner {
        InodeInner::BasicFile(file) => Some(SquashfsFileReader::Basic(file.clone())),
        InodeInner::ExtendedFile(file) => Some(SquashfsFileReader::Extended(file.clone())),
        _ => None,
    };
    let xattr_id = match inner {
        InodeInner::ExtendedDirectory(inode) => inode.xattr_index,
        InodeInner::ExtendedFile(inode) => inode.xattr_index,
        InodeInner::ExtendedSymlink(inode) => inode.xattr_index,
        InodeInner::ExtendedBlockDevice(inode) | InodeInner::ExtendedCharacterDevice(inode) => {
            inode.xattr_index
        }
        InodeInner::ExtendedNamedPipe(inode) | InodeInner::ExtendedSocket(inode) => {
            inode.xattr_index
        }
        _ => NO_XATTRS,
    };
    Place { file, xattr_id }
}

fn file_type(inner: &InodeInner) -> FileType {
    match inner {
        InodeInner::BasicDirectory(_) | InodeInner::ExtendedDirectory(_) => FileType::Directory,
        InodeInner::BasicFile(_) | InodeInner::ExtendedFile(_) => FileType::Regular,
        InodeInner::BasicSymlink(_) | InodeInner::ExtendedSymlink(_) => FileType::Symlink,
        InodeInner::BasicBlockDevice(_) | InodeInner::ExtendedBlockDevice(_) => {
            FileType::BlockDevice
        }
        InodeInner::BasicCharacterDevice(_) | InodeInner::ExtendedCharacterDevice(_) => {
            FileType::CharacterDevice
        }
        InodeInner::BasicNamedPipe(_) | InodeInner::ExtendedNamedPipe(_) => FileType::Fifo,
        InodeInner::BasicSocket(_) | InodeInner::ExtendedSocket(_) => FileType::Socket,
    }
}

fn attributes(inode: &Inode, header: &NodeHeader) -> Attributes {
    let (link_count, size_bytes, device) = match &inode.inner {
        InodeInner::BasicDirectory(inode) => (inode.link_count, 0, 0),
        InodeInner::ExtendedDirectory(inode) => (inode.link_count, 0, 0),
        InodeInner::BasicFile(inode) => (1, inode.file_size.into(), 0),
        InodeInner::ExtendedFile(inode) => (inode.link_count, inode.file_size, 0),
        InodeInner::BasicSymlink(inode) => (inode.link_count, inode.target_size.into(), 0),
        InodeInner::ExtendedSymlink(inode) => (inode.link_count, inode.target_size.into(), 0),
        InodeInner::BasicBlockDevice(inode) | InodeInner::BasicCharacterDevice(inode) => {
            (inode.link_count, 0, inode.device_number)
        }
        InodeInner::ExtendedBlockDevice(inode) | InodeInner::ExtendedCharacterDevice(inode) => {
            (inode.link_count, 0, inode.device_number)
        }
        InodeInner::BasicNamedPipe(inode) | InodeInner::BasicSocket(inode) => {
            (inode.link_count, 0, 0)
        }
        InodeInner::ExtendedNamedPipe(inode) | InodeInner::ExtendedSocket(inode) => {
            (inode.link_count, 0, 0)
        }
    };
    let modified = Timespec::new(header.mtime.into(), 0);
    Attributes {
        number: InodeNumber(inode.header.inode_number.into()),
        file_type: file_type(&inode.inner),
        mode: header.permissions & 0o7777,
        uid: header.uid,
        gid: header.gid,
        link_count,
        size_bytes,
        blocks_512: size_bytes.div_ceil(512),
        block_size: 4096,
        // include/linux/kdev_t.h, `new_decode_dev`.
        device: DeviceNumber::new(device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00),
        accessed: modified,
        modified,
        changed: modified,
        created: None,
    }
}

impl Content for SquashfsContent {
    fn read_at(&self, node: NodeIndex, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = self.places.get(node).and_then(|place| place.file.as_ref());
        let file = self.reader.file(file.ok_or(Errno::IO)?);
        let mut reader = file.reader_checked().map_err(|e| error(&e))?;
        let read = reader
            .seek(SeekFrom::Start(offset))
            .and_then(|_| reader.read(buf));
        read.map_err(|error| Error::new(Errno::UCLEAN, format!("squashfs: {error}")))
    }

    fn xattrs(&self, node: NodeIndex) -> Result<Xattrs> {
        match (&self.xattrs, self.places.get(node)) {
            (Some(table), Some(place)) if place.xattr_id != NO_XATTRS => table.get(place.xattr_id),
            _ => Ok(Xattrs::new()),
        }
    }
}
