//! Raw on-disk structures of ext4.
//!
//! Sources: the kernel's Documentation/filesystems/ext4 and e2fsprogs' ext2_fs.h for the meaning of
//! fields. All numbers are little-endian. They are untrusted until a checked type (`Superblock`,
//! `Group`, ...) has been built from them.

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offset of the primary superblock in bytes, for all block sizes.
pub(crate) const SUPERBLOCK_OFFSET: u64 = 1024;
/// `s_magic`.
pub(crate) const SUPERBLOCK_MAGIC: u16 = 0xEF53;
/// `eh_magic` of each extent node.
pub(crate) const EXTENT_MAGIC: u16 = 0xF30A;
/// Maximum length of a written extent in blocks; a greater `ee_len` marks an unwritten extent.
pub(crate) const EXTENT_LEN_MAX: u16 = 32768;

/// Inode of the root directory.
pub(crate) const ROOT_INODE: u32 = 2;
/// Inode that owns the blocks reserved for more group descriptors.
pub(crate) const RESIZE_INODE: u32 = 7;
/// Inode of the journal.
pub(crate) const JOURNAL_INODE: u32 = 8;
/// First inode that is not reserved, on revision 0.
pub(crate) const FIRST_INODE: u32 = 11;

/// `s_state`: unmounted cleanly.
pub(crate) const STATE_VALID: u16 = 1;
/// `s_state`: errors were found.
pub(crate) const STATE_ERROR: u16 = 2;

/// The superblock, 1024 bytes.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // The names are those of the format's documentation.
pub(crate) struct RawSuperblock {
    pub inodes_count: U32,
    pub blocks_count_lo: U32,
    pub r_blocks_count_lo: U32,
    pub free_blocks_count_lo: U32,
    pub free_inodes_count: U32,
    pub first_data_block: U32,
    pub log_block_size: U32,
    pub log_cluster_size: U32,
    pub blocks_per_group: U32,
    pub clusters_per_group: U32,
    pub inodes_per_group: U32,
    pub mtime: U32,
    pub wtime: U32,
    pub mnt_count: U16,
    pub max_mnt_count: U16,
    pub magic: U16,
    pub state: U16,
    pub errors: U16,
    pub minor_rev_level: U16,
    pub lastcheck: U32,
    pub checkinterval: U32,
    pub creator_os: U32,
    pub rev_level: U32,
    pub def_resuid: U16,
    pub def_resgid: U16,
    pub first_ino: U32,
    pub inode_size: U16,
    pub block_group_nr: U16,
    pub feature_compat: U32,
    pub feature_incompat: U32,
    pub feature_ro_compat: U32,
    pub uuid: [u8; 16],
    pub volume_name: [u8; 16],
    pub last_mounted: [u8; 64],
    pub algorithm_usage_bitmap: U32,
    pub prealloc_blocks: u8,
    pub prealloc_dir_blocks: u8,
    pub reserved_gdt_blocks: U16,
    pub journal_uuid: [u8; 16],
    pub journal_inum: U32,
    pub journal_dev: U32,
    pub last_orphan: U32,
    pub hash_seed: [U32; 4],
    pub def_hash_version: u8,
    pub jnl_backup_type: u8,
    pub desc_size: U16,
    pub default_mount_opts: U32,
    pub first_meta_bg: U32,
    pub mkfs_time: U32,
    pub jnl_blocks: [U32; 17],
    pub blocks_count_hi: U32,
    pub r_blocks_count_hi: U32,
    pub free_blocks_count_hi: U32,
    pub min_extra_isize: U16,
    pub want_extra_isize: U16,
    pub flags: U32,
    pub raid_stride: U16,
    pub mmp_interval: U16,
    pub mmp_block: U64,
    pub raid_stripe_width: U32,
    pub log_groups_per_flex: u8,
    pub checksum_type: u8,
    pub encryption_level: u8,
    pub reserved_pad: u8,
    pub kbytes_written: U64,
    pub snapshot_inum: U32,
    pub snapshot_id: U32,
    pub snapshot_r_blocks_count: U64,
    pub snapshot_list: U32,
    pub error_count: U32,
    pub first_error_time: U32,
    pub first_error_ino: U32,
    pub first_error_block: U64,
    pub first_error_func: [u8; 32],
    pub first_error_line: U32,
    pub last_error_time: U32,
    pub last_error_ino: U32,
    pub last_error_line: U32,
    pub last_error_block: U64,
    pub last_error_func: [u8; 32],
    pub mount_opts: [u8; 64],
    pub usr_quota_inum: U32,
    pub grp_quota_inum: U32,
    pub overhead_clusters: U32,
    pub backup_bgs: [U32; 2],
    pub encrypt_algos: [u8; 4],
    pub encrypt_pw_salt: [u8; 16],
    pub lpf_ino: U32,
    pub prj_quota_inum: U32,
    pub checksum_seed: U32,
    pub wtime_hi: u8,
    pub mtime_hi: u8,
    pub mkfs_time_hi: u8,
    pub lastcheck_hi: u8,
    pub first_error_time_hi: u8,
    pub last_error_time_hi: u8,
    pub first_error_errcode: u8,
    pub last_error_errcode: u8,
    pub encoding: U16,
    pub encoding_flags: U16,
    pub orphan_file_inum: U32,
    pub reserved: [U32; 94],
    pub checksum: U32,
}

