//! The map of a sound image: offsets of its structures, and the update of checksums after a change.
//!
//! A separate reader, so that it does not depend on the code under test. It trusts the image.

use crc32c::crc32c_append;
use std::collections::BTreeSet;

/// The kind of a piece of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PieceKind {
    Superblock,
    Descriptor(u32),
    BlockBitmap(u32),
    InodeBitmap(u32),
    /// An inode, with its number.
    Inode(u32),
    /// A node of an extent tree, with the checksum seed of its inode.
    ExtentNode(u32),
    PointerBlock,
    DirectoryLeaf(u32),
    IndexRoot(u32),
    IndexNode(u32),
    XattrBlock,
    JournalSuperblock,
}

/// A structure in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) kind: PieceKind,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// All structures of an image.
pub(crate) struct ImageMap {
    pub(crate) pieces: Vec<Piece>,
    block_size: usize,
    inode_size: usize,
    descriptor_len: usize,
    groups: u32,
    inodes_per_group: u32,
    blocks_per_group: u32,
    cluster_blocks: u32,
    first_data_block: usize,
    /// Checksum seed, with metadata_csum.
    seed: Option<u32>,
    /// UUID, with uninit_bg.
    uuid: Option<[u8; 16]>,
}

/// Returns ext4's crc32c, without inversion at either end.
fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c_append(!seed, bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl ImageMap {
    /// Finds the structures of `image`.
    pub(crate) fn new(image: &[u8]) -> Self {
        let sb = &image[1024..2048];
        let (compat, incompat, ro_compat) = (u32_at(sb, 0x5C), u32_at(sb, 0x60), u32_at(sb, 0x64));
        let uuid: [u8; 16] = sb[0x68..0x78].try_into().expect("16 bytes");
        let has_csum = ro_compat & 0x400 != 0;
        let seed = if incompat & 0x2000 != 0 {
            u32_at(sb, 0x270)
        } else {
            crc(!0, &uuid)
        };
        let block_size = 1024 << u32_at(sb, 0x18);
        let first_data_block = u32_at(sb, 0x14) as usize;
        let blocks = u32_at(sb, 4) as usize - first_data_block;
        let mut map = Self {
            pieces: vec![Piece {
                kind: PieceKind::Superblock,
                offset: 1024,
                len: 1024,
            }],
            block_size,
            inode_size: if u32_at(sb, 0x4C) == 0 {
                128
            } else {
                u16_at(sb, 0x58)
            },
            descriptor_len: if incompat & 0x80 != 0 {
                u16_at(sb, 0xFE)
            } else {
                32
            },
            groups: blocks.div_ceil(u32_at(sb, 0x20) as usize) as u32,
            inodes_per_group: u32_at(sb, 0x28),
            blocks_per_group: u32_at(sb, 0x20),
            cluster_blocks: if ro_compat & 0x200 != 0 {
                1 << (u32_at(sb, 0x1C) - u32_at(sb, 0x18))
            } else {
                1
            },
            first_data_block,
            seed: has_csum.then_some(seed),
            uuid: (ro_compat & 0x10 != 0).then_some(uuid),
        };
        let journal = if compat & 4 != 0 { u32_at(sb, 0xE0) } else { 0 };
        for group in 0..map.groups {
            map.add_group(image, group, incompat & 0x10 != 0, journal);
        }
        let unique: BTreeSet<Piece> = map.pieces.drain(..).collect();
        map.pieces.extend(unique);
        map
    }

    fn descriptor_at(&self, group: u32, has_meta_bg: bool) -> usize {
        let per_block = self.block_size / self.descriptor_len;
        let (table, slot) = (group as usize / per_block, group as usize % per_block);
        let table_block = if has_meta_bg {
            // Small images have one meta group; its first group starts with the superblock.
            self.first_data_block
                + table * per_block * self.blocks_per_group as usize
                + usize::from(table == 0)
        } else {
            (if self.block_size == 1024 { 2 } else { 1 }) + table
        };
        table_block * self.block_size + slot * self.descriptor_len
    }

    fn add(&mut self, kind: PieceKind, block: usize) {
        self.pieces.push(Piece {
            kind,
            offset: block * self.block_size,
            len: self.block_size,
        });
    }

    fn add_group(&mut self, image: &[u8], group: u32, has_meta_bg: bool, journal: u32) {
        let offset = self.descriptor_at(group, has_meta_bg);
        self.pieces.push(Piece {
            kind: PieceKind::Descriptor(group),
            offset,
            len: self.descriptor_len,
        });
        let descriptor = &image[offset..offset + self.descriptor_len];
        let has_flags = self.seed.is_some() || self.uuid.is_some();
        let flags = if has_flags {
            u16_at(descriptor, 0x12)
        } else {
            0
        };
        if flags & 2 == 0 {
            self.add(
                PieceKind::BlockBitmap(group),
                u32_at(descriptor, 0) as usize,
            );
        }
        if flags & 1 != 0 {
            return;
        }
        self.add(
            PieceKind::InodeBitmap(group),
            u32_at(descriptor, 4) as usize,
        );
        let table = u32_at(descriptor, 8) as usize * self.block_size;
        for index in 0..self.inodes_per_group {
            let offset = table + index as usize * self.inode_size;
            let bytes = &image[offset..offset + self.inode_size];
            let number = group * self.inodes_per_group + index + 1;
            // Some unused inodes too.
            let is_in_use = u16_at(bytes, 0x1A) != 0;
            if is_in_use || number <= 10 || number.is_multiple_of(97) {
                self.pieces.push(Piece {
                    kind: PieceKind::Inode(number),
                    offset,
                    len: self.inode_size,
                });
                if !is_in_use {
                    continue;
                }
                self.add_inode(image, number, bytes, number == journal);
            }
        }
    }

    /// Adds the metadata blocks of an inode.
    fn add_inode(&mut self, image: &[u8], number: u32, bytes: &[u8], is_journal: bool) {
        let (mode, flags) = (u16_at(bytes, 0) >> 12, u32_at(bytes, 0x20));
        let seed = self.seed.map_or(0, |seed| {
            crc(crc(seed, &number.to_le_bytes()), &bytes[0x64..0x68])
        });
        let xattr = u32_at(bytes, 0x68) as usize;
        if xattr != 0 {
            self.add(PieceKind::XattrBlock, xattr);
        }
        let is_mapped = mode == 8 || mode == 4 || (mode == 10 && u32_at(bytes, 4) >= 60);
        if flags & 0x1000_0000 != 0 || !is_mapped || number == 7 {
            return;
        }
        let mut data = Vec::new();
        if flags & 0x80000 != 0 {
            self.extents(image, &bytes[0x28..0x64], seed, &mut data)
        } else {
            self.pointers(image, &bytes[0x28..0x64], &mut data)
        }
        if is_journal {
            self.pieces.push(Piece {
                kind: PieceKind::JournalSuperblock,
                offset: data[0] * self.block_size,
                len: 1024,
            });
        }
        if mode != 4 {
            return;
        }
        for (position, block) in data.iter().enumerate() {
            let leaf = &image[block * self.block_size..][..self.block_size];
            let is_indexed = flags & 0x1000 != 0;
            let is_node =
                u32_at(leaf, 0) == 0 && u16_at(leaf, 4) == self.block_size && leaf[6] == 0;
            let kind = match (is_indexed, position) {
                (true, 0) => PieceKind::IndexRoot(seed),
                (true, _) if is_node => PieceKind::IndexNode(seed),
                _ => PieceKind::DirectoryLeaf(seed),
            };
            self.add(kind, *block);
        }
    }

    fn extents(&mut self, image: &[u8], node: &[u8], seed: u32, data: &mut Vec<usize>) {
        let (count, depth) = (u16_at(node, 2), u16_at(node, 6));
        for entry in node[12..].chunks_exact(12).take(count) {
            if depth == 0 {
                let len = u16_at(entry, 4);
                let len = if len > 32768 { len - 32768 } else { len };
                data.extend((u32_at(entry, 8) as usize..).take(len));
                continue;
            }
            let block = u32_at(entry, 4) as usize;
            self.add(PieceKind::ExtentNode(seed), block);
            self.extents(
                image,
                &image[block * self.block_size..][..self.block_size],
                seed,
                data,
            );
        }
    }

    fn pointers(&mut self, image: &[u8], i_block: &[u8], data: &mut Vec<usize>) {
        for (slot, pointer) in i_block
            .chunks_exact(4)
            .map(|b| u32_at(b, 0) as usize)
            .enumerate()
        {
            self.branch(image, pointer, slot.saturating_sub(11), data);
        }
    }

    fn branch(&mut self, image: &[u8], block: usize, depth: usize, data: &mut Vec<usize>) {
        if block == 0 {
            return;
        }
        if depth == 0 {
            return data.push(block);
        }
        self.add(PieceKind::PointerBlock, block);
        for pointer in image[block * self.block_size..][..self.block_size].chunks_exact(4) {
            self.branch(image, u32_at(pointer, 0) as usize, depth - 1, data);
        }
    }

    /// Updates the checksums of a changed piece, if the image has checksums.
    pub(crate) fn seal(&self, image: &mut [u8], piece: &Piece) {
        let range = piece.offset..piece.offset + piece.len;
        let put = |image: &mut [u8], at: usize, sum: u32| {
            image[at..at + 4].copy_from_slice(&sum.to_le_bytes())
        };
        let Some(seed) = self.seed else {
            if let (PieceKind::Descriptor(group), Some(uuid)) = (piece.kind, self.uuid) {
                let sum = descriptor_crc16(&uuid, group, &image[range]);
                image[piece.offset + 0x1E..piece.offset + 0x20].copy_from_slice(&sum.to_le_bytes());
            }
            return;
        };
        let start = piece.offset;
        match piece.kind {
            PieceKind::Superblock => {
                let sum = crc(!0, &image[start..start + 0x3FC]);
                put(image, start + 0x3FC, sum);
            }
            PieceKind::Descriptor(group) => self.seal_descriptor(image, group, start, seed),
            PieceKind::BlockBitmap(group) => {
                let len = (self.blocks_per_group / self.cluster_blocks / 8) as usize;
                let sum = crc(seed, &image[start..start + len]);
                self.seal_bitmap(image, group, sum, 0x18, 0x38, seed);
            }
            PieceKind::InodeBitmap(group) => {
                let sum = crc(
                    seed,
                    &image[start..start + self.inodes_per_group as usize / 8],
                );
                self.seal_bitmap(image, group, sum, 0x1A, 0x3A, seed);
            }
            PieceKind::Inode(number) => seal_inode(&mut image[range], number, seed),
            PieceKind::ExtentNode(seed) => {
                let tail = start + 12 * (1 + (self.block_size - 12) / 12);
                let sum = crc(seed, &image[start..tail]);
                put(image, tail, sum);
            }
            PieceKind::DirectoryLeaf(seed) => {
                let tail = start + piece.len - 12;
                let sum = crc(seed, &image[start..tail]);
                put(image, tail + 8, sum);
            }
            PieceKind::IndexRoot(seed) => self.seal_index(&mut image[range], 32, seed),
            PieceKind::IndexNode(seed) => self.seal_index(&mut image[range], 8, seed),
            PieceKind::XattrBlock => {
                let block = (start / self.block_size) as u64;
                image[start + 16..start + 20].fill(0);
                let sum = crc(crc(seed, &block.to_le_bytes()), &image[range]);
                image[start + 16..start + 20].copy_from_slice(&sum.to_le_bytes());
            }
            PieceKind::JournalSuperblock => {
                image[start + 0xFC..start + 0x100].fill(0);
                let sum = crc(!0, &image[range]);
                image[start + 0xFC..start + 0x100].copy_from_slice(&sum.to_be_bytes());
            }
            PieceKind::PointerBlock => {}
        }
    }

    fn seal_descriptor(&self, image: &mut [u8], group: u32, start: usize, seed: u32) {
        let bytes = &image[start..start + self.descriptor_len];
        let sum = crc(crc(seed, &group.to_le_bytes()), &bytes[..0x1E]);
        let sum = crc(crc(sum, &[0; 2]), &bytes[0x20..]);
        image[start + 0x1E..start + 0x20].copy_from_slice(&sum.to_le_bytes()[..2]);
    }

    fn seal_bitmap(
        &self,
        image: &mut [u8],
        group: u32,
        sum: u32,
        low: usize,
        high: usize,
        seed: u32,
    ) {
        let descriptor = self
            .pieces
            .iter()
            .find(|piece| piece.kind == PieceKind::Descriptor(group))
            .expect("a descriptor");
        let start = descriptor.offset;
        image[start + low..start + low + 2].copy_from_slice(&sum.to_le_bytes()[..2]);
        if self.descriptor_len >= 64 {
            image[start + high..start + high + 2].copy_from_slice(&sum.to_le_bytes()[2..]);
        }
        self.seal_descriptor(image, group, start, seed);
    }

    fn seal_index(&self, bytes: &mut [u8], entries_at: usize, seed: u32) {
        let limit = (bytes.len() - entries_at - 8) / 8;
        let count = u16_at(bytes, entries_at + 2).min(limit);
        let tail = entries_at + limit * 8;
        let sum = crc(seed, &bytes[..entries_at + count * 8]);
        let sum = crc(crc(sum, &bytes[tail..tail + 4]), &[0; 4]);
        bytes[tail + 4..tail + 8].copy_from_slice(&sum.to_le_bytes());
    }
}

fn seal_inode(bytes: &mut [u8], number: u32, seed: u32) {
    let has_high = bytes.len() > 128 && u16_at(bytes, 0x80) >= 4;
    bytes[0x7C..0x7E].fill(0);
    if has_high {
        bytes[0x82..0x84].fill(0);
    }
    let seed = crc(crc(seed, &number.to_le_bytes()), &bytes[0x64..0x68]);
    let sum = crc(seed, bytes).to_le_bytes();
    bytes[0x7C..0x7E].copy_from_slice(&sum[..2]);
    if has_high {
        bytes[0x82..0x84].copy_from_slice(&sum[2..]);
    }
}

/// Returns the checksum of a descriptor with uninit_bg: CRC-16 with the reflected polynomial 0x8005
/// and all ones as the initial value.
fn descriptor_crc16(uuid: &[u8; 16], group: u32, bytes: &[u8]) -> u16 {
    let parts = [
        &uuid[..],
        &group.to_le_bytes(),
        &bytes[..0x1E],
        &bytes[0x20..],
    ]
    .concat();
    parts.iter().fold(0xFFFF, |sum: u16, byte| {
        (0..8).fold(sum ^ u16::from(*byte), |sum, _| {
            if sum & 1 == 1 {
                sum >> 1 ^ 0xA001
            } else {
                sum >> 1
            }
        })
    })
}
