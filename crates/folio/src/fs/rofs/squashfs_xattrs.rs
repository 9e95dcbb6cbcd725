//! The extended attributes of a squashfs, which `backhand` does not read.
//!
//! ```text
//!   superblock  ->  header   where names and values begin, number of ids
//!                   places   of the blocks with the ids
//!   id          ->  names and values: place, count
//! ```
//!
//! Ids, names and values are in compressed metadata blocks. They are read at each call, so that no
//! image can make them large in memory. Linux: fs/squashfs/xattr.c, xattr_id.c.

use super::device_reader::DeviceReader;
use super::tree::Xattrs;
use crate::base::lock::Mutex;
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use backhand::kind::Kind;
use backhand::v4::metadata::{METADATA_MAXSIZE, read_block};
use backhand::v4::squashfs::NOT_SET;
use backhand::{BackhandError, Squashfs, SuperBlock};
use std::io::BufReader;
use std::sync::Arc;

/// The id of an inode without extended attributes.
pub(crate) const NO_XATTRS: u32 = !0;

/// Bytes of the header of the table, and of an id.
const HEADER_LEN: u64 = 16;
const ID_LEN: u64 = 16;
/// The namespaces, by the low byte of an attribute's type.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// Flag in the type: in place of the value is its place.
const IS_ELSEWHERE: u16 = 0x100;
/// The longest value in Linux (`XATTR_SIZE_MAX`).
const VALUE_LEN_MAX: usize = 64 << 10;
/// Bytes of all attributes of a file, at most.
const ALL_LEN_MAX: usize = 16 << 20;
/// Bytes that each attribute counts beyond its name and value: reading one may decompress a block.
const ENTRY_LEN: usize = 256;

/// The table of extended attributes.
pub(crate) struct XattrTable {
    device: Arc<dyn Device>,
    kind: Kind,
    superblock: SuperBlock,
    /// Where the blocks with names and values begin.
    start: u64,
    id_count: u32,
    /// The last attributes, with their id: a copy lists and reads those of one file in a row, and
    /// files in a row often have the same.
    last: Mutex<Option<(u32, Xattrs)>>,
}

/// Reads from a place in metadata blocks on.
struct MetadataReader<'a> {
    table: &'a XattrTable,
    blocks: BufReader<DeviceReader>,
    block: Vec<u8>,
    at: usize,
}

impl XattrTable {
    /// Returns the table of an image that has one.
    pub(crate) fn of(device: Arc<dyn Device>, squashfs: &Squashfs<'_>) -> Result<Option<Self>> {
        let superblock = squashfs.superblock;
        if superblock.xattr_table == NOT_SET {
            return Ok(None);
        }
        let header: [u8; HEADER_LEN as usize] = read_array(&device, superblock.xattr_table)?;
        let [start @ .., a, b, c, d, _, _, _, _] = header;
        Ok(Some(Self {
            device,
            kind: squashfs.kind.clone(),
            superblock,
            start: u64::from_le_bytes(start),
            id_count: u32::from_le_bytes([a, b, c, d]),
            last: Mutex::new(None),
        }))
    }

    /// Returns the attributes with an id.
    pub(crate) fn get(&self, id: u32) -> Result<Xattrs> {
        if let Some((_, xattrs)) = self.last.lock().as_ref().filter(|(known, _)| *known == id) {
            return Ok(xattrs.clone());
        }
        let xattrs = self.read(id)?;
        *self.last.lock() = Some((id, xattrs.clone()));
        Ok(xattrs)
    }

    fn read(&self, id: u32) -> Result<Xattrs> {
        if id >= self.id_count {
            return Err(damaged());
        }
        let offset = u64::from(id) * ID_LEN;
        let block = offset / METADATA_MAXSIZE as u64;
        let place = self.superblock.xattr_table + HEADER_LEN + 8 * block;
        let place = u64::from_le_bytes(read_array(&self.device, place)?);
        let mut ids = self.metadata(place, offset as usize % METADATA_MAXSIZE)?;
        let first = ids.number::<8>()?;
        let count = ids.number::<4>()?;
        let mut entries = self.at(first)?;
        let mut xattrs = Xattrs::new();
        let mut left = ALL_LEN_MAX;
        for _ in 0..count {
            let kind = entries.number::<2>()? as u16;
            let name_len = entries.number::<2>()? as usize;
            let name = entries.bytes(name_len)?;
            let value = if kind & IS_ELSEWHERE == 0 {
                entries.value()?
            } else {
                // The length of the place.
                entries.number::<4>()?;
                self.at(entries.number::<8>()?)?.value()?
            };
            left = left
                .checked_sub(name.len() + value.len() + ENTRY_LEN)
                .ok_or_else(damaged)?;
            // Linux ignores those of other namespaces.
            if let Some(prefix) = PREFIXES.get(usize::from(kind & !IS_ELSEWHERE)) {
                xattrs.insert([prefix, &name[..]].concat(), value);
            }
        }
        Ok(xattrs)
    }