const _: () = assert!(size_of::<RawSuperblock>() == 1024);
const _: () = assert!(offset_of!(RawSuperblock, magic) == 0x38);
const _: () = assert!(offset_of!(RawSuperblock, uuid) == 0x68);
const _: () = assert!(offset_of!(RawSuperblock, hash_seed) == 0xEC);
const _: () = assert!(offset_of!(RawSuperblock, desc_size) == 0xFE);
const _: () = assert!(offset_of!(RawSuperblock, jnl_blocks) == 0x10C);
const _: () = assert!(offset_of!(RawSuperblock, flags) == 0x160);
const _: () = assert!(offset_of!(RawSuperblock, kbytes_written) == 0x178);
const _: () = assert!(offset_of!(RawSuperblock, error_count) == 0x194);
const _: () = assert!(offset_of!(RawSuperblock, mount_opts) == 0x200);
const _: () = assert!(offset_of!(RawSuperblock, checksum_seed) == 0x270);
const _: () = assert!(offset_of!(RawSuperblock, orphan_file_inum) == 0x280);
const _: () = assert!(offset_of!(RawSuperblock, checksum) == 0x3FC);

impl RawSuperblock {
    /// Stores a copy of the journal inode's mapping and size (`s_jnl_blocks`), from which a lost
    /// inode is restored.
    pub(crate) fn back_up_journal(&mut self, inode: &RawInode) {
        self.jnl_backup_type = JOURNAL_BACKUP_BLOCKS;
        let bytes = self.jnl_blocks.as_mut_bytes();
        bytes[..60].copy_from_slice(&inode.block);
        bytes[60..64].copy_from_slice(inode.size_high.as_bytes());
        bytes[64..].copy_from_slice(inode.size_lo.as_bytes());
    }
}

/// `s_jnl_backup_type`: a copy of `i_block` and the size.
pub(crate) const JOURNAL_BACKUP_BLOCKS: u8 = 1;

/// Offset of [`RawSuperblock::checksum`], and the number of bytes that it covers.
pub(crate) const SUPERBLOCK_CHECKSUM_OFFSET: usize = offset_of!(RawSuperblock, checksum);

/// A block group descriptor: 32 bytes, or 64 with the 64bit feature.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub(crate) struct RawGroupDescriptor {
    pub block_bitmap_lo: U32,
    pub inode_bitmap_lo: U32,
    pub inode_table_lo: U32,
    pub free_blocks_count_lo: U16,
    pub free_inodes_count_lo: U16,
    pub used_dirs_count_lo: U16,
    pub flags: U16,
    pub exclude_bitmap_lo: U32,
    pub block_bitmap_csum_lo: U16,
    pub inode_bitmap_csum_lo: U16,
    pub itable_unused_lo: U16,
    pub checksum: U16,
    pub block_bitmap_hi: U32,
    pub inode_bitmap_hi: U32,
    pub inode_table_hi: U32,
    pub free_blocks_count_hi: U16,
    pub free_inodes_count_hi: U16,
    pub used_dirs_count_hi: U16,
    pub itable_unused_hi: U16,
    pub exclude_bitmap_hi: U32,
    pub block_bitmap_csum_hi: U16,
    pub inode_bitmap_csum_hi: U16,
    pub reserved: U32,
}

const _: () = assert!(size_of::<RawGroupDescriptor>() == 64);
const _: () = assert!(offset_of!(RawGroupDescriptor, checksum) == 0x1E);

/// Offset of [`RawGroupDescriptor::checksum`].
pub(crate) const GROUP_CHECKSUM_OFFSET: usize = offset_of!(RawGroupDescriptor, checksum);

/// `bg_flags`: the inode bitmap and table were never used.
pub(crate) const GROUP_INODE_UNINIT: u16 = 1;
/// `bg_flags`: the block bitmap was never written; only metadata is in use.
pub(crate) const GROUP_BLOCK_UNINIT: u16 = 2;
/// `bg_flags`: the inode table is zeroed.
pub(crate) const GROUP_INODE_ZEROED: u16 = 4;

/// The 160 bytes of an inode that have named fields; an inode on disk has 128 (old) or more bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub(crate) struct RawInode {
    pub mode: U16,
    pub uid_lo: U16,
    pub size_lo: U32,
    pub atime: U32,
    pub ctime: U32,
    pub mtime: U32,
    pub dtime: U32,
    pub gid_lo: U16,
    pub links_count: U16,
    pub blocks_lo: U32,
    pub flags: U32,
    pub version_lo: U32,
    pub block: [u8; 60],
    pub generation: U32,
    pub file_acl_lo: U32,
    pub size_high: U32,
    pub obso_faddr: U32,
    pub blocks_high: U16,
    pub file_acl_high: U16,
    pub uid_high: U16,
    pub gid_high: U16,
    pub checksum_lo: U16,
    pub reserved: U16,
    pub extra_isize: U16,
    pub checksum_hi: U16,
    pub ctime_extra: U32,
    pub mtime_extra: U32,
    pub atime_extra: U32,
    pub crtime: U32,
    pub crtime_extra: U32,
    pub version_hi: U32,
    pub projid: U32,
}

