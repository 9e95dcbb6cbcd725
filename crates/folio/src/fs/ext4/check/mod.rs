//! `folio check`: is everything in this ext4 as it should be? Reads only; mending is e2fsck's job
//! (`e2fsck -f`).
//!
//! ```text
//!   superblock.rs   found, or a copy of it          journal.rs   replayed into memory first
//!      v
//!   groups.rs       where bitmaps and tables lie -> claimed as the file system's own
//!      v
//!   inodes.rs       all inodes in device order
//!      |   extents.rs block_map.rs -> blocks.rs     each block claimed, those claimed twice told
//!      |   xattrs.rs inline.rs                      special.rs   resize inode, orphans
//!      v
//!   directories.rs index.rs   names counted for the inodes they lead to
//!      v
//!   links.rs quota.rs bitmaps.rs   counts and bitmaps against what was found
//!      |
//!   report.rs       findings with severity and place      sets.rs   bits and facts in memory
//! ```
//!
//! Neighbours: a device below, the structures and checksums of `fs/ext4` beside it. Those stop at
//! the first thing that is wrong, since they serve readers; here everything is read raw, told, and
//! gone past. No cache but for the replay of fast commits, no locks.
//!
//! Invariants:
//! 1. Nothing is written. A journal is replayed into an overlay in memory.
//! 2. No number is believed: each is compared with the geometry before it is used, and the geometry
//!    with the device.
//! 3. Each block is read at most once in each role (inode table, tree node, directory block,
//!    attribute block), so that no forged image keeps the check busy for longer than its own size.
//! 4. Memory: one bit for each block in use, 12 bytes for each inode in use, 16 for each directory
//!    block, 56 for each group; and at most 2^21 groups.
//! 5. What e2fsck -fn complains of is found here too; tests/check holds us to that.

mod bitmaps;
mod block_map;
mod blocks;
mod directories;
mod extents;
mod groups;
mod index;
mod inline;
mod inodes;
mod journal;
mod links;
mod quota;
mod report;
mod sets;
mod special;
mod superblock;
mod xattrs;

pub use report::{CheckReport, Finding, Listener, Phase, Place, Severity, Structure};

use crate::base::{Clock, Result};
use crate::block::Device;
use crate::fs::ext4::layout::superblock::Superblock;
use directories::{Directory, DirectoryBlock};
use groups::GroupFacts;
use quota::Usages;
use report::Reporter;
use sets::{Bits, InodeTable};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use xattrs::{SharedBlock, ValueInode};

/// How to check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Whether a journal that holds something is replayed first, in memory. If not, what lies on
    /// the device is checked as it is, as `e2fsck -n` does; an image in use, or one that lost
    /// power, then shows errors that a mount would mend.
    pub replays_journal: bool,
    /// Findings to be told; the rest are counted.
    pub findings_max: usize,
    /// What time it is, for times in the future.
    pub clock: Clock,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            replays_journal: true,
            findings_max: 10_000,
            clock: Clock::System,
        }
    }
}

/// Checks the whole ext4 on `device`, which is not written. Each finding goes to `listener` as it
/// is made.
///
/// EUCLEAN if there is no ext4 on the device; EOPNOTSUPP, naming the feature, for one that is not
/// known here; EINTR if the listener ended it; the device's error if not even a superblock can be
/// read. Unreadable blocks elsewhere are findings.
pub fn check(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    listener: &mut dyn Listener,
) -> Result<CheckReport> {
    let report = Reporter::new(listener, options.findings_max);
    run(device, options, report).map_err(|error| error.at("ext4"))
}

fn run(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    mut report: Reporter<'_>,
) -> Result<CheckReport> {
    let Some(mut superblock) = superblock::open(&**device, &mut report, options.replays_journal)?
    else {
        return Ok(report.report);
    };
    let mut device = device.clone();
    let needs_recovery = journal::needs_recovery(&superblock);
    if needs_recovery && !options.replays_journal {
        let what = format_args!(
            "not replayed, though it holds something; errors below may be mended by that"
        );
        report.warning(Structure::Journal, Place::NONE, what);
    } else if needs_recovery {
        (device, superblock) = match journal::replayed(&device, &superblock, &mut report)? {
            Some(after) => after,
            None => match superblock::open(&*device, &mut report, false)? {
                Some(superblock) => (device, superblock),
                None => return Ok(report.report),
            },
        };
    }
    superblock::check(&superblock, options.clock, &mut report);
    report.report.inode_count = superblock.inode_count.into();
    report.report.block_count = superblock.block_count;
    // At most 32 KiB.
    report.report.block_size = superblock.block_size as u32;
    let is_replayed = report.report.replayed_transactions.is_some();

    let mut checker = Checker::new(device, superblock, report);
    checker.check_groups()?;
    checker.find_orphans(is_replayed)?;
    checker.check_inodes()?;
    checker.check_special_files();
    checker.check_journal(needs_recovery);
    checker.check_directories()?;
    checker.check_links();
    checker.check_shared_xattrs();
    checker.check_quota();
    checker.check_bitmaps(!needs_recovery)?;
    Ok(CheckReport {
        is_complete: true,
        ..checker.report.report
    })
}

/// A file that the superblock names: what it maps.
struct SpecialFile {
    /// (File block, device block, number of blocks), in order.
    runs: Vec<(u64, u64, u64)>,
    size: u64,
    /// Seed of the checksums in it, with metadata_csum.
    seed: Option<u32>,
}

/// One check under way.
struct Checker<'a> {
    device: Arc<dyn Device>,
    sb: Superblock,
    report: Reporter<'a>,
    groups: Vec<GroupFacts>,
    /// Clusters in use, by their bits in the groups' bitmaps one after the other.
    used: Bits,
    /// Blocks of the file system's own, by number.
    system: Bits,
    inodes: InodeTable,
    /// In the order of their inodes.
    directories: Vec<Directory>,
    directory_blocks: Vec<DirectoryBlock>,
    directory_blocks_seen: Bits,
    xattr_blocks: HashMap<u64, SharedBlock>,
    value_inodes: HashMap<u32, ValueInode>,
    orphans: HashSet<u32>,
    special_files: HashMap<u32, SpecialFile>,
    usages: Usages,
}

impl<'a> Checker<'a> {
    fn new(device: Arc<dyn Device>, superblock: Superblock, report: Reporter<'a>) -> Self {
        let blocks = superblock.block_count;
        Self {
            device,
            report,
            groups: Vec::new(),
            used: Bits::new(blocks),
            system: Bits::new(blocks),
            inodes: InodeTable::new(superblock.inode_count),
            directories: Vec::new(),
            directory_blocks: Vec::new(),
            directory_blocks_seen: Bits::new(blocks),
            xattr_blocks: HashMap::new(),
            value_inodes: HashMap::new(),
            orphans: HashSet::new(),
            special_files: HashMap::new(),
            usages: Usages::default(),
            sb: superblock,
        }
    }
}
