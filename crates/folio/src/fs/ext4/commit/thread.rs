//! The thread that makes changes durable without a sync: soon after the last change, and at the
//! latest when the first change has waited for the commit interval (`commit=`).
//!
//! ```text
//!   change          change    change                               (1/5 of commit= without changes)
//!   |--- tick ---|--- tick ---|--- ... ---|--- tick ---| write data, commit; rest
//!   ^ wakes the thread
//!   change  change  change  change  change  ...  change | commit= is over: write data, commit
//! ```
//!
//! File data and names go together: all data that is dirty when the thread begins is in the same
//! transaction as the names, or in an earlier one.

use crate::fs::ext4::inode::Ext4;
use crate::fs::ext4::inode::change_clock::ChangeClock;
use crate::fs::ext4::layout::features::Compat;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Ticks of the thread within the commit interval.
const TICKS: u32 = 20;
/// Whole ticks without a change after which everything is written: a fifth of the interval.
const QUIET_TICKS: u32 = TICKS / 5;

/// The progress of the thread.
struct CommitSchedule {
    interval: Duration,
    /// When the first change that may not be durable was seen.
    waiting_since: Option<Instant>,
    /// Changes from this tick on are not written.
    written_before: u32,
    resting_since: Instant,
}

impl Ext4 {
    /// Starts the thread, if the cache has threads.
    ///
    /// Without a thread, large transactions and syncs commit. With `noload`, changes are written at
    /// syncs alone.
    pub(crate) fn start_commit_thread(&self) {
        let has_journal = self.volume.journal.get().is_some();
        let features = &self.volume.geometry.features;
        let is_unloaded = !has_journal && features.compat.contains(Compat::HAS_JOURNAL);
        if is_unloaded || !self.has_threads {
            return;
        }
        let fs = self.this.clone();
        let interval = Duration::from_millis(self.volume.options.commit_interval_ms);
        let mut schedule = CommitSchedule {
            interval,
            waiting_since: None,
            written_before: self.changes.tick(),
            resting_since: Instant::now(),
        };
        self.commit_thread.start("folio-commit", move || {
            let Some(fs) = fs.upgrade() else {
                return ControlFlow::Break(());
            };
            ControlFlow::Continue(schedule.step(&fs))
        });
    }

    /// Notes that an operation changed something.
    pub(crate) fn note_change(&self) {
        if self.changes.note() {
            self.commit_thread.wake();
        }
    }

    /// Returns whether anything in memory is not on the device.
    fn has_unwritten(&self) -> bool {
        self.volume.data_writeback.has_dirty_mappings() || self.has_changes()
    }

    /// Writes all dirty data, then commits. Errors of data are kept by its mappings; a failed
    /// commit either refuses all further changes, or is tried again.
    fn write_changes(&self) {
        self.release_quiet_holds();
        let _ = self.volume.data_writeback.write_back_all();
        // After writeback, which may have dropped the last reference to a deleted file.
        self.evict_retired();
        if let Some(journal) = self.volume.journal.get() {
            if journal.check().is_ok() && self.has_changes() {
                let _ = self.commit(journal, journal.running());
            }
        } else if self.volume.check_failure().is_ok()
            && let Err(error) = self.sync_in_place(false)
        {
            self.volume.note_error(error);
        }
        self.evict_retired();
    }

    /// Ends the holds of files that have new contents and were not written for a while: servers do
    /// not learn of every close(2).
    fn release_quiet_holds(&self) {
        for inode in self.held_inodes.all() {
            let is_empty = inode
                .common
                .mapping
                .as_ref()
                .is_none_or(|mapping| mapping.size_bytes() == 0);
            let is_quiet = inode
                .state
                .read()
                .held
                .as_ref()
                .is_some_and(|held| self.changes.ticks_since(held.written_in) > QUIET_TICKS);
            if is_quiet && !is_empty {
                inode.release_hold();
            }
            Self::retire(inode);
        }
    }
}

impl CommitSchedule {
    /// Writes changes that are due; returns the pause before the next step.
    fn step(&mut self, fs: &Ext4) -> Duration {
        let clock = &fs.changes;
        // No change has woken the thread: one that is found now may be as old as the rest.
        let is_missed = clock.stop_rest();
        clock.advance();
        if !fs.has_unwritten() {
            clock.rest();
            // Again: a change just before `rest` saw a ticking thread and did not wake it.
            if !fs.has_unwritten() {
                self.waiting_since = None;
                self.resting_since = Instant::now();
                return self.interval;
            }
            clock.stop_rest();
        }
        let tick = self.interval / TICKS;
        let earliest = if is_missed {
            self.resting_since
        } else {
            Instant::now()
        };
        let since = *self.waiting_since.get_or_insert(earliest);
        if self.is_quiet(clock) || since.elapsed() + tick >= self.interval {
            let begun = Instant::now();
            // Before the write: a change during it may miss it, and counts for the next one.
            self.written_before = clock.advance();
            fs.write_changes();
            // Not the end of the write: a change that missed it has waited since then.
            self.waiting_since = Some(begun);
        }
        tick
    }

    /// Whether there were changes since the last writeback, but none for some time.
    fn is_quiet(&self, clock: &ChangeClock) -> bool {
        let last = clock.last_change();
        clock.ticks_since(last) > QUIET_TICKS && !is_before(last, self.written_before)
    }
}

/// Whether the tick `first` is earlier than `second`. Ticks wrap around.
fn is_before(first: u32, second: u32) -> bool {
    (first.wrapping_sub(second) as i32) < 0
}