    /// Returns a reader at a place among names and values: block and offset in it.
    fn at(&self, place: u64) -> Result<MetadataReader<'_>> {
        let block = self.start.checked_add(place >> 16).ok_or_else(damaged)?;
        self.metadata(block, (place & 0xffff) as usize)
    }

    fn metadata(&self, block: u64, offset: usize) -> Result<MetadataReader<'_>> {
        let device = DeviceReader::at(self.device.clone(), block);
        let mut reader = MetadataReader {
            table: self,
            blocks: BufReader::with_capacity(METADATA_MAXSIZE + 2, device),
            block: Vec::new(),
            at: 0,
        };
        reader.bytes(offset)?;
        Ok(reader)
    }
}

impl MetadataReader<'_> {
    /// Returns the next bytes.
    fn bytes(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            if self.at == self.block.len() {
                let table = self.table;
                let read = read_block(&mut self.blocks, &table.superblock, &table.kind);
                self.block = read.map_err(|e| error(&e))?;
                self.at = 0;
            }
            let count = (self.block.len() - self.at).min(len - bytes.len());
            if count == 0 {
                return Err(damaged());
            }
            bytes.extend_from_slice(&self.block[self.at..self.at + count]);
            self.at += count;
        }
        Ok(bytes)
    }

    /// Returns the next number, of `LEN` bytes.
    fn number<const LEN: usize>(&mut self) -> Result<u64> {
        let bytes = self.bytes(LEN)?;
        let shifted = |number, byte: &u8| number << 8 | u64::from(*byte);
        Ok(bytes.iter().rev().fold(0, shifted))
    }

    /// Returns the next value, which follows its length.
    fn value(&mut self) -> Result<Vec<u8>> {
        let len = self.number::<4>()? as usize;
        if len > VALUE_LEN_MAX {
            return Err(damaged());
        }
        self.bytes(len)
    }
}

fn read_array<const LEN: usize>(device: &Arc<dyn Device>, place: u64) -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    if place.saturating_add(LEN as u64) > device.len_bytes() {
        return Err(damaged());
    }
    device.read_at(&mut bytes, place)?;
    Ok(bytes)
}

fn damaged() -> Error {
    let text = "squashfs: the extended attributes are damaged";
    Error::new(Errno::UCLEAN, text)
}

/// Converts an error of the crate.
pub(crate) fn error(error: &BackhandError) -> Error {
    let errno = match error {
        BackhandError::StdIo(_) => Errno::IO,
        BackhandError::UnsupportedCompression(_)
        | BackhandError::UnsupportedSquashfsVersion(..) => Errno::OPNOTSUPP,
        _ => Errno::UCLEAN,
    };
    Error::new(errno, format!("squashfs: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;
    use crate::fs::rofs::squashfs::read_tree;

    /// Where the superblock has the place of the table.
    const TABLE_AT: usize = 56;
    /// Header of a metadata block of 8 KiB that is stored without compression.
    const BLOCK_HEADER: u16 = 0x8000 | METADATA_MAXSIZE as u16;

    fn number(bytes: &[u8], at: usize) -> usize {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
    }

    /// Attributes without name and value, each in 8 bytes: a small image has millions of them.
    #[test]
    fn too_many_attributes_are_refused() {
        let mut bytes = include_bytes!("../../../../../fuzz/corpus/squashfs/stored").to_vec();
        let table = number(&bytes, TABLE_AT);
        let start = number(&bytes, table);
        // The first id, behind the header of its block.
        let id = number(&bytes, table + HEADER_LEN as usize) + 2;
        let place = ((bytes.len() - start) as u64) << 16;
        bytes[id..id + 8].copy_from_slice(&place.to_le_bytes());
        bytes[id + 8..id + 12].copy_from_slice(&u32::MAX.to_le_bytes());
        for _ in 0..2 * ALL_LEN_MAX / ENTRY_LEN * 8 / METADATA_MAXSIZE {
            bytes.extend(BLOCK_HEADER.to_le_bytes());
            bytes.extend([0; METADATA_MAXSIZE]);
        }
        let device = Arc::new(MemoryDevice::new(bytes.len() as u64));
        device.write_at(&bytes, 0).unwrap();
        let tree = read_tree(device).unwrap();
        let found = (0..tree.nodes.len()).map(|node| tree.content.xattrs(node));
        let failed: Vec<_> = found.filter_map(Result::err).collect();
        assert!(!failed.is_empty(), "no file has the attributes");
        assert!(
            failed[0].to_string().contains("are damaged"),
            "{}",
            failed[0]
        );
    }
}
