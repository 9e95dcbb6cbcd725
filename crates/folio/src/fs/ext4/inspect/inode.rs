//! One inode, decoded: its fields as they are on disk, its blocks, its attributes' names.

use super::inspector::Ext4Inspector;
use super::mapping::BlockRun;
use crate::base::{DeviceNumber, PhysicalBlock, Result, Timespec};
use crate::fs::ext4::inode::{decode_device, decode_time, file_type_of, raw_block_count};
use crate::fs::ext4::layout::checksum::{inode_checksum, inode_seed};
use crate::fs::ext4::layout::disk::{INODE_BASE_LEN, RawInode, inode_flags};
use crate::fs::ext4::xattr::format::{Xattr, XattrValue, parse_block, parse_inode_area};
use crate::vfs::FileType;

/// The fields of an inode, as they are on disk. debugfs: `stat`.
#[derive(Debug, Clone)]
pub struct InodeFields {
    /// Its number.
    pub number: u32,
    /// Type and permissions (`i_mode`).
    pub mode: u16,
    /// Its type; `None` if `mode` has an invalid one.
    pub file_type: Option<FileType>,
    /// `i_flags`.
    pub flags: u32,
    /// `i_generation`.
    pub generation: u32,
    /// `i_version`.
    pub version: u64,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Project id, if the inode has room for it.
    pub project: Option<u32>,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Block of extended attributes; 0 for none.
    pub xattr_block: u64,
    /// Number of names.
    pub links: u16,
    /// `i_blocks`: units of 512 bytes, or blocks with the flag huge_file.
    pub block_count: u64,
    /// Last change of the inode.
    pub changed: InodeTime,
    /// Last access.
    pub accessed: InodeTime,
    /// Last change of the data.
    pub modified: InodeTime,
    /// Creation, if the inode records it.
    pub created: Option<InodeTime>,
    /// Deletion in seconds, or the next inode of the orphan list; 0 for none.
    pub deleted: u32,
    /// Length of the fields after the first 128 bytes; `None` for inodes of 128 bytes.
    pub extra_len: Option<u16>,
    /// Its checksum, with metadata_csum, and whether it is right.
    pub checksum: Option<(u32, bool)>,
    /// Names and lengths of its extended attributes.
    pub xattrs: Vec<(Vec<u8>, u64)>,
    /// Where its content is.
    pub content: InodeContent,
}

/// A time with its two fields on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeTime {
    /// The low 32 bits of the seconds.
    pub low: u32,
    /// Two more bits of seconds, and the nanoseconds; `None` without the field.
    pub extra: Option<u32>,
}

impl InodeTime {
    /// Returns the decoded time.
    pub fn time(&self) -> Timespec {
        decode_time(self.low, self.extra.unwrap_or(0))
    }
}

/// The place of an inode's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InodeContent {
    /// Blocks that an extent tree maps.
    Extents(Vec<BlockRun>),
    /// Blocks that a block map names.
    Pointers(Vec<BlockRun>),
    /// In the inode; the length that it has room for in `i_block` and in an attribute, in bytes.
    Inline(u64),
    /// The target of a symbolic link, in the inode.
    Target(Vec<u8>),
    /// A device's major and minor number.
    Device(DeviceNumber),
}

/// Bytes of inline data in `i_block`.
const INLINE_BASE_LEN: u64 = 60;

impl Ext4Inspector {
    /// Reads inode `number`.
    ///
    /// # Errors
    /// EUCLEAN for an inode number that does not exist, a damaged mapping or damaged attributes.
    pub fn inode(&self, number: u32) -> Result<InodeFields> {
        let bytes = self.inode_bytes(number)?;
        let raw = RawInode::of_bytes(&bytes);
        let at_inode = |e: crate::base::Error| e.at(format!("inode {number}"));
        let xattrs = self.xattrs(&raw, &bytes).map_err(at_inode)?;
        let content = self.content(&raw, &xattrs).map_err(at_inode)?;
        let has_extra = bytes.len() > INODE_BASE_LEN;
        let field = |end: u16| has_extra && raw.extra_isize.get() >= end;
        let time = |low: u32, extra: u32, end: u16| InodeTime {
            low,
            extra: field(end).then_some(extra),
        };
        let wide = |low: u16, high: u16| u32::from(high) << 16 | u32::from(low);
        let version_hi = if field(28) { raw.version_hi.get() } else { 0 };
        Ok(InodeFields {
            number,
            mode: raw.mode.get(),
            file_type: file_type_of(raw.mode.get()),
            flags: raw.flags.get(),
            generation: raw.generation.get(),
            version: u64::from(version_hi) << 32 | u64::from(raw.version_lo.get()),
            uid: wide(raw.uid_lo.get(), raw.uid_high.get()),
            gid: wide(raw.gid_lo.get(), raw.gid_high.get()),
            project: field(32).then(|| raw.projid.get()),
            size_bytes: size(&raw),
            xattr_block: xattr_block(&raw),
            links: raw.links_count.get(),
            block_count: raw_block_count(&raw),
            changed: time(raw.ctime.get(), raw.ctime_extra.get(), 8),
            accessed: time(raw.atime.get(), raw.atime_extra.get(), 16),
            modified: time(raw.mtime.get(), raw.mtime_extra.get(), 12),
            created: field(24).then(|| time(raw.crtime.get(), raw.crtime_extra.get(), 24)),
            deleted: raw.dtime.get(),
            extra_len: has_extra.then(|| raw.extra_isize.get()),
            checksum: self.checksum(number, &raw, &bytes),
            xattrs: xattrs.iter().map(name_and_len).collect(),
            content,
        })
    }

