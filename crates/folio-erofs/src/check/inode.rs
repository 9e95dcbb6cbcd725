//! One inode: its extended attributes, and the places of its data.

use super::image::{Image, ready};
use super::report::CheckedStructure;
use crate::format::{COMPAT_XATTR_FILTER, HOLE, RawCompactInode, RawExtendedInode, SLOT_BYTES};
use crate::format::{file_types, type_codes};
use crate::xattr;
use erofs_rs::types::{Inode, Layout};
use folio::Result;

/// The longest target of a symbolic link, in bytes. Linux: `PATH_MAX`.
const TARGET_MAX: u64 = 4095;
/// Bytes of a compressed file for each byte of the image, at most: more than any compressor of
/// erofs reaches.
const COMPRESSION_MAX: u64 = 1 << 17;
const BUFFER_BYTES: usize = 64 << 10;
/// The bits of the format of a chunk list: the size of chunks, and whether entries have 8 bytes.
const CHUNK_BITS: u32 = 0x1f;
const CHUNK_INDEXES: u32 = 0x20;

/// An inode that could be read.
pub(super) struct CheckedInode {
    pub(super) nid: u64,
    /// What directory entries say about it.
    pub(super) type_code: u8,
    pub(super) inode: Inode,
    /// The first block, or the format of the chunk list (`i_u`).
    data: u32,
    /// What is behind the header.
    xattr_offset: u64,
    /// What is behind the extended attributes.
    tail_offset: u64,
}

impl CheckedInode {
    /// Reads an inode; reports an error and returns `None` if that fails.
    pub(super) fn read(image: &mut Image<'_>, nid: u64) -> Result<Option<Self>> {
        let structure = CheckedStructure::Inode;
        let meta = u64::from(image.superblock.meta_block.get()) * image.block_bytes();
        let offset = nid.checked_mul(SLOT_BYTES as u64);
        let offset = offset.and_then(|offset| offset.checked_add(meta));
        let mut bytes = [0; size_of::<RawCompactInode>()];
        let offset = match offset {
            Some(offset) if image.read(&mut bytes, offset)? => offset,
            _ => {
                image.error(structure, nid, "beyond the last block");
                return Ok(None);
            }
        };
        let inode = match ready(image.reader.get_inode(nid))? {
            Ok(inode) => inode,
            Err(what) => {
                image.error(structure, nid, what);
                return Ok(None);
            }
        };
        let raw: RawCompactInode = zerocopy::transmute!(bytes);
        // Both forms of an inode have format, mode and data at the same places.
        let header_bytes = if raw.format.get() & 1 == 0 {
            size_of::<RawCompactInode>()
        } else {
            size_of::<RawExtendedInode>()
        };
        let codes = file_types().map(type_codes);
        let mut codes = codes.into_iter();
        let code = codes.find(|(_, bits)| *bits == raw.mode.get() & 0o170_000);
        let xattr_offset = offset + header_bytes as u64;
        Ok(Some(Self {
            nid,
            type_code: code.map_or(0, |(code, _)| code),
            inode,
            data: raw.data.get(),
            xattr_offset,
            tail_offset: xattr_offset + inode.xattr_size() as u64,
        }))
    }

    /// Checks extended attributes and data.
    pub(super) fn check(&self, image: &mut Image<'_>) -> Result<()> {
        self.check_xattrs(image)?;
        let is_compressed = matches!(
            self.inode.layout(),
            Some(Layout::CompressedFull | Layout::CompressedCompact)
        );
        if self.inode.is_symlink() {
            return self.check_target(image);
        }
        match self.inode.layout() {
            None if self.inode.data_size() > 0 => {
                let what = format!("a special file of {} bytes", self.inode.data_size());
                image.error(CheckedStructure::Inode, self.nid, what);
                Ok(())
            }
            None => Ok(()),
            Some(Layout::FlatPlain | Layout::FlatInline) => self.check_blocks(image),
            Some(_) if self.inode.is_dir() => {
                image.error(CheckedStructure::Directory, self.nid, "not in plain blocks");
                Ok(())
            }
            Some(_) if is_compressed => self.decode(image),
            Some(_) => self.check_chunks(image),
        }
    }

    fn check_xattrs(&self, image: &mut Image<'_>) -> Result<()> {
        let structure = CheckedStructure::Xattr;
        if self.inode.xattr_size() == 0 {
            return Ok(());
        }
        let xattrs = match ready(image.reader.xattrs_inode(self.inode))? {
            Ok(xattrs) => xattrs,
            Err(what) => {
                image.error(structure, self.nid, what);
                return Ok(());
            }
        };
        let len = |(name, value): (&Vec<u8>, &Vec<u8>)| (name.len() + value.len()) as u64;
        image.work(xattrs.iter().map(len).sum())?;
        let superblock = &image.superblock;
        let has_filter = superblock.feature_compat.get() & COMPAT_XATTR_FILTER != 0
            && superblock.xattr_filter_reserved == 0;
        let mut filter = [0; 4];
        if !has_filter || !image.read(&mut filter, self.xattr_offset)? {
            return Ok(());
        }
        let filter = u32::from_le_bytes(filter);
        for name in xattrs.keys() {
            // A set bit means that the inode has no such name.
            if xattr::filter_of(name).is_some_and(|bit| filter & bit != 0) {
                let name = String::from_utf8_lossy(name);
                image.error(
                    structure,
                    self.nid,
                    format!("the name filter hides {name:?}"),
                );
            }
        }
        Ok(())
    }

