//! The end of an image: directories, inodes, shared attributes, and the superblock last.
//!
//! ```text
//!   superblock | contents of files ... | directories | inodes with tails | shared attributes
//!   block 0      as they came
//! ```

use crate::compress::Compression;
use crate::compression_index;
use crate::content::{Content, Data};
use crate::directory::{self, EntryTarget};
use crate::format::{
    BLOCK_BITS, BLOCK_BYTES, COMPAT_CHECKSUM, COMPAT_MTIME, COMPAT_XATTR_FILTER, DataLayout, HOLE,
    INCOMPAT_CHUNKED_FILE, INCOMPAT_COMPRESSION, INCOMPAT_ZERO_PADDING, MAGIC, RawCompactInode,
    RawExtendedInode, RawSuperblock, RawXattrHeader, SLOT_BYTES, SUPERBLOCK_OFFSET, type_codes,
};
use crate::layout::{Plan, Slots, Tail};
use crate::output::BlockOutput;
use crate::tree::{Body, Directory, NodeId, Tree};
use crate::xattr::{XattrTable, count_of};
use folio::base::DeviceNumber;
use folio::{Result, Timespec};
use std::collections::HashMap;
use std::mem::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

/// Bytes of metadata that are gathered for one write.
const GATHERED_BYTES: usize = 1 << 20;

/// What identifies an image, and how it is compressed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Identity {
    pub(crate) uuid: [u8; 16],
    pub(crate) label: [u8; 16],
    pub(crate) compression: Option<Compression>,
}

/// Writes what follows the contents.
pub(crate) struct ImageWriter<'a> {
    tree: &'a Tree,
    xattrs: &'a XattrTable,
    output: &'a mut BlockOutput,
    plans: Vec<Plan>,
    /// The number of each node's inode.
    nids: Vec<u64>,
    /// The time of most files, which their inodes need not repeat.
    common: Timespec,
    identity: &'a Identity,
}

/// Writes the end of an image.
///
/// # Errors
///
/// Those of writes, EFBIG.
pub(crate) fn finish(
    tree: &Tree,
    xattrs: &mut XattrTable,
    output: &mut BlockOutput,
    identity: &Identity,
) -> Result<()> {
    let (order, link_counts) = tree.walk();
    let area = xattrs.share(order.iter().map(|id| &tree.nodes[*id].xattrs[..]));
    let common = most_frequent(order.iter().map(|id| tree.nodes[*id].modified));
    let (mut slots, mut nids) = (Slots::new(), vec![0; tree.nodes.len()]);
    let plan = |id: NodeId| {
        let xattr_bytes = xattrs.body(&tree.nodes[id].xattrs).len();
        let mut plan = Plan::new(tree, id, xattr_bytes, link_counts[id]);
        plan.shrink(tree, common);
        plan.place(&mut slots, xattr_bytes);
        nids[id] = plan.nid;
        plan
    };
    let mut writer = ImageWriter {
        plans: order.into_iter().map(plan).collect(),
        tree,
        xattrs,
        output,
        nids,
        common,
        identity,
    };
    writer.blocks()?;
    let meta_block = writer.output.next_block()?;
    writer.inodes()?;
    let xattr_block = if area.is_empty() {
        0
    } else {
        writer.output.next_block()?
    };
    writer.output.append(&area)?;
    let first = writer.first_block(meta_block, xattr_block)?;
    writer.output.finish(&first)
}

/// Returns the most frequent time.
fn most_frequent(times: impl Iterator<Item = Timespec>) -> Timespec {
    let mut counts = HashMap::new();
    for time in times {
        *counts.entry(time).or_insert(0) += 1;
    }
    let most = counts
        .into_iter()
        .max_by_key(|(time, count)| (*count, *time));
    most.map(|(time, _)| time).unwrap_or_default()
}