    /// Returns the attributes in the inode and in its block of attributes.
    pub(super) fn xattrs(&self, raw: &RawInode, bytes: &[u8]) -> Result<Vec<Xattr>> {
        let start = INODE_BASE_LEN + usize::from(raw.extra_isize.get());
        let area = bytes.get(start..).unwrap_or_default();
        let mut xattrs = parse_inode_area(area)?;
        let block = xattr_block(raw);
        if block != 0 {
            self.check_block(block, 1)?;
            let bytes = self.block(block)?;
            let seed = self.superblock.checksum_seed;
            xattrs.extend(parse_block(&bytes, PhysicalBlock(block), seed)?.xattrs);
        }
        Ok(xattrs)
    }

    fn content(&self, raw: &RawInode, xattrs: &[Xattr]) -> Result<InodeContent> {
        let flags = raw.flags.get();
        if flags & inode_flags::INLINE_DATA != 0 {
            let data = xattrs.iter().find(|xattr| xattr.is_inline_data());
            let len = data.map_or(0, |xattr| name_and_len(xattr).1);
            return Ok(InodeContent::Inline(INLINE_BASE_LEN + len));
        }
        match file_type_of(raw.mode.get()) {
            Some(FileType::CharacterDevice | FileType::BlockDevice) => {
                return Ok(InodeContent::Device(decode_device(&raw.block)));
            }
            Some(FileType::Symlink)
                if size(raw) < INLINE_BASE_LEN && flags & inode_flags::EXTENTS == 0 =>
            {
                // Shorter than `i_block`.
                let len = size(raw) as usize;
                return Ok(InodeContent::Target(raw.block[..len].to_vec()));
            }
            _ => {}
        }
        let runs = self.mapping_of(raw)?;
        Ok(if flags & inode_flags::EXTENTS != 0 {
            InodeContent::Extents(runs)
        } else {
            InodeContent::Pointers(runs)
        })
    }

    fn checksum(&self, number: u32, raw: &RawInode, bytes: &[u8]) -> Option<(u32, bool)> {
        let seed = inode_seed(self.superblock.checksum_seed?, number, raw.generation.get());
        let has_high = bytes.len() > INODE_BASE_LEN && raw.extra_isize.get() >= 4;
        let low = u32::from(raw.checksum_lo.get());
        let (stored, mask) = if has_high {
            (u32::from(raw.checksum_hi.get()) << 16 | low, u32::MAX)
        } else {
            (low, 0xFFFF)
        };
        let is_right = inode_checksum(seed, bytes, has_high) & mask == stored;
        Some((stored, is_right))
    }
}

fn size(raw: &RawInode) -> u64 {
    u64::from(raw.size_high.get()) << 32 | u64::from(raw.size_lo.get())
}

pub(super) fn xattr_block(raw: &RawInode) -> u64 {
    u64::from(raw.file_acl_high.get()) << 32 | u64::from(raw.file_acl_lo.get())
}

/// Returns an attribute's name, with the number of an unknown prefix, and its value's length.
fn name_and_len(xattr: &Xattr) -> (Vec<u8>, u64) {
    let len = match &xattr.value {
        XattrValue::Inline(bytes) => bytes.len() as u64,
        XattrValue::EaInode { size_bytes, .. } => u64::from(*size_bytes),
    };
    let unnamed = || {
        let prefix = format!("{}.", xattr.index).into_bytes();
        [&prefix, &xattr.suffix[..]].concat()
    };
    (xattr.full_name().unwrap_or_else(unnamed), len)
}