    fn check_target(&self, image: &mut Image<'_>) -> Result<()> {
        let structure = CheckedStructure::Symlink;
        let len = self.inode.data_size();
        if !(1..=TARGET_MAX).contains(&len) {
            image.error(structure, self.nid, format!("a target of {len} bytes"));
            return Ok(());
        }
        image.work(len)?;
        if let Err(what) = ready(image.reader.read_link_inode(self.inode))? {
            image.error(structure, self.nid, what);
        }
        Ok(())
    }

    /// Returns the number of blocks that are not behind the inode.
    pub(super) fn block_count(&self, block_bytes: u64) -> u64 {
        let size_bytes = self.inode.data_size();
        match self.inode.layout() {
            Some(Layout::FlatInline) => size_bytes.saturating_sub(1) / block_bytes,
            _ => size_bytes.div_ceil(block_bytes),
        }
    }

    fn check_blocks(&self, image: &mut Image<'_>) -> Result<()> {
        let (count, start) = (self.block_count(image.block_bytes()), self.data);
        let is_hole = start == HOLE && self.inode.is_file();
        if count > 0 && !is_hole && !image.has_blocks(start.into(), count) {
            let what = format!("blocks {start} and {} after it", count - 1);
            image.error(CheckedStructure::Data, self.nid, beyond(&what));
        }
        Ok(())
    }

    /// Reads a block of a directory, or the bytes behind the inode, after [`CheckedInode::check`].
    /// Returns its number, unless it is behind the inode; `None` if it is not in the image.
    pub(super) fn read_block(
        &self,
        image: &Image<'_>,
        index: u64,
        buf: &mut Vec<u8>,
    ) -> Result<Option<DirectoryBlock>> {
        let block_bytes = image.block_bytes();
        let left = self.inode.data_size() - index * block_bytes;
        buf.resize(left.min(block_bytes) as usize, 0);
        let (offset, block) = if index < self.block_count(block_bytes) {
            let block = u64::from(self.data) + index;
            (block * block_bytes, DirectoryBlock::Own(block))
        } else {
            (self.tail_offset, DirectoryBlock::BehindInode)
        };
        Ok(image.read(buf, offset)?.then_some(block))
    }

    fn check_chunks(&self, image: &mut Image<'_>) -> Result<()> {
        let structure = CheckedStructure::Data;
        let chunk_blocks = 1_u64 << (self.data & CHUNK_BITS);
        let has_devices = self.data & CHUNK_INDEXES != 0;
        let entry_bytes = if has_devices { 8 } else { 4 };
        let mut blocks_left = self.inode.data_size().div_ceil(image.block_bytes());
        let mut offset = self.tail_offset.next_multiple_of(entry_bytes);
        while blocks_left > 0 {
            let count = blocks_left.div_ceil(chunk_blocks);
            let len = count.saturating_mul(entry_bytes).min(BUFFER_BYTES as u64);
            let mut entries = vec![0; len as usize];
            if !image.read(&mut entries, offset)? {
                image.error(structure, self.nid, beyond("the list of chunks"));
                return Ok(());
            }
            offset += len;
            image.work(len)?;
            for entry in entries.chunks_exact(entry_bytes as usize) {
                let (before, block) = entry.split_at(entry.len() - 4);
                let block = block
                    .iter()
                    .rev()
                    .fold(0, |all, byte| all << 8 | u32::from(*byte));
                let count = blocks_left.min(chunk_blocks);
                blocks_left -= count;
                if block != HOLE && !image.has_blocks(block.into(), count) {
                    let what = format!("the chunk at block {block}");
                    image.error(structure, self.nid, beyond(&what));
                    return Ok(());
                }
                if block != HOLE && before.iter().skip(2).any(|byte| *byte != 0) {
                    let what = format!("the chunk at block {block} is on another device");
                    image.error(structure, self.nid, what);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn decode(&self, image: &mut Image<'_>) -> Result<()> {
        let structure = CheckedStructure::Data;
        let size_bytes = self.inode.data_size();
        if size_bytes > image.blocks.end.saturating_mul(COMPRESSION_MAX) {
            let what = format!("{size_bytes} bytes, more than the image can hold");
            image.error(structure, self.nid, what);
            return Ok(());
        }
        let mut buf = vec![0; BUFFER_BYTES];
        let mut position = 0;
        // The file borrows the reader, which is a few pointers.
        let reader = image.reader.clone();
        let mut file = match reader.open_inode_file(self.inode) {
            Ok(file) => file,
            Err(error) => {
                image.error(structure, self.nid, error.to_string());
                return Ok(());
            }
        };
        while position < size_bytes && !image.is_exhausted() {
            match ready(file.read(&mut buf))? {
                Ok(0) => break,
                Ok(len) => {
                    position += len as u64;
                    image.work(len as u64)?;
                }
                Err(what) => {
                    image.error(structure, self.nid, format!("at byte {position}: {what}"));
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Where a block of a directory is.
pub(super) enum DirectoryBlock {
    /// It has this number.
    Own(u64),
    BehindInode,
}

fn beyond(what: &str) -> String {
    format!("{what}: beyond the last block")
}
