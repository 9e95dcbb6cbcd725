//! `folio check --repair`: repairs an ext4 in memory, and writes the result only if it is clean.
//!
//! ```text
//!   device  <-  overlay in memory:  replay the journal, then repeat
//!                  check/ -> findings with fixes -> apply.rs   until no fix is left
//!                                                  orphans, lost inodes: a mount of the overlay
//!      ^                                              journal.rs: a new one, if it is lost
//!      |                                              v
//!   write.rs  <-  undo.rs saves the old bytes  <-  clean?   else refuse, nothing was written
//! ```
//!
//! Neighbors: `check/` beside it finds errors and names the change that answers each; the mount
//! releases orphans, and names lost inodes. No locks.
//!
//! Invariants:
//! 1. The device is written only by [`RepairPlan::write`], and only if the check of the whole
//!    repaired file system found no error.
//! 2. An error without exactly one answer has no fix, so the whole repair is refused.
//! 3. The superblock and that of the journal are written last, after a flush. A power cut before
//!    leaves a journal that needs recovery as it was.

mod apply;
mod journal;
mod undo;
mod write;

pub use undo::{UndoReport, undo_repair};
pub use write::RepairPlan;

use super::check::fix::{Fix, Fixes};
use super::check::{CheckFinding, CheckListener, CheckOptions, CheckPhase, CheckReport};
use crate::base::{Clock, DeviceNumber, Errno, Error, InodeNumber, LogicalBlock, Result};
use crate::block::{Device, OverlayDevice};
use crate::vfs::{Credentials, FileSystem, FileType, Inode, NewInode};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Checks and repairs that follow each other, at most. A fix may reveal the next error, as the
/// replacement of a superblock does; e2fsck has five passes and restarts.
const ROUNDS_MAX: usize = 8;

/// Collects findings, and passes progress on.
struct RoundListener<'a> {
    listener: &'a mut dyn CheckListener,
    /// Whether findings are passed on, too.
    is_first: bool,
    findings: Vec<CheckFinding>,
}

impl CheckListener for RoundListener<'_> {
    fn finding(&mut self, finding: &CheckFinding) {
        if self.is_first {
            self.listener.finding(finding);
        }
        self.findings.push(finding.clone());
    }

    fn progress(&mut self, phase: CheckPhase, done: u64, total: u64) -> ControlFlow<()> {
        self.listener.progress(phase, done, total)
    }
}

/// Plans the repair of the ext4 on `device`, in memory: replays the journal, releases orphans, and
/// makes each change that is the only answer to an error. Passes the findings to `listener`.
///
/// # Errors
/// - Those of [`super::check`].
/// - EOPNOTSUPP if the journal is on another device.
/// - The journal's errors, if it cannot be replayed.
///
/// Counterpart: e2fsck(8), as `e2fsck -p`, then `e2fsck -y`.
pub fn plan_repair(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    listener: &mut dyn CheckListener,
) -> Result<RepairPlan> {
    let overlay = Arc::new(OverlayDevice::new(device.clone()));
    let upper: Arc<dyn Device> = overlay.clone();
    let mut broken_journal = None;
    let mut replayed = match apply::replay(&upper).map_err(|error| error.at("ext4")) {
        Err(error) if error.errno() == Errno::UCLEAN => {
            broken_journal = Some(error);
            None
        }
        replayed => replayed?,
    };
    let (mut before, mut beyond_preen) = (None, 0);
    let (mut is_changed, mut lacks_journal, mut has_new_journal) = (false, false, false);
    for round in 0..ROUNDS_MAX {
        let mut fixes = Fixes::default();
        let mut collector = RoundListener {
            listener: &mut *listener,
            is_first: round == 0,
            findings: Vec::new(),
        };
        let mut report =
            super::check::check_for_repair(&upper, options, &mut collector, &mut fixes)?;
        report.replayed_transactions = replayed;
        let remaining = collector.findings;
        before.get_or_insert_with(|| report.clone());
        if let Some(error) = broken_journal.take() {
            // What the journal holds comes before all other fixes.
            if fixes.journal.is_empty() {
                return Err(error);
            }
            apply::apply(&*upper, fixes.journal)?;
            replayed = apply::replay(&upper).map_err(|error| error.at("ext4"))?;
            is_changed = true;
            continue;
        }
        fixes.fixes.append(&mut fixes.journal);
        lacks_journal |= fixes.fixes.iter().any(|fix| matches!(fix, Fix::NewJournal));
        if lacks_journal && !has_new_journal && report.is_clean() && round + 1 < ROUNDS_MAX {
            journal::make_journal(&upper, options.clock)?;
            has_new_journal = true;
            continue;
        }
        let is_left = round + 1 == ROUNDS_MAX || fixes.fixes.is_empty();
        if is_left || !apply_round(&upper, fixes, &report, options.clock, &mut beyond_preen)? {
            if report.is_clean() && (is_changed || replayed.is_some()) {
                apply::mark_clean(&*upper, options.clock)?;
            }
            return Ok(RepairPlan {
                pages: write::changed_pages(&overlay, device)?,
                device: device.clone(),
                overlay,
                before: before.unwrap_or_default(),
                after: report,
                beyond_preen,
                remaining,
            });
        }
        is_changed = true;
    }
    Err(Error::new(Errno::IO, "the repair has no last round"))
}

