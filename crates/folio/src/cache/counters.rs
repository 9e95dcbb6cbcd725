//! Counters of the cache, kept without contention between hits. Linux: mm/vmstat.c.
//!
//! A hit is counted in the thread's own table, which has entries by mapping. Before an entry is
//! used for another mapping, its count is added to the old mapping's tally. A read of the counters
//! adds up the tallies and all tables.

use super::page_owner;
use crate::base::PAGE_SIZE;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{process_wide, thread_local};
use crate::base::thread_slots::{self, SlotRelease, ThreadSlot, ThreadSlots};
use std::cell::Cell;
use std::fmt;
use std::ops::AddAssign;

/// The counters of a cache or of one mapping, with the names of /proc/vmstat. Pages have 4096
/// bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pages in memory (`nr_file_pages`).
    pub file_pages: u64,
    /// Pages dirty now (`nr_dirty`).
    pub dirty_pages: u64,
    /// Pages being written to their store now (`nr_writeback`).
    pub writeback_pages: u64,
    /// Page lookups answered from memory.
    pub hits: u64,
    /// Page lookups that needed the store.
    pub misses: u64,
    /// Pages read ahead.
    pub readahead_pages: u64,
    /// Pages read ahead and then used.
    pub readahead_used_pages: u64,
    /// Pages read ahead and reclaimed before any use.
    pub readahead_unused_pages: u64,
    /// Pages that became dirty (`nr_dirtied`).
    pub dirtied_pages: u64,
    /// Pages written to their store (`nr_written`).
    pub written_pages: u64,
    /// Pages that reclaim scanned (`pgscan`).
    pub scanned_pages: u64,
    /// Pages reclaimed (`pgsteal`).
    pub reclaimed_pages: u64,
    /// Pages read again soon after they were reclaimed (`workingset_refault_file`).
    pub refaulted_pages: u64,
}

impl Counters {
    /// Returns the share of lookups answered from memory, in percent; `None` before the first
    /// lookup.
    pub fn hit_percent(&self) -> Option<f64> {
        let lookups = self.hits.saturating_add(self.misses);
        (lookups > 0).then(|| self.hits as f64 * 100.0 / lookups as f64)
    }

    /// Returns all counts with names: those of /proc/vmstat and of `sar -r` (sizes in KiB), where
    /// they have one.
    pub fn named(&self) -> [(&'static str, u64); 15] {
        let kib = |pages: u64| pages.saturating_mul(PAGE_SIZE as u64 / 1024);
        [
            ("nr_file_pages", self.file_pages),
            ("nr_dirty", self.dirty_pages),
            ("nr_writeback", self.writeback_pages),
            ("nr_dirtied", self.dirtied_pages),
            ("nr_written", self.written_pages),
            ("pgscan", self.scanned_pages),
            ("pgsteal", self.reclaimed_pages),
            ("workingset_refault_file", self.refaulted_pages),
            ("readahead", self.readahead_pages),
            ("readahead_used", self.readahead_used_pages),
            ("readahead_unused", self.readahead_unused_pages),
            ("hits", self.hits),
            ("misses", self.misses),
            ("kbcached", kib(self.file_pages)),
            ("kbdirty", kib(self.dirty_pages)),
        ]
    }
}

/// Prints lines of `name value`, as in /proc/vmstat, and last the share of hits.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.named() {
            writeln!(f, "{name} {count}")?;
        }
        match self.hit_percent() {
            Some(percent) => writeln!(f, "hit_percent {percent:.2}"),
            None => Ok(()),
        }
    }
}

macro_rules! tally {
    ($($field:ident),*) => {
        /// The counters as atomics, except for the number of pages.
        #[derive(Default)]
        pub(super) struct Tally { $(pub(super) $field: AtomicU64),* }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                self.file_pages += other.file_pages;
                $(self.$field += other.$field;)*
            }
        }

        impl Tally {
            /// Adds all counts to `counters`.
            pub(super) fn add_to(&self, counters: &mut Counters) {
                $(counters.$field += self.$field.load(Ordering::Relaxed);)*
            }
        }
    };
}

tally!(
    dirty_pages,
    writeback_pages,
    hits,
    misses,
    readahead_pages,
    readahead_used_pages,
    readahead_unused_pages,
    dirtied_pages,
    written_pages,
    scanned_pages,
    reclaimed_pages,
    refaulted_pages
);

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

process_wide! {
    /// The hits that threads have counted. The table of an ended thread keeps its counts for the
    /// next one.
    static TABLES: ThreadSlots<HitTable> = ThreadSlots::new(forget_table);
}

