//! The offline shrinker: moves blocks and inodes below the new end, then cuts the file system.
//!
//! ```text
//!   limits.rs      the least size; the superblock of a smaller one
//!      v
//!   groups.rs      bitmaps: allocation below the new end only
//!      v
//!   inode.rs       inodes of the table, and the blocks that they map
//!      |
//!   evacuate.rs    blocks beyond the new end are copied, then mapped
//!      v
//!   renumber.rs    inodes beyond the last group get new numbers
//!      v
//!   finish.rs      the groups beyond the new end are removed
//! ```
//!
//! Each arrow is a series of transactions, and the file system is consistent after each: with the
//! old size until the last one. A copy is written before the transaction that refers to it, to
//! blocks that were free. Some changes are not made through the journal, but in an order that
//! e2fsck repairs without a loss, with the file system marked as not clean: the move of the journal
//! itself, and a transaction larger than the journal, such as that of a very large directory. A
//! file system without a journal has only such changes.
//!
//! Neighbors: `changes`, `layout`, `plan` and `reserve` of the resizer. No locks. Counterpart:
//! resize2fs(8).

mod evacuate;
mod finish;
mod groups;
mod inode;
mod limits;
mod renumber;

use super::changes::BlockChanges;
use super::options::ResizeOptions;
use super::plan::{ReservedShare, put_free};
use super::resizer::{Resizer, open_journal};
use crate::base::{Clock, Errno, Error, Result};
use crate::block::Device;
use crate::fs::ext4::journal::Journal;
use crate::fs::ext4::layout::disk::{JOURNAL_INODE, RESIZE_INODE, STATE_VALID};
use crate::fs::ext4::layout::superblock::Superblock;
use groups::GroupMaps;
use inode::{InodeRecord, MappingKind};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Inode of the list of bad blocks.
const BAD_BLOCKS_INODE: u32 = 1;
/// Shrinks in a row: each frees the metadata of the groups that it removes.
const PASSES_MAX: u32 = 16;
/// Blocks that change between two commits without a journal.
const CHANGES_MAX: u64 = 1024;

/// Fails unless a shrink to `wanted` blocks may be possible.
///
/// # Errors
/// EINVAL, with the least size.
pub(super) fn check(resizer: &Resizer, wanted: u64, options: &ResizeOptions) -> Result<()> {
    let maps = GroupMaps::load(&resizer.device, &resizer.superblock)?;
    let least = limits::least(&resizer.superblock, &maps)?.finally;
    if wanted >= least {
        return Ok(());
    }
    let block_size = resizer.superblock.block_size as u64;
    let what = format!(
        "invalid size: {} bytes, but the content needs at least {} ({}K)",
        options.len_bytes.unwrap_or(wanted * block_size),
        least * block_size,
        least * block_size / 1024
    );
    Err(Error::new(Errno::INVAL, what))
}