/// Returns a device number as inodes have it. Linux: `new_encode_dev`.
fn device_code(device: DeviceNumber) -> u32 {
    let DeviceNumber { major, minor } = device;
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

impl ImageWriter<'_> {
    /// Writes the blocks of directories, and tails that do not fit behind their inodes.
    fn blocks(&mut self) -> Result<()> {
        for at in 0..self.plans.len() {
            let (id, tail) = (self.plans[at].node, self.plans[at].tail);
            let bytes = match &self.tree.nodes[id].body {
                Body::Directory(found) => {
                    let mut bytes = self.directory(found, id);
                    if tail == Tail::Inline {
                        bytes.truncate(bytes.len() / BLOCK_BYTES * BLOCK_BYTES);
                    }
                    bytes
                }
                body if matches!(tail, Tail::Apart | Tail::Listed) => tail_of(body).to_vec(),
                _ => continue,
            };
            if bytes.is_empty() {
                continue;
            }
            let block = self.output.next_block()?;
            match tail {
                Tail::Listed => self.plans[at].tail_block = block,
                _ => self.plans[at].start_block = block,
            }
            self.output.append(&bytes)?;
        }
        Ok(())
    }

    fn directory(&self, found: &Directory, id: NodeId) -> Vec<u8> {
        directory::encode(&directory::names(found, id), |node| EntryTarget {
            nid: self.nids[node],
            type_code: type_codes(self.tree.nodes[node].file_type).0,
        })
    }

    /// Writes all inodes, each with what is behind it.
    fn inodes(&mut self) -> Result<()> {
        let mut plans: Vec<_> = self.plans.iter().collect();
        plans.sort_unstable_by_key(|plan| plan.nid);
        let mut gathered = Vec::with_capacity(GATHERED_BYTES + BLOCK_BYTES);
        let mut start = 0;
        for plan in plans {
            let offset = plan.nid as usize * SLOT_BYTES - start;
            gathered.resize(offset, 0);
            self.inode(plan, &mut gathered);
            if gathered.len() >= GATHERED_BYTES {
                let len = gathered.len() / BLOCK_BYTES * BLOCK_BYTES;
                self.output.append(&gathered[..len])?;
                gathered.drain(..len);
                start += len;
            }
        }
        // fsck.erofs 1.5 reads a header of attributes behind each inode, also where there is none.
        gathered.resize(gathered.len() + size_of::<RawXattrHeader>(), 0);
        self.output.append(&gathered)
    }

    fn inode(&self, plan: &Plan, bytes: &mut Vec<u8>) {
        let node = &self.tree.nodes[plan.node];
        let xattrs = self.xattrs.body(&node.xattrs);
        let data = match &node.body {
            Body::Special(device) => device_code(*device),
            Body::File(Content {
                data: Data::Chunks { chunk_bits, .. },
                ..
            }) => *chunk_bits,
            Body::File(Content {
                data: Data::Compressed { block_count, .. },
                ..
            }) => *block_count,
            _ if plan.tail == Tail::Listed => 0,
            // Without data blocks it is not read.
            _ if plan.start_block == HOLE => 0,
            _ => plan.start_block,
        };
        let format = (plan.data_layout() as u16) << 1 | u16::from(plan.is_extended);
        let mode = type_codes(node.file_type).1 | node.mode;
        let number = U32::new(plan.nid as u32);
        if plan.is_extended {
            let inode = RawExtendedInode {
                format: U16::new(format),
                xattr_count: U16::new(count_of(&xattrs)),
                mode: U16::new(mode),
                reserved: U16::ZERO,
                size_bytes: U64::new(plan.size_bytes),
                data: U32::new(data),
                number,
                uid: U32::new(node.uid),
                gid: U32::new(node.gid),
                modified_secs: U64::new(node.modified.secs as u64),
                modified_nanos: U32::new(node.modified.nanos),
                link_count: U32::new(plan.link_count),
                reserved_end: [0; 16],
            };
            bytes.extend_from_slice(inode.as_bytes());
        } else {
            let inode = RawCompactInode {
                format: U16::new(format),
                xattr_count: U16::new(count_of(&xattrs)),
                mode: U16::new(mode),
                link_count: U16::new(plan.link_count as u16),
                size_bytes: U32::new(plan.size_bytes as u32),
                reserved: U32::ZERO,
                data: U32::new(data),
                number,
                uid: U16::new(node.uid as u16),
                gid: U16::new(node.gid as u16),
                reserved_end: U32::ZERO,
            };
            bytes.extend_from_slice(inode.as_bytes());
        }
        bytes.extend(xattrs);
        self.behind(plan, bytes);
    }

    /// Adds what is behind an inode and its extended attributes.
    fn behind(&self, plan: &Plan, bytes: &mut Vec<u8>) {
        let body = &self.tree.nodes[plan.node].body;
        match (plan.tail, body) {
            (Tail::None | Tail::Apart, _) => {}
            (Tail::Inline, Body::Directory(found)) => {
                let all = self.directory(found, plan.node);
                bytes.extend_from_slice(&all[all.len() / BLOCK_BYTES * BLOCK_BYTES..]);
            }
            (Tail::Inline, _) => bytes.extend_from_slice(tail_of(body)),
            (Tail::Listed, _) => {
                let whole = (plan.size_bytes / BLOCK_BYTES as u64) as u32;
                let blocks = plan.start_block..plan.start_block + whole;
                let all = blocks.chain([plan.tail_block]);
                bytes.extend(all.flat_map(u32::to_le_bytes));
            }
            (Tail::Chunks | Tail::Index, Body::File(content)) => {
                self.list(content, plan.start_block, bytes);
            }
            (Tail::Chunks | Tail::Index, _) => {}
        }
    }

    /// Adds the list of chunks, or the index of compressed pieces.
    fn list(&self, content: &Content, start_block: u32, bytes: &mut Vec<u8>) {
        match (&content.data, self.identity.compression) {
            (Data::Chunks { blocks, .. }, _) => {
                bytes.extend(blocks.iter().flat_map(|block| block.to_le_bytes()));
            }
            (Data::Compressed { pieces, .. }, Some(compression)) => {
                let size_bytes = content.size_bytes;
                compression_index::append(bytes, compression, size_bytes, start_block, pieces);
            }
            _ => {}
        }
    }

    /// Returns the first block, with the superblock.
    fn first_block(&self, meta_block: u32, xattr_block: u32) -> Result<[u8; BLOCK_BYTES]> {
        let is_chunked = |plan: &Plan| plan.data_layout() == DataLayout::Chunks;
        let mut features = 0;
        if self.plans.iter().any(is_chunked) {
            features |= INCOMPAT_CHUNKED_FILE;
        }
        let parameters = self.identity.compression.map(compression_index::parameters);
        if parameters.is_some() {
            features |= INCOMPAT_ZERO_PADDING | INCOMPAT_COMPRESSION;
        }
        let (algorithms, parameters) = parameters.unwrap_or_default();
        let superblock = RawSuperblock {
            magic: U32::new(MAGIC),
            checksum: U32::ZERO,
            feature_compat: U32::new(COMPAT_CHECKSUM | COMPAT_MTIME | COMPAT_XATTR_FILTER),
            block_bits: BLOCK_BITS,
            extension_slots: 0,
            // The root is the first inode.
            root_nid: U16::new(self.plans[0].nid as u16),
            inode_count: U64::new(self.plans.len() as u64),
            build_time_secs: U64::new(self.common.secs as u64),
            build_time_nanos: U32::new(self.common.nanos),
            block_count: U32::new(self.output.next_block()?),
            meta_block: U32::new(meta_block),
            xattr_block: U32::new(xattr_block),
            uuid: self.identity.uuid,
            volume_name: self.identity.label,
            feature_incompat: U32::new(features),
            compression_algorithms: U16::new(algorithms),
            extra_devices: U16::ZERO,
            device_table_slot: U16::ZERO,
            directory_block_bits: 0,
            xattr_prefix_count: 0,
            xattr_prefix_start: U32::ZERO,
            packed_nid: U64::ZERO,
            xattr_filter_reserved: 0,
            reserved: [0; 23],
        };
        let mut block = [0; BLOCK_BYTES];
        let end = SUPERBLOCK_OFFSET + size_of::<RawSuperblock>();
        block[SUPERBLOCK_OFFSET..end].copy_from_slice(superblock.as_bytes());
        block[end..end + parameters.len()].copy_from_slice(&parameters);
        // Linux starts with all ones, and does not invert the result.
        let checksum = !crc32c::crc32c(&block[SUPERBLOCK_OFFSET..]);
        let at = SUPERBLOCK_OFFSET + offset_of!(RawSuperblock, checksum);
        block[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        Ok(block)
    }
}

/// Returns the bytes of a file or link after its last whole block.
fn tail_of(body: &Body) -> &[u8] {
    match body {
        Body::File(Content {
            data: Data::Flat { tail, .. },
            ..
        }) => tail,
        Body::Symlink(target) => target,
        _ => &[],
    }
}
