//! The state of an inode in memory: its fields, its block map, and how both differ from the disk.

use super::fields::{
    charge, decode_device, decode_time, encode_time, file_type_of, raw_block_count,
};
use super::name_index::NameIndex;
use crate::base::{DeviceNumber, Error, InodeNumber, Result, Timespec};
use crate::cache::ObjectCharge;
use crate::fs::ext4::layout::disk::{INODE_BASE_LEN, RawInode, inode_flags};
use crate::fs::ext4::layout::extent::empty_root;
use crate::fs::ext4::layout::features::{Features, Incompat};
use crate::fs::ext4::map::delayed::DelayedBlocks;
use crate::fs::ext4::map::extent_map::ExtentMap;
use crate::vfs::{Attributes, FileType};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::FromBytes;

/// Where an inode's contents are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentLayout {
    /// In blocks mapped by extents.
    Extents,
    /// In blocks mapped by pointers, as in ext2 and ext3.
    BlockMap,
    /// In the inode itself (`inline_data`).
    Inline,
    /// In `i_block`: the target of a short symbolic link, the number of a device node.
    InBlockField,
}

impl ContentLayout {
    /// Returns the layout of new contents in blocks, on the file system with `features`.
    pub(crate) fn in_blocks(features: &Features) -> Self {
        if features.incompat.contains(Incompat::EXTENT) {
            Self::Extents
        } else {
            Self::BlockMap
        }
    }

    /// Whether the contents are in blocks.
    pub(crate) fn has_blocks(self) -> bool {
        matches!(self, Self::Extents | Self::BlockMap)
    }

    /// Returns the inode flags of the layout.
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Extents => inode_flags::EXTENTS,
            Self::Inline => inode_flags::INLINE_DATA,
            Self::BlockMap | Self::InBlockField => 0,
        }
    }

    /// Returns `i_block` of an inode without contents.
    pub(crate) fn empty_block_field(self) -> [u8; 60] {
        match self {
            Self::Extents => empty_root(),
            _ => [0; 60],
        }
    }
}

/// The changing part of an inode.
pub(crate) struct InodeState {
    pub(crate) raw: RawInode,
    /// The bytes after the known fields up to the inode's end: usually extended attributes.
    pub(crate) tail: Box<[u8]>,
    pub(crate) layout: ContentLayout,
    pub(crate) map: ExtentMap,
    /// Whether `map` must be written out with the inode.
    pub(crate) map_is_dirty: bool,
    pub(crate) delayed: DelayedBlocks,
    /// Whether the inode must be written to the table.
    pub(crate) is_dirty: bool,
    /// Whether the inode's slot in the table has its bytes, maybe older ones.
    pub(crate) is_in_table: bool,
    /// For regular files, the size that the table shows: the data before it is on the device, or a
    /// hole. Linux: `i_disksize`.
    pub(crate) disk_size: u64,
    /// The transaction of the last change.
    pub(crate) changed_in: u32,
    /// The transaction of the last change to more than times.
    pub(crate) data_changed_in: u32,
    /// The contents that the table still shows while the file is rewritten.
    pub(crate) held: Option<Box<HeldContents>>,
    /// Truncated to nothing and not closed since; for `auto_da_alloc=close`.
    pub(crate) was_truncated: bool,
    /// The names of a large directory without an index on disk, once one was looked up.
    pub(crate) name_index: Option<Arc<NameIndex>>,
    /// The memory of the inode, once it is one of a mount.
    pub(super) charge: Option<ObjectCharge>,
}

/// Contents that a truncation removed in memory, but not on disk (file/auto_da_alloc.rs).
pub(crate) struct HeldContents {
    /// Size on disk, in bytes.
    pub(crate) size_bytes: u64,
    /// `i_block`: the root of the extent tree.
    pub(crate) root: [u8; 60],
    pub(crate) map: ExtentMap,
    pub(crate) since: Instant,
    /// The tick of the last write of new contents (`ChangeClock`).
    pub(crate) written_in: u32,
    /// Whether the new contents are complete, as far as Folio can know.
    pub(crate) is_ready: bool,
}

impl InodeState {
    /// Returns the state of an inode with the fields `raw`, followed by `tail`, and no blocks.
    pub(super) fn new(raw: RawInode, tail: Box<[u8]>, layout: ContentLayout) -> Self {
        Self {
            raw,
            tail,
            layout,
            map: ExtentMap::default(),
            map_is_dirty: false,
            delayed: DelayedBlocks::default(),
            is_dirty: false,
            is_in_table: false,
            disk_size: 0,
            changed_in: 0,
            data_changed_in: 0,
            held: None,
            was_truncated: false,
            name_index: None,
            charge: None,
        }
    }

