//! The tree of an erofs, by the crate `erofs-rs`.

use super::tree::{Content, Node, NodeIndex, ROOT, Tree, Xattrs};
use crate::base::{DeviceNumber, Errno, Error, InodeNumber, Result, Timespec};
use crate::block::Device;
use crate::vfs::{Attributes, FileType};
use erofs_rs::r#async::EroFS;
use erofs_rs::backend::AsyncImage;
use erofs_rs::types::{Inode, Layout};
use rustix::fs::FileType as RawType;
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// `f_type` of statfs(2).
const MAGIC: u64 = 0xE0F5_E1E2;

/// Bytes of a compressed file for each byte of the device, at most: more than any compressor of
/// erofs reaches.
const MAX_COMPRESSION: u64 = 1 << 17;

/// The device as the crate reads it. Its reads never wait for another future.
struct DeviceImage(Arc<dyn Device>);

impl AsyncImage for DeviceImage {
    async fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> erofs_rs::Result<()> {
        let read = self.0.read_at(buf, offset);
        read.map_err(|error| erofs_rs::Error::Io(std::io::Error::other(error)))
    }
}

struct ErofsContent {
    reader: EroFS<DeviceImage>,
    /// The inode of each node.
    inodes: Vec<Inode>,
}

/// Returns the result of a future that never waits.
fn ready<T>(future: impl Future<Output = erofs_rs::Result<T>>) -> Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result.map_err(|e| error(&e)),
        Poll::Pending => Err(Error::new(Errno::IO, "erofs: a read waits")),
    }
}

/// Reads all inodes.
pub(crate) fn read_tree(device: Arc<dyn Device>) -> Result<Tree> {
    let len_bytes = device.len_bytes();
    let reader = ready(EroFS::new(DeviceImage(device)))?;
    let block_size = 1u32
        .checked_shl(reader.super_block().blk_size_bits.into())
        .ok_or(Errno::UCLEAN)?;
    let root = ready(reader.get_inode(reader.super_block().root_inode_id()))?;
    let mut nodes = vec![node(&reader, len_bytes, ROOT, root, ROOT)?];
    let mut inodes = vec![root];
    // The index of each inode, and of the directory at each depth.
    let mut indexes = HashMap::from([(root.id(), ROOT)]);
    let mut above = vec![ROOT];
    let mut walk = ready(reader.walk_dir("/"))?;
    while let Some(entry) = ready(async { walk.next_entry().await.transpose() })? {
        above.truncate(entry.depth);
        let parent = *above.last().ok_or(Errno::UCLEAN)?;
        let inode = entry.inode;
        let known = indexes.get(&inode.id()).copied();
        if known.is_some() && inode.is_dir() {
            // Else a few blocks could be a tree without an end.
            let text = "erofs: a directory has two names";
            return Err(Error::new(Errno::UCLEAN, text));
        }
        let index = known.unwrap_or(nodes.len());
        nodes[parent]
            .names
            .insert(entry.dir_entry.file_name().to_vec(), index);
        if known.is_some() {
            continue;
        }
        nodes.push(node(&reader, len_bytes, index, inode, parent)?);
        inodes.push(inode);
        indexes.insert(inode.id(), index);
        if inode.is_dir() {
            above.push(index);
        }
    }
    drop(walk);
    Ok(Tree {
        kind: "erofs",
        magic: MAGIC,
        block_size,
        len_bytes,
        nodes,
        content: Arc::new(ErofsContent { reader, inodes }),
    })
}

fn node(
    reader: &EroFS<DeviceImage>,
    device_bytes: u64,
    index: NodeIndex,
    inode: Inode,
    parent: NodeIndex,
) -> Result<Node> {
    check_size(device_bytes, &inode)?;
    let mut node = Node::new(attributes(index, &inode), parent);
    if inode.is_symlink() {
        node.target = ready(reader.read_link_inode(inode))?.into_vec();
    }
    Ok(node)
}

/// Refuses a compressed file that a device of `device_bytes` cannot hold, so that readers of a
/// damaged image do not run for years.
fn check_size(device_bytes: u64, inode: &Inode) -> Result<()> {
    let is_compressed = matches!(
        inode.layout(),
        Some(Layout::CompressedFull | Layout::CompressedCompact)
    );
    if is_compressed && inode.data_size() > device_bytes.saturating_mul(MAX_COMPRESSION) {
        let (number, size) = (inode.id(), inode.data_size());
        let text = format!("erofs: inode {number} has {size} bytes, its image {device_bytes}");
        return Err(Error::new(Errno::UCLEAN, text));
    }
    Ok(())
}

fn attributes(index: NodeIndex, inode: &Inode) -> Attributes {
    let (secs, nanos) = inode.modified_unix();
    let modified = Timespec::new(secs, nanos);
    let size_bytes = inode.data_size();
    Attributes {
        number: InodeNumber(index as u64 + 1),
        file_type: match inode.file_type() {
            RawType::RegularFile => FileType::Regular,
            RawType::Directory => FileType::Directory,
            RawType::Symlink => FileType::Symlink,
            RawType::CharacterDevice => FileType::CharacterDevice,
            RawType::BlockDevice => FileType::BlockDevice,
            RawType::Fifo => FileType::Fifo,
            _ => FileType::Socket,
        },
        mode: (inode.permissions().mode() & 0o7777) as u16,
        uid: inode.uid(),
        gid: inode.gid(),
        link_count: inode.nlink(),
        size_bytes,
        blocks_512: size_bytes.div_ceil(512),
        block_size: 4096,
        device: inode
            .device()
            .map(|(major, minor)| DeviceNumber::new(major, minor))
            .unwrap_or_default(),
        accessed: modified,
        modified,
        changed: modified,
        created: None,
    }
}

impl Content for ErofsContent {
    fn read_at(&self, node: NodeIndex, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.inodes.get(node).ok_or(Errno::IO)?;
        let file = self.reader.open_inode_file(*inode).map_err(|e| error(&e))?;
        ready(file.read_at(buf, offset))
    }

    fn xattrs(&self, node: NodeIndex) -> Result<Xattrs> {
        let inode = self.inodes.get(node).ok_or(Errno::IO)?;
        ready(self.reader.xattrs_inode(*inode))
    }
}

fn error(error: &erofs_rs::Error) -> Error {
    let errno = match error {
        erofs_rs::Error::Io(_) => Errno::IO,
        erofs_rs::Error::NotSupported(_) => Errno::OPNOTSUPP,
        _ => Errno::UCLEAN,
    };
    Error::new(errno, format!("erofs: {error}"))
}