/// Applies the fixes of a round; returns whether it changed anything.
fn apply_round(
    device: &Arc<dyn Device>,
    fixes: Fixes,
    report: &CheckReport,
    clock: Clock,
    beyond_preen: &mut u64,
) -> Result<bool> {
    let (by_mount, others): (Vec<Fix>, Vec<Fix>) = fixes.fixes.into_iter().partition(|fix| {
        matches!(
            fix,
            Fix::Orphan | Fix::Reconnect(_) | Fix::Unshare(..) | Fix::FillDirectory(..)
        )
    });
    let is_beyond = |fix: &&Fix| !matches!(fix, Fix::Orphan);
    let beyond = by_mount.iter().filter(is_beyond).count() as u64;
    if !others.is_empty() {
        // The next check finds those by the mount again.
        *beyond_preen += fixes.beyond_preen - beyond;
        apply::apply(&**device, others)?;
        return Ok(true);
    }
    // A mount needs an otherwise clean file system.
    if report.errors > by_mount.len() as u64 {
        return Ok(false);
    }
    *beyond_preen += beyond;
    match change_by_mount(device, &by_mount, clock) {
        Ok(()) => Ok(true),
        // A file system that Folio does not write, without room, or with more damage in a file that
        // is to be changed.
        Err(error)
            if matches!(
                error.errno(),
                Errno::OPNOTSUPP | Errno::NOSPC | Errno::UCLEAN
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Where e2fsck names lost inodes.
const LOST_AND_FOUND: &[u8] = b"lost+found";

fn lost_and_found(mounted: &dyn FileSystem) -> Result<Arc<dyn Inode>> {
    let (root, user) = (mounted.root(), Credentials::root());
    let new = NewInode {
        file_type: FileType::Directory,
        mode: 0o700,
        uid: 0,
        gid: 0,
        device: DeviceNumber::default(),
        target: b"",
    };
    let folder = match root.lookup(LOST_AND_FOUND)? {
        Some(folder) => folder,
        None => root.create(&user, LOST_AND_FOUND, &new)?,
    };
    match folder.common().file_type {
        FileType::Directory => Ok(folder),
        _ => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Mounts the file system, which releases its orphans, copies shared blocks, fills directories,
/// names lost inodes, and unmounts it.
///
/// # Errors
/// EOPNOTSUPP for a file system that Folio does not write, or where lost+found is a file.
fn change_by_mount(device: &Arc<dyn Device>, fixes: &[Fix], clock: Clock) -> Result<()> {
    let mounted = apply::mount(device, clock)?;
    for fix in fixes {
        match fix {
            Fix::Unshare(number, blocks) => {
                let file = mounted.fs.inode(u64::from(*number))?;
                for logical in blocks.clone().map(LogicalBlock) {
                    file.unshare_block(logical)?;
                }
            }
            Fix::FillDirectory(number, blocks) => {
                let directory = mounted.fs.inode(u64::from(*number))?;
                for logical in blocks.clone().map(LogicalBlock) {
                    directory.fill_directory(logical)?;
                }
            }
            Fix::Reconnect(number) => {
                let inode = mounted.inode(InodeNumber(u64::from(*number)))?;
                // As e2fsck names them. It counts as one more link, which the next check corrects.
                let name = format!("#{number}");
                lost_and_found(&mounted)?.link(&Credentials::root(), name.as_bytes(), &inode)?;
            }
            _ => {}
        }
    }
    mounted.unmount()
}
