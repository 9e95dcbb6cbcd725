//! Quota files: the stored usage of each owner against the counted one.
//!
//! ```text
//!   block 0   magic, version, info        blocks of 1 KiB with all block sizes
//!   block 1   256 numbers of blocks  ->  256 numbers  ->  256 numbers  ->  256 numbers  ->  entries
//! ```
//!
//! The four bytes of an owner's number select the path through the tree. Linux:
//! fs/quota/quota_tree.h, quotaio_v2.h.

use super::checker::Checker;
use super::facts::QuotaUsage;
use super::inodes::InodeView;
use super::report::{CheckedStructure, FindingLocation};
use crate::fs::ext4::layout::disk::{ROOT_INODE, inode_flags};
use crate::fs::ext4::layout::features::{Incompat, RoCompat};
use std::collections::{HashMap, HashSet};

const BLOCK_LEN: u64 = 1024;
/// Blocks that a quota file may have beyond the count in its header.
const SLACK_BLOCKS: u64 = 1024;
/// Levels of the tree above the entries.
const DEPTH: u32 = 4;
/// Length of the header before a block's entries, in bytes.
const BLOCK_HEAD_LEN: usize = 16;
const ENTRY_LEN: usize = 72;
const VERSION: u32 = 1;
/// End of `i_projid`, from the start of the extra fields.
const PROJECT_END: u16 = 32;

/// A type of owner with its quota file.
struct QuotaAccount {
    name: &'static str,
    magic: u32,
    inode: u32,
    counted: HashMap<u32, QuotaUsage>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at + 4)) << 32 | u64::from(word(bytes, at))
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
        let id = |low: u16, high: u16| u32::from(high) << 16 | u32::from(low);
        let project = if raw.extra_isize.get() >= PROJECT_END {
            raw.projid.get()
        } else {
            0
        };
        for (usages, id) in [
            (
                &mut self.usages.users,
                id(raw.uid_lo.get(), raw.uid_high.get()),
            ),
            (
                &mut self.usages.groups,
                id(raw.gid_lo.get(), raw.gid_high.get()),
            ),
            (&mut self.usages.projects, project),
        ] {
            let usage = usages.entry(id).or_default();
            *usage = (usage.0 + bytes, usage.1 + 1 + value_inodes);
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
                name: "user",
                magic: 0xD9C0_1F11,
                inode: raw.usr_quota_inum.get(),
                counted: usages.users,
            },
            QuotaAccount {
                name: "group",
                magic: 0xD9C0_1927,
                inode: raw.grp_quota_inum.get(),
                counted: usages.groups,
            },
            QuotaAccount {
                name: "project",
                magic: 0xD9C0_3F14,
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
        if word(&head, 0) != account.magic || word(&head, 4) != VERSION {
            return self.report.error(
                CheckedStructure::Quota,
                location,
                format_args!("not a {} quota file of version 1", account.name),
            );
        }
        let size = self
            .special_files
            .get(&account.inode)
            .map_or(0, |file| file.size);
        let (blocks, free_block, free_entry) = (word(&head, 20), word(&head, 24), word(&head, 28));
        let is_sized =
            (u64::from(blocks)..=u64::from(blocks) + SLACK_BLOCKS).contains(&(size / BLOCK_LEN));
        if !is_sized || free_block >= blocks || free_entry >= blocks {
            let what = format_args!(
                "{blocks} quota blocks in {size} bytes, free from {free_block} and {free_entry}"
            );
            self.report.error(CheckedStructure::Quota, location, what);
        }
        let (mut seen, mut stored) = (HashSet::new(), HashMap::new());
        self.walk_quota(account.inode, 1, DEPTH, &mut seen, &mut stored);
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
                    account.name, stored.0, stored.1, counted.0, counted.1
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
            for entry in bytes[BLOCK_HEAD_LEN..]
                .chunks_exact(ENTRY_LEN)
                .filter(|entry| entry.iter().any(|&b| b != 0))
            {
                stored.insert(word(entry, 0), (long(entry, 48), long(entry, 24)));
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
        let (size, at) = (self.sb.block_size as u64, block * BLOCK_LEN);
        if at + BLOCK_LEN > file.size {
            return None;
        }
        let logical = at / size;
        let after = file.runs.partition_point(|(first, _, _)| *first <= logical);
        let (first, start, len) = *file.runs.get(after.checked_sub(1)?)?;
        let device_block = (logical - first < len).then_some(start + logical - first)?;
        let mut bytes = vec![0; BLOCK_LEN as usize];
        self.device
            .read_at(&mut bytes, device_block * size + at % size)
            .ok()?;
        Some(bytes)
    }
}