/// Shrinks to `wanted` blocks, or with `None` as far as possible. Returns false if `progress`
/// stopped it.
///
/// # Errors
/// ENOSPC if the content does not fit after all: the file system keeps the size that was reached.
pub(super) fn run(
    resizer: &mut Resizer,
    wanted: Option<u64>,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<bool> {
    limits::check_features(&resizer.superblock)?;
    for _ in 0..PASSES_MAX {
        let maps = GroupMaps::load(&resizer.device, &resizer.superblock)?;
        let least = limits::least(&resizer.superblock, &maps)?.now;
        let target = least.max(wanted.unwrap_or(0));
        if target >= resizer.superblock.block_count {
            break;
        }
        if !pass(resizer, maps, target, progress)? {
            return Ok(false);
        }
    }
    let reached = resizer.superblock.block_count;
    match wanted {
        Some(wanted) if reached > wanted => Err(Error::new(
            Errno::NOSPC,
            format!("the content fits in {reached} blocks only, the new size"),
        )),
        _ => Ok(true),
    }
}

/// One shrink.
struct Shrinker<'a> {
    device: Arc<dyn Device>,
    /// The superblock until the last transaction.
    old: &'a Superblock,
    new: Superblock,
    maps: GroupMaps,
    journal: Option<Journal>,
    changes: BlockChanges<'a>,
    /// Copy of the journal's mapping in the superblock, if the journal has moved.
    journal_backup: Option<[u32; 15]>,
    reserved_share: ReservedShare,
    free_blocks: u64,
    free_inodes: u64,
    buffer: Vec<u8>,
    moved_blocks: u64,
    blocks_to_move: u64,
    moved_inodes: u64,
    clock: Clock,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

/// The inodes that a shrink concerns.
#[derive(Default)]
struct Concerned {
    /// Inodes that map blocks beyond the new end.
    mapped: Vec<u32>,
    /// Inodes beyond the last group that is kept.
    numbered: Vec<u32>,
    /// All directories, if there are such inodes.
    directories: Vec<u32>,
    /// Blocks of attributes beyond the new end, with their inodes.
    xattrs: BTreeMap<u64, Vec<u32>>,
}

fn pass(
    resizer: &mut Resizer,
    mut maps: GroupMaps,
    target: u64,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<bool> {
    let old = resizer.superblock.clone();
    let new = limits::smaller(&old, target)?;
    let blocks_to_move = maps.content_beyond(&old, &new);
    maps.limit(&new);
    let device = resizer.device.clone();
    let mut shrinker = Shrinker {
        changes: BlockChanges::new(&*device, &old),
        device: device.clone(),
        old: &old,
        new,
        maps,
        journal: resizer.journal.take(),
        journal_backup: None,
        reserved_share: resizer.reserved_share,
        free_blocks: 0,
        free_inodes: 0,
        buffer: Vec::new(),
        moved_blocks: 0,
        blocks_to_move,
        moved_inodes: 0,
        clock: resizer.clock,
        progress,
    };
    let is_done = shrinker.run();
    let backup = shrinker.journal_backup;
    let counts = match is_done {
        Ok(true) => (shrinker.free_blocks, shrinker.free_inodes),
        _ => (shrinker.maps.free_blocks(), shrinker.maps.free_inodes()),
    };
    let new = shrinker.new.clone();
    resizer.journal = shrinker.journal.take();
    (resizer.free_blocks, resizer.free_inodes) = counts;
    let mut superblock = if matches!(is_done, Ok(true)) {
        new
    } else {
        old.clone()
    };
    put_free(&mut superblock, counts.0, counts.1);
    put_journal_backup(&mut superblock, backup);
    resizer.superblock = superblock;
    is_done
}

fn put_journal_backup(superblock: &mut Superblock, backup: Option<[u32; 15]>) {
    if let Some(words) = backup {
        for (slot, word) in superblock.raw.jnl_blocks.iter_mut().zip(words) {
            *slot = word.into();
        }
    }
}

impl Shrinker<'_> {
    fn run(&mut self) -> Result<bool> {
        let concerned = self.scan()?;
        self.move_journal()?;
        for number in concerned.mapped {
            let mut inode = InodeRecord::load(&self.changes, &self.maps, number)?;
            self.evacuate(&mut inode)?;
            if !self.step()? {
                return Ok(false);
            }
        }
        for (block, sharers) in concerned.xattrs {
            self.evacuate_xattrs(block, &sharers)?;
            if !self.step()? {
                return Ok(false);
            }
        }
        // Freed blocks are in use until here.
        self.commit()?;
        if !self.renumber(&concerned.numbered, &concerned.directories)? {
            return Ok(false);
        }
        self.commit()?;
        self.finish()?;
        Ok(true)
    }

    /// Finds the inodes to change.
    fn scan(&self) -> Result<Concerned> {
        let (old, new) = (self.old, &self.new);
        let mut found = Concerned::default();
        let mut directories = Vec::new();
        let len = old.inode_table_blocks() as usize * old.block_size;
        for group in 0..old.group_count {
            let used = self.maps.used_inodes(old, group);
            if used.is_empty() {
                continue;
            }
            // At most 8 * 64 KiB inodes of a block each, by the checks of the superblock.
            let mut table = vec![0; len];
            let at = self.maps.inode_table(group) * old.block_size as u64;
            self.device.read_at(&mut table, at)?;
            for number in used {
                let index = (number - 1) % old.inodes_per_group;
                let at = index as usize * old.inode_size;
                let inode = InodeRecord::of_bytes(number, &table[at..at + old.inode_size]);
                if number == RESIZE_INODE {
                    continue;
                }
                if number == BAD_BLOCKS_INODE && inode.kind() != MappingKind::None {
                    let what = "shrinking a file system with bad blocks; use resize2fs";
                    return Err(Error::unsupported(what));
                }
                if number > new.inode_count {
                    found.numbered.push(number);
                }
                if inode.is_directory() {
                    directories.push(number);
                }
                if inode.xattr_block() >= new.block_count {
                    found
                        .xattrs
                        .entry(inode.xattr_block())
                        .or_default()
                        .push(number);
                }
                if number != JOURNAL_INODE && self.maps_beyond(&inode)? {
                    found.mapped.push(number);
                }
            }
        }
        if !found.numbered.is_empty() {
            found.directories = directories;
        }
        Ok(found)
    }

    /// Whether an inode may map blocks beyond the new end. A block map is not walked here.
    fn maps_beyond(&self, inode: &InodeRecord) -> Result<bool> {
        let end = self.new.block_count;
        Ok(match inode.kind() {
            MappingKind::None => false,
            MappingKind::Pointers => true,
            MappingKind::Extents => {
                let tree = inode.extent_tree(&self.changes)?;
                let is_beyond = tree
                    .extents
                    .iter()
                    .any(|extent| extent.physical_range().end > end);
                is_beyond || tree.blocks.iter().any(|block| *block >= end)
            }
        })
    }

    /// Moves the journal, which is empty, and opens it at its new place.
    fn move_journal(&mut self) -> Result<()> {
        if self.journal.is_none() {
            return Ok(());
        }
        let mut inode = InodeRecord::load(&self.changes, &self.maps, JOURNAL_INODE)?;
        if !self.evacuate(&mut inode)? {
            return Ok(());
        }
        let words: Vec<u32> = inode
            .i_block()
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        self.journal_backup = words.try_into().ok();
        // A journal cannot log its own move.
        self.journal = None;
        self.commit()?;
        let superblock = Superblock::load(&*self.device)?;
        self.journal = open_journal(&self.device, &superblock, self.clock)?;
        Ok(())
    }

    /// Reports progress, and commits once a transaction is large enough. Returns false if the work
    /// is to stop.
    fn step(&mut self) -> Result<bool> {
        let (done, all) = (self.moved_blocks, self.blocks_to_move);
        let max = self
            .journal
            .as_ref()
            .map_or(CHANGES_MAX, Journal::transaction_max)
            / 2;
        // Each group has two bitmaps and a descriptor.
        if (self.changes.len() + 3 * self.maps.dirty_len()) as u64 > max {
            self.commit()?;
        }
        if (self.progress)(done.min(all), all).is_break() {
            self.commit()?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Makes all changes durable.
    fn commit(&mut self) -> Result<()> {
        if self.changes.len() == 0 && self.maps.dirty_len() == 0 {
            return Ok(());
        }
        self.maps.flush(&mut self.changes)?;
        let mut superblock = self.old.clone();
        put_free(
            &mut superblock,
            self.maps.free_blocks(),
            self.maps.free_inodes(),
        );
        put_journal_backup(&mut superblock, self.journal_backup);
        self.changes.put_superblock(&superblock, self.clock.now())?;
        self.write_changes()
    }

    /// Commits by the journal if the changes fit, else in order.
    fn write_changes(&mut self) -> Result<()> {
        let (device, now) = (self.device.clone(), self.clock.now());
        let empty = BlockChanges::new(self.changes.device(), self.old);
        let changes = std::mem::replace(&mut self.changes, empty);
        match &self.journal {
            Some(journal) if changes.len() as u64 <= journal.transaction_max() => {
                changes.commit(Some(journal), now)
            }
            _ => {
                let mut unclean = self.old.clone();
                put_journal_backup(&mut unclean, self.journal_backup);
                unclean.raw.state = (unclean.raw.state.get() & !STATE_VALID).into();
                device.flush()?;
                device.write_at(
                    &unclean.to_bytes(now),
                    crate::fs::ext4::layout::disk::SUPERBLOCK_OFFSET,
                )?;
                changes.commit(None, now)
            }
        }
    }
}
