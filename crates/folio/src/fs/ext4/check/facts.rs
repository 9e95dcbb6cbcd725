//! Facts that one phase of the check collects and a later phase reads.

use crate::fs::ext4::layout::quota::QuotaUsage;
use std::collections::HashMap;
use std::ops::Range;

/// A block of a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectoryBlock {
    /// Block number in the directory.
    pub(super) logical: u64,
    /// Block number on the device.
    pub(super) block: u64,
}

/// A directory found by the inode phase.
pub(super) struct Directory {
    pub(super) number: u32,
    /// Its blocks: indices into `Checker::directory_blocks`.
    pub(super) blocks: Range<usize>,
    /// Blocks according to `i_size`.
    pub(super) size_blocks: u64,
    /// `i_flags`.
    pub(super) flags: u32,
    /// Seed of the blocks' checksums, with metadata_csum.
    pub(super) seed: Option<u32>,
    /// `i_block` and the inline attribute, for inline data.
    pub(super) inline: Option<Box<[u8]>>,
    /// The inode number in `..`; 0 if unknown.
    pub(super) dotdot: u32,
    /// The directory that has an entry for this one; 0 if none was found.
    pub(super) parent: u32,
}

/// The fields of one group's descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupFacts {
    pub(super) block_bitmap: Option<u64>,
    pub(super) inode_bitmap: Option<u64>,
    pub(super) inode_table: Option<u64>,
    pub(super) block_bitmap_csum: u32,
    pub(super) inode_bitmap_csum: u32,
    pub(super) free_blocks: u32,
    pub(super) free_inodes: u32,
    pub(super) used_dirs: u32,
    /// Inodes at the end of the table that were never used (`bg_itable_unused`).
    pub(super) unused_inodes: u32,
    pub(super) block_uninit: bool,
    pub(super) inode_uninit: bool,
    /// The descriptor has an error that its counted state repairs.
    pub(super) is_wrong: bool,
}

/// The inode of bad blocks (`EXT4_BAD_INO`).
pub(super) const BAD_BLOCKS_INODE: u32 = 1;

/// A block of attributes: its stored reference count, and the references found.
pub(super) struct SharedXattrBlock {
    pub(super) stored: u32,
    pub(super) found: u32,
    /// Facts of its attributes, which all its inodes share.
    pub(super) facts: XattrFacts,
}

/// Facts of an inode's attributes.
#[derive(Debug, Clone, Default)]
pub(super) struct XattrFacts {
    /// The attribute `system.data` of a file with inline data.
    pub(super) inline: Option<Vec<u8>>,
    /// Values in inodes of their own, as the inode with the attributes counts them.
    pub(super) values: ValueCharge,
    /// Policy of an encrypted inode.
    pub(super) policy: Option<EncryptionPolicy>,
}

/// Space of values in inodes of their own, which `i_blocks` and quota of the owner include.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ValueCharge {
    pub(super) clusters: u64,
    pub(super) inodes: u64,
}

impl XattrFacts {
    /// Adds the facts of more attributes of the same inode.
    pub(super) fn add(&mut self, more: Self) {
        self.inline = self.inline.take().or(more.inline);
        self.values.clusters += more.values.clusters;
        self.values.inodes += more.values.inodes;
        self.policy = self.policy.or(more.policy);
    }
}

/// The policy of an encrypted inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EncryptionPolicy {
    /// A number of the check's own for each policy.
    Known(u32),
    /// Of a later version.
    Unknown,
    /// Damaged or missing.
    Invalid,
}

/// The policies of the encrypted inodes.
#[derive(Default)]
pub(super) struct EncryptionPolicies {
    /// By inode number.
    pub(super) inodes: HashMap<u32, EncryptionPolicy>,
    /// The number of each known policy.
    pub(super) numbers: HashMap<Vec<u8>, u32>,
}

/// An inode that holds an attribute's value: its stored reference count, and the references found.
#[derive(Default)]
pub(super) struct XattrValueInode {
    pub(super) stored: Option<u64>,
    pub(super) found: u64,
    /// Written by Lustre, which stores no reference count.
    pub(super) is_uncounted: bool,
}

/// The block mapping of a file that the superblock names.
pub(super) struct SpecialFile {
    /// (File block, device block, number of blocks), in order.
    pub(super) runs: Vec<(u64, u64, u64)>,
    /// Length in bytes.
    pub(super) size: u64,
    /// Seed of the checksums in the file, with metadata_csum.
    pub(super) seed: Option<u32>,
}

impl SpecialFile {
    /// Returns the number of blocks from the file's start to its first hole.
    pub(super) fn contiguous_blocks(&self) -> u64 {
        let mut next = 0;
        for (logical, _, len) in &self.runs {
            if *logical != next {
                break;
            }
            next += len;
        }
        next
    }

    /// Iterates over the device blocks in file order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.runs
            .iter()
            .flat_map(|(_, start, len)| *start..start + len)
    }
}

/// Usage by user, group and project.
#[derive(Default)]
pub(super) struct QuotaUsages {
    pub(super) users: HashMap<u32, QuotaUsage>,
    pub(super) groups: HashMap<u32, QuotaUsage>,
    pub(super) projects: HashMap<u32, QuotaUsage>,
}
