//! Quota files: the stored usage of each owner against the counted one.

use super::checker::Checker;
use super::inode_view::InodeView;
use super::report::{CheckedStructure, FindingLocation};
use crate::fs::ext4::layout::disk::{ROOT_INODE, inode_flags};
use crate::fs::ext4::layout::features::{Incompat, RoCompat};
use crate::fs::ext4::layout::quota::{
    BLOCK_LEN, DEPTH, QuotaHeader, QuotaKind, QuotaUsage, ROOT_BLOCK, entries, is_free, owners,
    word,
};
use std::collections::{HashMap, HashSet};

/// Blocks that a quota file may have beyond the count in its header.
const SLACK_BLOCKS: u64 = 1024;

/// A kind of owners with its quota file.
struct QuotaAccount {
    kind: QuotaKind,
    inode: u32,
    counted: HashMap<u32, QuotaUsage>,
}

impl Checker<'_> {
    /// Adds an inode's usage to that of its user, group and project: `clusters`, and one inode
    /// besides the `value_inodes` with values of its attributes. The file system's own files and
    /// the value inodes themselves are not charged.
    pub(super) fn charge(&mut self, view: &InodeView<'_>, clusters: u64, value_inodes: u64) {
        let features = self.sb.features;
        let is_own = view.number != ROOT_INODE && view.number < self.sb.first_inode;
        let is_value =
            features.incompat.contains(Incompat::EA_INODE) && view.has(inode_flags::EA_INODE);
        if is_own
            || is_value
            || !features.ro_compat.contains(RoCompat::QUOTA)
            || self.is_special(view.number)
        {
            return;
        }
        let raw = view.raw;
        let bytes = clusters * u64::from(self.sb.cluster_blocks) * self.sb.block_size as u64;
        let usages = [
            &mut self.usages.users,
            &mut self.usages.groups,
            &mut self.usages.projects,
        ];
        for (usages, id) in usages.into_iter().zip(owners(raw)) {
            let usage = usages.entry(id).or_default();
            usage.bytes += bytes;
            usage.inodes += 1 + value_inodes;
        }
    }

    /// Returns whether this is the inode of a quota file.
    pub(super) fn is_quota_inode(&self, number: u32) -> bool {
        let raw = &self.sb.raw;
        [
            &raw.usr_quota_inum,
            &raw.grp_quota_inum,
            &raw.prj_quota_inum,
        ]
        .iter()
        .any(|inode| inode.get() == number)
    }

    /// Compares all quota files with the counted usage.
    pub(super) fn check_quota(&mut self) {
        if !self.sb.features.ro_compat.contains(RoCompat::QUOTA) {
            return;
        }
        let (raw, usages) = (&self.sb.raw, std::mem::take(&mut self.usages));
        let accounts = [
            QuotaAccount {
                kind: QuotaKind::User,
                inode: raw.usr_quota_inum.get(),
                counted: usages.users,
            },
            QuotaAccount {
                kind: QuotaKind::Group,
                inode: raw.grp_quota_inum.get(),
                counted: usages.groups,
            },
            QuotaAccount {
                kind: QuotaKind::Project,
                inode: raw.prj_quota_inum.get(),
                counted: usages.projects,
            },
        ];
        for account in accounts {
            if account.inode != 0 {
                self.check_account(account);
            }
        }
    }

    fn check_account(&mut self, mut account: QuotaAccount) {
        let location = FindingLocation::inode(account.inode);
        let Some(head) = self.quota_block(account.inode, 0) else {
            return self.report.error(
                CheckedStructure::Quota,
                location,
                format_args!("the quota file is missing"),
            );
        };
        let name = account.kind.name();
        let Some(header) = QuotaHeader::parse(&head, account.kind) else {
            return self.report.error(
                CheckedStructure::Quota,
                location,
                format_args!("not a {name} quota file of version 1"),
            );
        };
        let size = self
            .special_files
            .get(&account.inode)
            .map_or(0, |file| file.size);
        let QuotaHeader {
            blocks,
            free_block,
            free_entry,
        } = header;
        let size_blocks = size / BLOCK_LEN as u64;
        let is_sized =
            (u64::from(blocks)..=u64::from(blocks) + SLACK_BLOCKS).contains(&size_blocks);
        if !is_sized || free_block >= blocks || free_entry >= blocks {
            let what = format_args!(
                "{blocks} quota blocks in {size} bytes, free from {free_block} and {free_entry}"
            );
            self.report.error(CheckedStructure::Quota, location, what);
        }
        let (mut seen, mut stored) = (HashSet::new(), HashMap::new());
        self.walk_quota(account.inode, ROOT_BLOCK, DEPTH, &mut seen, &mut stored);
        let mut ids: Vec<u32> = stored
            .keys()
            .chain(account.counted.keys())
            .copied()
            .collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let stored = stored.get(&id).copied().unwrap_or_default();
            let counted = account.counted.remove(&id).unwrap_or_default();
            if stored != counted {
                let what = format_args!(
                    "{} {id} uses {} bytes in {} inodes, counted {} in {}",
                    name, stored.bytes, stored.inodes, counted.bytes, counted.inodes
                );
                self.report.error(CheckedStructure::Quota, location, what);
            }
        }
    }

    /// Collects the entries below a block into `stored`; visits each block once.
    fn walk_quota(
        &mut self,
        inode: u32,
        block: u32,
        depth: u32,
        seen: &mut HashSet<u32>,
        stored: &mut HashMap<u32, QuotaUsage>,
    ) {
        let location = FindingLocation::inode(inode);
        // Several owners share a block of entries, so it may be referenced more than once.
        if !seen.insert(block) {
            if depth > 0 {
                self.report.error(
                    CheckedStructure::Quota,
                    location,
                    format_args!("quota block {block} is referenced twice"),
                );
            }
            return;
        }
        let Some(bytes) = self.quota_block(inode, block.into()) else {
            return self.report.error(
                CheckedStructure::Quota,
                location,
                format_args!("quota block {block} is missing"),
            );
        };
        if depth == 0 {
            for (_, entry) in entries(&bytes).filter(|(_, entry)| !is_free(entry)) {
                stored.insert(word(entry, 0), QuotaUsage::load(entry));
            }
            return;
        }
        for child in bytes
            .chunks_exact(4)
            .map(|bytes| word(bytes, 0))
            .filter(|child| *child != 0)
        {
            self.walk_quota(inode, child, depth - 1, seen, stored);
        }
    }

    /// Reads one block of a quota file; `None` beyond its end, in a hole or after a read error.
    fn quota_block(&mut self, inode: u32, block: u64) -> Option<Vec<u8>> {
        let file = self.special_files.get(&inode)?;
        let (size, at) = (self.sb.block_size as u64, block * BLOCK_LEN as u64);
        if at + BLOCK_LEN as u64 > file.size {
            return None;
        }
        let logical = at / size;
        let after = file.runs.partition_point(|(first, _, _)| *first <= logical);
        let (first, start, len) = *file.runs.get(after.checked_sub(1)?)?;
        let device_block = (logical - first < len).then_some(start + logical - first)?;
        let mut bytes = vec![0; BLOCK_LEN];
        self.device
            .read_at(&mut bytes, device_block * size + at % size)
            .ok()?;
        Some(bytes)
    }
}
