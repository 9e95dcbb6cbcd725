//! The structures of an EROFS, byte for byte. Linux: fs/erofs/erofs_fs.h.

use folio::vfs::FileType;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, Unaligned};

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 4096;
pub(crate) const BLOCK_BITS: u8 = 12;
/// Where the superblock starts, in bytes.
pub(crate) const SUPERBLOCK_OFFSET: usize = 1024;
pub(crate) const MAGIC: u32 = 0xE0F5_E1E2;

/// The superblock has a checksum.
pub(crate) const COMPAT_CHECKSUM: u32 = 1;
/// Times are those of modification.
pub(crate) const COMPAT_MTIME: u32 = 2;
/// Inodes have a filter of the names of their extended attributes.
pub(crate) const COMPAT_XATTR_FILTER: u32 = 4;
/// Compressed data are at the end of their blocks.
pub(crate) const INCOMPAT_ZERO_PADDING: u32 = 1;
/// Parameters of compressions follow the superblock, and compressed data may have several blocks.
pub(crate) const INCOMPAT_COMPRESSION: u32 = 2;
/// Files may consist of chunks.
pub(crate) const INCOMPAT_CHUNKED_FILE: u32 = 4;

/// A number of an inode counts units of this many bytes.
pub(crate) const SLOT_BYTES: usize = 32;
/// The block of a chunk that is a hole.
pub(crate) const HOLE: u32 = u32::MAX;

/// How an inode finds its data (`i_format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataLayout {
    /// Consecutive blocks.
    Plain = 0,
    /// Compressed pieces, whose blocks are listed behind the inode, 8 bytes for each block of the
    /// file.
    Compressed = 1,
    /// Consecutive blocks, then the rest behind the inode.
    Inline = 2,
    /// Chunks, whose blocks are listed behind the inode.
    Chunks = 4,
}

/// Returns all types of files.
#[cfg(feature = "check")]
pub(crate) fn file_types() -> [FileType; 7] {
    [
        FileType::Regular,
        FileType::Directory,
        FileType::CharacterDevice,
        FileType::BlockDevice,
        FileType::Fifo,
        FileType::Socket,
        FileType::Symlink,
    ]
}

/// Returns the type of a file in a directory entry, and in the mode of an inode (`S_IFMT`).
pub(crate) fn type_codes(file_type: FileType) -> (u8, u16) {
    match file_type {
        FileType::Regular => (1, 0o100_000),
        FileType::Directory => (2, 0o040_000),
        FileType::CharacterDevice => (3, 0o020_000),
        FileType::BlockDevice => (4, 0o060_000),
        FileType::Fifo => (5, 0o010_000),
        FileType::Socket => (6, 0o140_000),
        FileType::Symlink => (7, 0o120_000),
    }
}

/// The superblock. Linux: `erofs_super_block`.
#[derive(FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawSuperblock {
    pub(crate) magic: U32,
    pub(crate) checksum: U32,
    pub(crate) feature_compat: U32,
    pub(crate) block_bits: u8,
    pub(crate) extension_slots: u8,
    pub(crate) root_nid: U16,
    pub(crate) inode_count: U64,
    pub(crate) build_time_secs: U64,
    pub(crate) build_time_nanos: U32,
    pub(crate) block_count: U32,
    pub(crate) meta_block: U32,
    pub(crate) xattr_block: U32,
    pub(crate) uuid: [u8; 16],
    pub(crate) volume_name: [u8; 16],
    pub(crate) feature_incompat: U32,
    pub(crate) compression_algorithms: U16,
    pub(crate) extra_devices: U16,
    pub(crate) device_table_slot: U16,
    pub(crate) directory_block_bits: u8,
    pub(crate) xattr_prefix_count: u8,
    pub(crate) xattr_prefix_start: U32,
    pub(crate) packed_nid: U64,
    pub(crate) xattr_filter_reserved: u8,
    pub(crate) reserved: [u8; 23],
}

const _: () = assert!(size_of::<RawSuperblock>() == 128);

/// An inode with small numbers. Linux: `erofs_inode_compact`.
#[derive(FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawCompactInode {
    pub(crate) format: U16,
    pub(crate) xattr_count: U16,
    pub(crate) mode: U16,
    pub(crate) link_count: U16,
    pub(crate) size_bytes: U32,
    pub(crate) reserved: U32,
    pub(crate) data: U32,
    pub(crate) number: U32,
    pub(crate) uid: U16,
    pub(crate) gid: U16,
    pub(crate) reserved_end: U32,
}

const _: () = assert!(size_of::<RawCompactInode>() == 32);

/// An inode with all numbers. Linux: `erofs_inode_extended`.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawExtendedInode {
    pub(crate) format: U16,
    pub(crate) xattr_count: U16,
    pub(crate) mode: U16,
    pub(crate) reserved: U16,
    pub(crate) size_bytes: U64,
    pub(crate) data: U32,
    pub(crate) number: U32,
    pub(crate) uid: U32,
    pub(crate) gid: U32,
    pub(crate) modified_secs: U64,
    pub(crate) modified_nanos: U32,
    pub(crate) link_count: U32,
    pub(crate) reserved_end: [u8; 16],
}

const _: () = assert!(size_of::<RawExtendedInode>() == 64);

/// A name in a directory. Linux: `erofs_dirent`.
#[derive(FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawDirent {
    pub(crate) nid: U64,
    pub(crate) name_offset: U16,
    pub(crate) file_type: u8,
    pub(crate) reserved: u8,
}

const _: () = assert!(size_of::<RawDirent>() == 12);

/// The start of the extended attributes behind an inode. Linux: `erofs_xattr_ibody_header`.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawXattrHeader {
    pub(crate) name_filter: U32,
    pub(crate) shared_count: u8,
    pub(crate) reserved: [u8; 7],
}

const _: () = assert!(size_of::<RawXattrHeader>() == 12);

/// An extended attribute; name and value follow. Linux: `erofs_xattr_entry`.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawXattrEntry {
    pub(crate) name_len: u8,
    pub(crate) name_index: u8,
    pub(crate) value_len: U16,
}

const _: () = assert!(size_of::<RawXattrEntry>() == 4);
