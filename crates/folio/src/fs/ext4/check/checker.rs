//! The state of a running check. Each phase is in a file of its own.

use super::facts::{
    Directory, DirectoryBlock, EncryptionPolicies, GroupFacts, QuotaUsages, SharedXattrBlock,
    SpecialFile, XattrValueInode,
};
use super::report::FindingReporter;
use super::sets::{InodeFactsTable, SparseBitSet};
use crate::block::Device;
use crate::fs::ext4::layout::superblock::Superblock;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The state of a running check.
pub(super) struct Checker<'a> {
    pub(super) device: Arc<dyn Device>,
    pub(super) sb: Superblock,
    pub(super) report: FindingReporter<'a>,
    pub(super) groups: Vec<GroupFacts>,
    /// Clusters in use: the groups' bitmaps, concatenated.
    pub(super) used: SparseBitSet,
    /// Metadata blocks of the file system, by block number.
    pub(super) system: SparseBitSet,
    /// Blocks that the inode of bad blocks lists.
    pub(super) bad_blocks: SparseBitSet,
    pub(super) inodes: InodeFactsTable,
    /// In the order of their inodes.
    pub(super) directories: Vec<Directory>,
    pub(super) directory_blocks: Vec<DirectoryBlock>,
    pub(super) directory_blocks_seen: SparseBitSet,
    pub(super) xattr_blocks: HashMap<u64, SharedXattrBlock>,
    pub(super) value_inodes: HashMap<u32, XattrValueInode>,
    /// Policies of the encrypted inodes.
    pub(super) encryption: EncryptionPolicies,
    pub(super) orphans: HashSet<u32>,
    pub(super) special_files: HashMap<u32, SpecialFile>,
    pub(super) usages: QuotaUsages,
}

impl<'a> Checker<'a> {
    /// Returns a check of `device`, at its start.
    pub(super) fn new(
        device: Arc<dyn Device>,
        superblock: Superblock,
        report: FindingReporter<'a>,
    ) -> Self {
        let blocks = superblock.block_count;
        Self {
            device,
            report,
            groups: Vec::new(),
            used: SparseBitSet::new(blocks),
            system: SparseBitSet::new(blocks),
            bad_blocks: SparseBitSet::new(blocks),
            inodes: InodeFactsTable::new(superblock.inode_count),
            directories: Vec::new(),
            directory_blocks: Vec::new(),
            directory_blocks_seen: SparseBitSet::new(blocks),
            xattr_blocks: HashMap::new(),
            value_inodes: HashMap::new(),
            encryption: EncryptionPolicies::default(),
            orphans: HashSet::new(),
            special_files: HashMap::new(),
            usages: QuotaUsages::default(),
            sb: superblock,
        }
    }
}