    /// Returns the bytes outside of this object.
    pub(super) fn heap_bytes(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.map.heap_bytes());
        let names = self.name_index.as_ref();
        self.tail.len()
            + self.map.heap_bytes()
            + self.delayed.heap_bytes()
            + held
            + names.map_or(0, |index| index.heap_bytes())
    }

    /// Decodes an inode whose bytes on disk are `bytes`. Its block map is still empty.
    ///
    /// # Errors
    /// EUCLEAN for invalid fields.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut padded = [0; size_of::<RawInode>()];
        let extra = if bytes.len() > INODE_BASE_LEN {
            usize::from(u16::from_le_bytes([
                bytes[INODE_BASE_LEN],
                bytes[INODE_BASE_LEN + 1],
            ]))
        } else {
            0
        };
        let fields_end = INODE_BASE_LEN + extra;
        if fields_end > bytes.len() || extra % 4 != 0 {
            return Err(Error::corrupt(format!("{extra} bytes of extra fields")));
        }
        let known = fields_end.min(padded.len());
        padded[..known].copy_from_slice(&bytes[..known]);
        let raw = RawInode::read_from_bytes(&padded).map_err(|_| Error::corrupt("cut short"))?;
        let mut state = Self::new(raw, bytes[known..].into(), ContentLayout::InBlockField);
        state.is_in_table = true;
        let file_type = state.file_type()?;
        let flags = state.raw.flags.get();
        state.layout = if flags & inode_flags::INLINE_DATA != 0 {
            ContentLayout::Inline
        } else if flags & inode_flags::EXTENTS != 0 {
            ContentLayout::Extents
        } else if matches!(file_type, FileType::Regular | FileType::Directory)
            || (file_type == FileType::Symlink && state.raw.size_lo.get() >= 60)
        {
            ContentLayout::BlockMap
        } else {
            ContentLayout::InBlockField
        };
        Ok(state)
    }

    /// Returns the type in the mode.
    ///
    /// # Errors
    /// EUCLEAN if the mode has none.
    pub(crate) fn file_type(&self) -> Result<FileType> {
        file_type_of(self.raw.mode.get()).ok_or_else(|| {
            Error::corrupt(format!("no file type in mode {:o}", self.raw.mode.get()))
        })
    }

    /// Returns how many bytes of the fields after the first 128 the inode has.
    fn extra_len(&self) -> usize {
        usize::from(self.raw.extra_isize.get())
    }

    /// Returns the bytes of extended attributes that follow the fields; empty if the inode has no
    /// room for any.
    pub(crate) fn xattr_area(&self) -> &[u8] {
        let skip = (INODE_BASE_LEN + self.extra_len()).saturating_sub(size_of::<RawInode>());
        self.tail.get(skip..).unwrap_or(&[])
    }

    /// Returns the bytes of [`InodeState::xattr_area`] to change.
    pub(crate) fn xattr_area_mut(&mut self) -> &mut [u8] {
        let skip = (INODE_BASE_LEN + self.extra_len()).saturating_sub(size_of::<RawInode>());
        self.tail.get_mut(skip..).unwrap_or(&mut [])
    }

    /// Returns the block of extended attributes; 0 without one.
    pub(crate) fn xattr_block(&self) -> u64 {
        u64::from(self.raw.file_acl_high.get()) << 32 | u64::from(self.raw.file_acl_lo.get())
    }

    pub(crate) fn set_xattr_block(&mut self, block: u64) {
        self.raw.file_acl_lo = (block as u32).into();
        self.raw.file_acl_high = ((block >> 32) as u16).into();
    }

    /// Returns the size in bytes that the inode records. For regular files the mapping's size is
    /// the true one.
    pub(crate) fn recorded_size(&self) -> u64 {
        u64::from(self.raw.size_high.get()) << 32 | u64::from(self.raw.size_lo.get())
    }

    pub(crate) fn set_recorded_size(&mut self, size_bytes: u64) {
        self.raw.size_lo = (size_bytes as u32).into();
        self.raw.size_high = ((size_bytes >> 32) as u32).into();
    }

    /// Returns the space in use in units of 512 bytes.
    fn blocks_512(&self, block_size: usize) -> u64 {
        let count = raw_block_count(&self.raw);
        if self.raw.flags.get() & inode_flags::HUGE_FILE != 0 {
            count.saturating_mul(block_size as u64 / 512)
        } else {
            count
        }
    }

    /// Adds `change` blocks to the inode's block count.
    pub(crate) fn charge_blocks(&mut self, change: i64, block_size: usize) {
        charge(&mut self.raw, change, block_size);
    }

    /// Returns the fields that the table shows: those of the old contents while a truncation is
    /// held back.
    pub(super) fn shown(&self, block_size: usize) -> Cow<'_, RawInode> {
        let Some(held) = &self.held else {
            return Cow::Borrowed(&self.raw);
        };
        let data = self.map.data_blocks() as i64;
        let mut raw = self.raw;
        raw.block = held.root;
        raw.size_lo = (held.size_bytes as u32).into();
        raw.size_high = ((held.size_bytes >> 32) as u32).into();
        charge(&mut raw, held.block_count() - data, block_size);
        Cow::Owned(raw)
    }

    /// Returns the link count of stat(2): a directory that had too many to count shows 1.
    pub(crate) fn link_count(&self) -> u32 {
        self.raw.links_count.get().into()
    }

    /// Whether the inode has the field that ends at byte `offset_after`.
    pub(super) fn has_field(&self, offset_after: usize) -> bool {
        INODE_BASE_LEN + self.extra_len() >= offset_after
    }

    pub(crate) fn accessed(&self) -> Timespec {
        decode_time(self.raw.atime.get(), self.raw.atime_extra.get())
    }

    pub(crate) fn modified(&self) -> Timespec {
        decode_time(self.raw.mtime.get(), self.raw.mtime_extra.get())
    }

    pub(crate) fn set_accessed(&mut self, time: Timespec) {
        let (low, extra) = encode_time(time, self.has_field(144));
        (self.raw.atime, self.raw.atime_extra) = (low.into(), extra.into());
    }

    pub(crate) fn set_modified(&mut self, time: Timespec) {
        let (low, extra) = encode_time(time, self.has_field(140));
        (self.raw.mtime, self.raw.mtime_extra) = (low.into(), extra.into());
    }

    pub(crate) fn set_changed(&mut self, time: Timespec) {
        let (low, extra) = encode_time(time, self.has_field(136));
        (self.raw.ctime, self.raw.ctime_extra) = (low.into(), extra.into());
    }

    pub(super) fn set_created(&mut self, time: Timespec) {
        if self.has_field(152) {
            let (low, extra) = encode_time(time, true);
            (self.raw.crtime, self.raw.crtime_extra) = (low.into(), extra.into());
        }
    }

    pub(crate) fn set_owner(&mut self, uid: Option<u32>, gid: Option<u32>) {
        if let Some(uid) = uid {
            (self.raw.uid_lo, self.raw.uid_high) =
                ((uid as u16).into(), ((uid >> 16) as u16).into());
        }
        if let Some(gid) = gid {
            (self.raw.gid_lo, self.raw.gid_high) =
                ((gid as u16).into(), ((gid >> 16) as u16).into());
        }
    }

    /// Returns the attributes of stat(2). The size is replaced by that of the mapping, if there is
    /// one.
    pub(super) fn attributes(
        &self,
        number: u32,
        file_type: FileType,
        block_size: usize,
    ) -> Attributes {
        let raw = &self.raw;
        let delayed = self.delayed.reserved_blocks() * (block_size as u64 / 512);
        Attributes {
            number: InodeNumber(number.into()),
            file_type,
            mode: raw.mode.get() & 0o7777,
            uid: u32::from(raw.uid_high.get()) << 16 | u32::from(raw.uid_lo.get()),
            gid: u32::from(raw.gid_high.get()) << 16 | u32::from(raw.gid_lo.get()),
            link_count: self.link_count(),
            size_bytes: self.recorded_size(),
            blocks_512: self.blocks_512(block_size) + delayed,
            block_size: block_size as u32,
            device: match file_type {
                FileType::CharacterDevice | FileType::BlockDevice => decode_device(&raw.block),
                _ => DeviceNumber::default(),
            },
            accessed: self.accessed(),
            modified: self.modified(),
            changed: decode_time(raw.ctime.get(), raw.ctime_extra.get()),
            created: self
                .has_field(152)
                .then(|| decode_time(raw.crtime.get(), raw.crtime_extra.get())),
        }
    }
}

impl HeldContents {
    /// Returns the number of blocks of the old contents, including those of the tree.
    pub(crate) fn block_count(&self) -> i64 {
        (self.map.data_blocks() + self.map.tree_blocks().len() as u64) as i64
    }
}
