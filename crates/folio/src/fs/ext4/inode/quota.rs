//! Usage of owners in memory (`quota`): what the running transaction changes, and the quota files.
//!
//! An inode is charged by its bytes in the inode table, whenever these are written. So the quota
//! files, which a commit writes after the table, agree with it in every transaction.

use super::fields::raw_block_count;
use crate::base::PhysicalBlock;
use crate::base::lock::Mutex;
use crate::fs::ext4::layout::disk::{RawInode, inode_flags};
use crate::fs::ext4::layout::quota::{QuotaHeader, QuotaKind, owners};
use std::collections::HashMap;

/// A kind of owners, and the number of one.
pub(crate) type QuotaOwner = (QuotaKind, u32);

/// A change of the usage of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct UsageChange {
    pub(crate) bytes: i64,
    pub(crate) inodes: i64,
}

/// The quotas of a file system that is mounted for writing.
#[derive(Default)]
pub(crate) struct Quotas {
    /// Changes that the quota files do not have yet. A leaf lock.
    changes: Mutex<HashMap<QuotaOwner, UsageChange, foldhash::fast::FixedState>>,
    /// Locked before `Ext4Inode::state` of the quota files, which are not charged themselves.
    pub(crate) files: Mutex<Vec<QuotaFile>>,
}

/// A quota file.
pub(crate) struct QuotaFile {
    pub(crate) kind: QuotaKind,
    /// Its inode.
    pub(crate) number: u32,
    /// The device blocks of its file blocks.
    pub(crate) blocks: Vec<PhysicalBlock>,
    pub(crate) header: QuotaHeader,
    /// The bytes at which the entries of known owners start.
    pub(crate) entries: HashMap<u32, u64, foldhash::fast::FixedState>,
}

/// What the quotas count of one inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InodeUsage {
    owners: [u32; 3],
    bytes: u64,
}

impl InodeUsage {
    /// Returns the usage of the inode whose bytes in the table are `slot`.
    pub(super) fn of(slot: &[u8], block_size: usize) -> Self {
        let raw = RawInode::of_bytes(slot);
        let unit = if raw.flags.get() & inode_flags::HUGE_FILE != 0 {
            block_size as u64
        } else {
            512
        };
        Self {
            owners: owners(&raw),
            bytes: raw_block_count(&raw).saturating_mul(unit),
        }
    }
}

impl Quotas {
    /// Notes that an inode's usage becomes `after` instead of `before`; `None`: not in use.
    pub(super) fn note(&self, before: Option<InodeUsage>, after: Option<InodeUsage>) {
        if before == after {
            return;
        }
        for (usage, sign) in [(before, -1), (after, 1)] {
            if let Some(InodeUsage { owners, bytes }) = usage {
                let change = UsageChange {
                    bytes: sign * bytes as i64,
                    inodes: sign,
                };
                self.charge(owners, change);
            }
        }
    }

    /// Adds `change` to the usage of each of `owners`.
    pub(crate) fn charge(&self, owners: [u32; 3], change: UsageChange) {
        let mut changes = self.changes.lock();
        for owner in QuotaKind::ALL.into_iter().zip(owners) {
            let sum = changes.entry(owner).or_default();
            sum.bytes = sum.bytes.wrapping_add(change.bytes);
            sum.inodes = sum.inodes.wrapping_add(change.inodes);
        }
    }

    /// Returns the number of owners whose usage changed.
    pub(crate) fn changed_len(&self) -> usize {
        self.changes.lock().len()
    }

    /// Removes all changes, and returns them.
    pub(crate) fn take_changes(&self) -> Vec<(QuotaOwner, UsageChange)> {
        std::mem::take(&mut *self.changes.lock())
            .into_iter()
            .collect()
    }
}