impl RawInode {
    /// Returns the fields of an inode's bytes; fields beyond them are zeros.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let mut padded = [0; size_of::<Self>()];
        let known = bytes.len().min(padded.len());
        padded[..known].copy_from_slice(&bytes[..known]);
        zerocopy::transmute!(padded)
    }
}

const _: () = assert!(size_of::<RawInode>() == 160);
const _: () = assert!(offset_of!(RawInode, block) == 0x28);
const _: () = assert!(offset_of!(RawInode, generation) == 0x64);
const _: () = assert!(offset_of!(RawInode, extra_isize) == 0x80);

/// Length of the part before `extra_isize`, which each inode has (`EXT4_GOOD_OLD_INODE_SIZE`).
pub(crate) const INODE_BASE_LEN: usize = 128;
/// Offset of the low half of the inode's checksum.
pub(crate) const INODE_CHECKSUM_LO_OFFSET: usize = offset_of!(RawInode, checksum_lo);
/// Offset of the high half of the inode's checksum, if the inode is long enough.
pub(crate) const INODE_CHECKSUM_HI_OFFSET: usize = offset_of!(RawInode, checksum_hi);

/// `i_flags` that Folio uses; the other flags are preserved.
pub(crate) mod inode_flags {
    /// Cannot be changed.
    pub(crate) const IMMUTABLE: u32 = 0x10;
    /// Can only be appended to.
    pub(crate) const APPEND: u32 = 0x20;
    /// Access time is not updated.
    pub(crate) const NOATIME: u32 = 0x80;
    /// Data is encrypted.
    pub(crate) const ENCRYPT: u32 = 0x800;
    /// Directory has a hash index.
    pub(crate) const INDEX: u32 = 0x1000;
    /// Blocks are counted in file-system blocks, not 512 bytes.
    pub(crate) const HUGE_FILE: u32 = 0x40000;
    /// Data is mapped by extents.
    pub(crate) const EXTENTS: u32 = 0x80000;
    /// Has verity metadata past the end.
    pub(crate) const VERITY: u32 = 0x100000;
    /// Holds the value of a large extended attribute.
    pub(crate) const EA_INODE: u32 = 0x200000;
    /// Data is stored in the inode.
    pub(crate) const INLINE_DATA: u32 = 0x1000_0000;
    /// New files in the directory inherit its project.
    pub(crate) const PROJECT_INHERIT: u32 = 0x2000_0000;
    /// Directory ignores case.
    pub(crate) const CASEFOLD: u32 = 0x4000_0000;
    /// Flags that lsattr(1) shows (`EXT4_FL_USER_VISIBLE`).
    pub(crate) const VISIBLE: u32 = 0x725B_DFFF;
    /// Flags that chattr(1) changes here, of `EXT4_FL_USER_MODIFIABLE`.
    pub(crate) const MODIFIABLE: u32 = 0xFF | MODIFIABLE_IN_DIRECTORIES;
    /// Those that only directories have (`EXT4_REG_FLMASK`).
    pub(crate) const MODIFIABLE_IN_DIRECTORIES: u32 = 0x1_0000 | 0x2_0000 | PROJECT_INHERIT;
    /// Flags that a new file inherits from its directory, of `EXT4_FL_INHERITED`.
    pub(crate) const INHERITED: u32 = 0x8 | 0x40 | NOATIME | PROJECT_INHERIT | CASEFOLD;
    /// Flags that only directories inherit.
    pub(crate) const INHERITED_BY_DIRECTORIES: u32 = PROJECT_INHERIT | CASEFOLD;
}

/// Header of an extent tree node.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub(crate) struct RawExtentHeader {
    pub magic: U16,
    pub entries: U16,
    pub max: U16,
    pub depth: U16,
    pub generation: U32,
}

/// A leaf entry of an extent tree.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub(crate) struct RawExtent {
    pub block: U32,
    pub len: U16,
    pub start_hi: U16,
    pub start_lo: U32,
}

/// An inner entry of an extent tree.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub(crate) struct RawExtentIndex {
    pub block: U32,
    pub leaf_lo: U32,
    pub leaf_hi: U16,
    pub unused: U16,
}

/// Length of each of the three structures of an extent node, in bytes.
pub(crate) const EXTENT_ENTRY_LEN: usize = 12;

const _: () = assert!(size_of::<RawExtentHeader>() == EXTENT_ENTRY_LEN);
const _: () = assert!(size_of::<RawExtent>() == EXTENT_ENTRY_LEN);
const _: () = assert!(size_of::<RawExtentIndex>() == EXTENT_ENTRY_LEN);

/// Splits a number of 64 bits into its low and its high half, as fields of many structures have it.
pub(crate) fn halves(value: u64) -> (U32, U32) {
    ((value as u32).into(), ((value >> 32) as u32).into())
}
