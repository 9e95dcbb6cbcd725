//! `folio check`: a consistency check of a whole ext4. Reads only; `fs/ext4/repair` repairs.
//!
//! ```text
//!   superblock.rs   the primary, or a backup        journal.rs   replayed into memory first
//!      v
//!   groups.rs       bitmaps and inode tables, claimed as metadata of the file system
//!      v
//!   inodes.rs inode_view.rs   all inodes in device order
//!      |   extents.rs block_map.rs -> blocks.rs     claims each block, reports double claims
//!      |   xattrs.rs inline.rs                      special.rs   resize inode, orphans
//!      v
//!   directories.rs index.rs encryption.rs   names, counted per inode    directory_fixes.rs
//!      v
//!   links.rs quota.rs bitmaps.rs   stored counts and bitmaps against the counted ones
//!      |
//!   checker.rs facts.rs   the state of a check, and what its phases pass on
//!      |
//!   report.rs       findings with severity and location   sets.rs   bits and facts in memory
//!   fix.rs          the change that answers a finding, collected for `fs/ext4/repair`
//! ```
//!
//! Neighbors: a device below; the structures and checksums of `fs/ext4` beside it. The readers in
//! `fs/ext4` stop at the first error. The check reads raw bytes instead, reports each error and
//! continues. It has no cache, except for the replay of fast commits, and no locks.
//!
//! Invariants:
//! 1. The check writes nothing. It replays a journal into an overlay in memory.
//! 2. No number is trusted: each is compared with the geometry before use, and the geometry with
//!    the device.
//! 3. Each block is read at most once in each role (inode table, tree node, directory block,
//!    attribute block). So no forged image keeps the check busy for longer than its own size.
//! 4. Memory: one bit for each block in use, 12 bytes for each inode in use, 16 for each directory
//!    block, 56 for each group; and at most 2^21 groups.
//! 5. The check finds every error that `e2fsck -fn` reports; tests/check compares the two.

mod bitmaps;
mod block_map;
mod blocks;
mod checker;
mod directories;
mod directory_fixes;
mod encryption;
mod extents;
mod facts;
pub(super) mod fix;
mod groups;
mod index;
mod inline;
mod inode_view;
mod inodes;
mod journal;
mod links;
mod quota;
mod report;
mod sets;
mod special;
mod superblock;
mod xattrs;

pub(super) use journal::journal_blocks;
pub use report::{
    CheckFinding, CheckListener, CheckPhase, CheckReport, CheckedStructure, FindingLocation,
    Severity,
};

use crate::base::{Clock, Result};
use crate::block::Device;
use checker::Checker;
use report::FindingReporter;
use std::sync::Arc;

/// Options of [`check`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckOptions {
    /// Whether a journal that is not empty is replayed first, in memory. Without the replay the
    /// device's blocks are checked as they are, as `e2fsck -n` does. An image in use, or one that
    /// lost power, then shows errors that a mount would repair.
    pub replays_journal: bool,
    /// Number of findings passed to the listener; further findings are only counted.
    pub findings_max: usize,
    /// The current time, to report timestamps in the future.
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

/// Checks the whole ext4 on `device` without writing to it. Passes each finding to `listener` at
/// once.
///
/// # Errors
/// - EUCLEAN if `device` has no ext4.
/// - EOPNOTSUPP, naming the feature, for a feature unknown to Folio.
/// - EINTR if the listener stopped the check.
/// - The device's error if no superblock can be read. Unreadable blocks elsewhere are findings.
///
/// Counterpart: e2fsck(8), as `e2fsck -fn`.
pub fn check(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    listener: &mut dyn CheckListener,
) -> Result<CheckReport> {
    let report = FindingReporter::new(listener, options.findings_max);
    run(device, options, report).map_err(|error| error.at("ext4"))
}

/// Checks without a replay, and collects the changes that answer the findings.
///
/// # Errors
/// Those of [`check`].
pub(super) fn check_for_repair<'a>(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    listener: &'a mut dyn CheckListener,
    fixes: &'a mut fix::Fixes,
) -> Result<CheckReport> {
    let options = CheckOptions {
        replays_journal: false,
        ..options.clone()
    };
    let mut report = FindingReporter::new(listener, options.findings_max);
    report.collect_fixes(fixes);
    run(device, &options, report).map_err(|error| error.at("ext4"))
}

fn run(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    mut report: FindingReporter<'_>,
) -> Result<CheckReport> {
    let Some(mut superblock) = superblock::open(&**device, &mut report, options.replays_journal)?
    else {
        return Ok(report.report);
    };
    // Unlike an overlay, the device itself knows where its image stores data.
    let stored = device;
    let mut device = device.clone();
    let needs_recovery = superblock::needs_recovery(&superblock);
    if needs_recovery && !options.replays_journal {
        let what = format_args!(
            "holds transactions, but --no-replay skipped them; a mount may repair the errors below"
        );
        report.warning(CheckedStructure::Journal, FindingLocation::NONE, what);
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
    checker.mark_value_inodes();
    checker.check_journal(needs_recovery);
    checker.check_directories()?;
    checker.check_links();
    checker.check_shared_xattrs();
    checker.check_quota();
    checker.check_bitmaps(!needs_recovery)?;
    checker.check_stored(&**stored);
    Ok(CheckReport {
        is_complete: true,
        ..checker.report.report
    })
}