/// Mappings whose hits a thread counts at a time.
const ENTRIES: usize = 32;

/// The hits that one thread counted. Only that thread writes, so plain stores suffice.
struct HitTable {
    entries: [(AtomicU64, AtomicU64); ENTRIES],
    /// The mapping and the page index that the thread used last.
    last: (AtomicU64, AtomicU64),
}

thread_local! {
    static TABLE: Cell<Option<&'static ThreadSlot<HitTable>>> = const { Cell::new(None) };
    static RELEASE: SlotRelease<HitTable> = const { SlotRelease(&TABLE) };
}

extern "C" fn forget_table() {
    let _ = TABLE.try_with(Cell::take);
}

#[cold]
fn register() -> &'static ThreadSlot<HitTable> {
    let table = thread_slots::claim(&mut TABLES.lock_to_claim(), &TABLE, || HitTable {
        entries: std::array::from_fn(|_| (AtomicU64::new(0), AtomicU64::new(0))),
        last: (AtomicU64::new(0), AtomicU64::new(0)),
    });
    let _ = RELEASE.try_with(|_| ());
    table
}

/// Adds `count` hits of the mapping with this number.
#[inline]
pub(super) fn count_hits(number: u64, count: u64) {
    let table = TABLE.with(Cell::get).unwrap_or_else(register);
    let (owner, hits) = &table.entries[number as usize % ENTRIES];
    if owner.load(Ordering::Relaxed) == number {
        hits.store(hits.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    } else {
        take_over(owner, hits, number, count);
    }
}

/// Returns whether the thread's last use was of the same page; records this one as the last.
///
/// So a reader that reads a page in small pieces uses it once. Linux: `filemap_read`, by
/// `prev_pos`.
pub(super) fn is_repeated(number: u64, index: u64) -> bool {
    let table = TABLE.with(Cell::get).unwrap_or_else(register);
    let (owner, last) = &table.last;
    let is_repeated =
        owner.load(Ordering::Relaxed) == number && last.load(Ordering::Relaxed) == index;
    owner.store(number, Ordering::Relaxed);
    last.store(index, Ordering::Relaxed);
    is_repeated
}

#[cold]
fn take_over(owner: &AtomicU64, hits: &AtomicU64, number: u64, count: u64) {
    if let Some(previous) = page_owner::find(owner.load(Ordering::Relaxed)) {
        previous.add_hits(hits.load(Ordering::Relaxed));
    }
    hits.store(count, Ordering::Relaxed);
    owner.store(number, Ordering::Relaxed);
}

/// Returns the hits in the threads' tables of all mappings of the cache with these counters.
pub(super) fn hits_of_cache(cache_tally: &Tally) -> u64 {
    let cache_tally = std::ptr::from_ref(cache_tally).cast();
    let tables: Vec<&'static ThreadSlot<HitTable>> = TABLES.lock().clone();
    let entries = tables.iter().flat_map(|table| &table.entries);
    let hits_of = |(owner, hits): &(AtomicU64, AtomicU64)| match page_owner::find(
        owner.load(Ordering::Relaxed),
    ) {
        Some(owner) if owner.is_counted_in(cache_tally) => hits.load(Ordering::Relaxed),
        _ => 0,
    };
    entries.map(hits_of).sum()
}

/// Returns the hits of one mapping in the threads' tables.
pub(super) fn hits_of_mapping(number: u64) -> u64 {
    let hits_in = |table: &&'static ThreadSlot<HitTable>| {
        let (owner, hits) = &table.entries[number as usize % ENTRIES];
        if owner.load(Ordering::Relaxed) == number {
            hits.load(Ordering::Relaxed)
        } else {
            0
        }
    };
    TABLES.lock().iter().map(hits_in).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_print_like_vmstat() {
        let counters = Counters {
            file_pages: 3,
            dirty_pages: 1,
            hits: 9,
            misses: 1,
            ..Counters::default()
        };
        let text = counters.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 16);
        for line in [
            "nr_file_pages 3",
            "nr_dirty 1",
            "kbcached 12",
            "kbdirty 4",
            "hit_percent 90.00",
        ] {
            assert!(lines.contains(&line), "{line}: {text}");
        }
        assert_eq!(Counters::default().hit_percent(), None);
        let mut twice = counters;
        twice += counters;
        assert_eq!(
            (twice.file_pages, twice.hits, twice.scanned_pages),
            (6, 18, 0)
        );
        assert_eq!(Counters::default().to_string().lines().count(), 15);
    }
}
