//! On-disk structures of jbd2, big-endian unlike the rest of ext4. Linux: include/linux/jbd2.h.

use std::mem::{offset_of, size_of};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of each block of the log, except data blocks.
pub(super) const MAGIC: u32 = 0xC03B_3998;

/// `h_blocktype`.
pub(super) const TYPE_DESCRIPTOR: u32 = 1;
/// `h_blocktype`.
pub(super) const TYPE_COMMIT: u32 = 2;
/// `h_blocktype`.
pub(super) const TYPE_SUPERBLOCK_V1: u32 = 3;
/// `h_blocktype`.
pub(super) const TYPE_SUPERBLOCK_V2: u32 = 4;
/// `h_blocktype`.
pub(super) const TYPE_REVOKE: u32 = 5;

/// `s_feature_compat`: checksums of version 1, in commit blocks only.
pub(super) const COMPAT_CHECKSUM: u32 = 1;
/// `s_feature_incompat`: the log may contain revoke blocks.
pub(super) const INCOMPAT_REVOKE: u32 = 0x1;
/// `s_feature_incompat`: block numbers have 64 bits.
pub(super) const INCOMPAT_64BIT: u32 = 0x2;
/// `s_feature_incompat`: commit blocks may be written before their data.
pub(super) const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
/// `s_feature_incompat`: checksums, with 16 bits for data.
pub(super) const INCOMPAT_CSUM_V2: u32 = 0x8;
/// `s_feature_incompat`: checksums, with 32 bits for data.
pub(super) const INCOMPAT_CSUM_V3: u32 = 0x10;
/// `s_feature_incompat`: an area for fast commits at the end.
pub(super) const INCOMPAT_FAST_COMMIT: u32 = 0x20;

/// `s_errno` of a file system with errors: EIO, negative.
pub(super) const ERROR_IO: u32 = 0_u32.wrapping_sub(5);

/// `s_checksum_type`.
pub(super) const CHECKSUM_CRC32C: u8 = 4;

/// Tag flag: the data began with the magic number, which was replaced by zeros.
pub(super) const TAG_ESCAPED: u32 = 1;
/// Tag flag: no UUID follows.
pub(super) const TAG_SAME_UUID: u32 = 2;
/// Tag flag: the last tag of its block.
pub(super) const TAG_LAST: u32 = 8;

/// Blocks for fast commits if the superblock has 0.
pub(super) const FAST_COMMIT_BLOCKS_DEFAULT: u32 = 256;

/// The header of each block of the log, except data blocks.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) magic: U32,
    pub(super) block_type: U32,
    pub(super) sequence: U32,
}

/// The journal's superblock, 1024 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawJournalSuperblock {
    pub(super) header: RawHeader,
    pub(super) block_size: U32,
    pub(super) block_count: U32,
    pub(super) first: U32,
    pub(super) sequence: U32,
    pub(super) start: U32,
    pub(super) errno: U32,
    pub(super) feature_compat: U32,
    pub(super) feature_incompat: U32,
    pub(super) feature_ro_compat: U32,
    pub(super) uuid: [u8; 16],
    pub(super) user_count: U32,
    pub(super) dynamic_superblock: U32,
    pub(super) max_transaction: U32,
    pub(super) max_transaction_data: U32,
    pub(super) checksum_type: u8,
    pub(super) padding: [u8; 3],
    pub(super) fast_commit_blocks: U32,
    pub(super) head: U32,
    pub(super) padding2: [u8; 160],
    pub(super) checksum: U32,
    pub(super) users: [u8; 768],
}

const _: () = assert!(size_of::<RawJournalSuperblock>() == 1024);
const _: () = assert!(offset_of!(RawJournalSuperblock, checksum) == 0xFC);

/// Offset of the superblock's checksum.
pub(super) const SUPERBLOCK_CHECKSUM_OFFSET: usize = offset_of!(RawJournalSuperblock, checksum);

/// Writes the superblock of an empty journal of `block_count` blocks into its first block; the
/// first transaction will be number 1.
pub(crate) fn write_empty_superblock(block: &mut [u8], block_count: u32, uuid: [u8; 16]) {
    let raw = RawJournalSuperblock {
        header: RawHeader {
            magic: MAGIC.into(),
            block_type: TYPE_SUPERBLOCK_V2.into(),
            sequence: 0.into(),
        },
        // At most 64 KiB.
        block_size: (block.len() as u32).into(),
        block_count: block_count.into(),
        first: 1.into(),
        sequence: 1.into(),
        uuid,
        user_count: 1.into(),
        ..RawJournalSuperblock::new_zeroed()
    };
    block.fill(0);
    block[..size_of::<RawJournalSuperblock>()].copy_from_slice(raw.as_bytes());
}

/// A tag of a descriptor block, with checksums of version 3.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawTag3 {
    pub(super) block_lo: U32,
    pub(super) flags: U32,
    pub(super) block_hi: U32,
    pub(super) checksum: U32,
}

/// A tag of a descriptor block otherwise; the high half follows with 64-bit block numbers only.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawTag {
    pub(super) block_lo: U32,
    pub(super) checksum: U16,
    pub(super) flags: U16,
}

/// The body of a commit block, after the header.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawCommit {
    pub(super) checksum_type: u8,
    pub(super) checksum_size: u8,
    pub(super) padding: [u8; 2],
    pub(super) checksum: [U32; 8],
    pub(super) secs: U64,
    pub(super) nanos: U32,
}

/// `h_chksum_type` of a commit block with a checksum of version 1: CRC32.
pub(super) const COMMIT_CRC32: u8 = 1;
/// `h_chksum_size` of such a block.
pub(super) const COMMIT_CRC32_LEN: u8 = 4;
/// Length of a commit block's fields; the rest is zeros.
pub(super) const COMMIT_LEN: usize = 60;
const _: () = assert!(COMMIT_LEN == size_of::<RawHeader>() + size_of::<RawCommit>());

/// Offset of a commit block's checksum.
pub(super) const COMMIT_CHECKSUM_OFFSET: usize =
    size_of::<RawHeader>() + offset_of!(RawCommit, checksum);
