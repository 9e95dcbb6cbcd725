//! What the cache has done so far, counted without making hits wait for one another.
//!
//! A hit is counted in memory of the thread's own: a small table by mapping. An entry that another
//! mapping needs is added to its mapping's tally first. Reading the counters adds up the tallies
//! and every thread's table.

use super::mapping::Inner;
use crate::base::PAGE_SIZE;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{Mutex, process_wide, thread_local};
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::ops::AddAssign;
use std::sync::{Arc, Weak};

/// What a cache, or one mapping, has done so far, in the words of /proc/vmstat. Pages are 4096
/// bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pages held (`nr_file_pages`).
    pub file_pages: u64,
    /// Pages dirty now (`nr_dirty`).
    pub dirty_pages: u64,
    /// Pages being written to their store now (`nr_writeback`).
    pub writeback_pages: u64,
    /// Page lookups answered from memory.
    pub hits: u64,
    /// Page lookups that had to ask the store.
    pub misses: u64,
    /// Pages brought in ahead of a request.
    pub readahead_pages: u64,
    /// Pages brought in ahead that a reader came for.
    pub readahead_used_pages: u64,
    /// Pages brought in ahead and taken back before any reader came.
    pub readahead_unused_pages: u64,
    /// Pages that became dirty (`nr_dirtied`).
    pub dirtied_pages: u64,
    /// Pages written to their store (`nr_written`).
    pub written_pages: u64,
    /// Pages that reclaim looked at (`pgscan`).
    pub scanned_pages: u64,
    /// Pages taken back for other use (`pgsteal`).
    pub reclaimed_pages: u64,
    /// Pages brought in again soon after they were taken back (`workingset_refault_file`).
    pub refaulted_pages: u64,
}

impl Counters {
    /// Lookups answered from memory, in percent; `None` before the first lookup.
    pub fn hit_percent(&self) -> Option<f64> {
        let lookups = self.hits.saturating_add(self.misses);
        (lookups > 0).then(|| self.hits as f64 * 100.0 / lookups as f64)
    }

    /// Every count with its name: that of /proc/vmstat or of `sar -r` (sizes in KiB) where they
    /// have one.
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

/// One `name value` in each line, as in /proc/vmstat, and at the end the share of hits.
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
        /// The running form of [`Counters`].
        #[derive(Default)]
        pub(super) struct Tally { $(pub(super) $field: AtomicU64),* }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                self.file_pages += other.file_pages;
                $(self.$field += other.$field;)*
            }
        }

        impl Tally {
            /// Adds what was counted to `counters`.
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
    /// The mappings of all caches by their number, which no two ever share.
    static MAPPINGS: Mutex<Option<HashMap<u64, Weak<Inner>>>> = Mutex::new(None);
    static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
    /// Every thread that ever had a hit; tables of threads that ended are used again, with what
    /// they counted.
    static TABLES: Mutex<Vec<&'static Table>> = Mutex::new(Vec::new());
}

/// A number for a new mapping.
pub(super) fn take_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Lets the mapping be found by its number.
pub(super) fn enter(number: u64, mapping: &Weak<Inner>) {
    MAPPINGS
        .lock()
        .get_or_insert_default()
        .insert(number, mapping.clone());
}

/// The mapping is gone.
pub(super) fn leave(number: u64) {
    if let Some(mappings) = &mut *MAPPINGS.lock() {
        mappings.remove(&number);
    }
}

/// The mapping with this number, if it still lives.
pub(super) fn mapping(number: u64) -> Option<Arc<Inner>> {
    MAPPINGS.lock().as_ref()?.get(&number)?.upgrade()
}

/// Mappings whose hits a thread counts at once.
const ENTRIES: usize = 32;

/// Hits that one thread counted. Only that thread writes, so plain stores do.
struct Table {
    entries: [(AtomicU64, AtomicU64); ENTRIES],
    /// The mapping and the place in it that the thread used last.
    last: (AtomicU64, AtomicU64),
    is_taken: AtomicBool,
}

thread_local! {
    static TABLE: Cell<Option<&'static Table>> = const { Cell::new(None) };
    static RELEASE: Release = const { Release };
}

/// Gives the thread's table back when the thread ends.
struct Release;

impl Drop for Release {
    fn drop(&mut self) {
        if let Ok(Some(table)) = TABLE.try_with(Cell::take) {
            table.is_taken.store(false, Ordering::Release);
        }
    }
}

#[cold]
fn register() -> &'static Table {
    let mut tables = TABLES.lock();
    let is_free = |table: &&&'static Table| !table.is_taken.load(Ordering::Acquire);
    let table = tables.iter().find(is_free).copied().unwrap_or_else(|| {
        let entries = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; ENTRIES];
        let table: &'static Table = Box::leak(Box::new(Table {
            entries,
            last: (AtomicU64::new(0), AtomicU64::new(0)),
            is_taken: AtomicBool::new(true),
        }));
        tables.push(table);
        table
    });
    table.is_taken.store(true, Ordering::Relaxed);
    TABLE.with(|own| own.set(Some(table)));
    let _ = RELEASE.try_with(|_| ());
    table
}

/// Counts `count` hits of the mapping with this number.
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

/// Whether the thread uses the same place once more, with no other in between; from now on, this
/// one is the last.
///
/// A reader who takes a page in small pieces uses it once. Linux: `filemap_read`, which remembers
/// `prev_pos`.
pub(super) fn is_repeated(number: u64, place: u64) -> bool {
    let table = TABLE.with(Cell::get).unwrap_or_else(register);
    let (owner, last) = &table.last;
    let is_repeated =
        owner.load(Ordering::Relaxed) == number && last.load(Ordering::Relaxed) == place;
    owner.store(number, Ordering::Relaxed);
    last.store(place, Ordering::Relaxed);
    is_repeated
}

#[cold]
fn take_over(owner: &AtomicU64, hits: &AtomicU64, number: u64, count: u64) {
    if let Some(previous) = mapping(owner.load(Ordering::Relaxed)) {
        previous.count(|tally| &tally.hits, hits.load(Ordering::Relaxed));
    }
    hits.store(count, Ordering::Relaxed);
    owner.store(number, Ordering::Relaxed);
}

/// Hits of all mappings that `is_meant` that are still in threads' tables.
pub(super) fn hits_in_all_tables(is_meant: impl Fn(&Inner) -> bool) -> u64 {
    let tables: Vec<&'static Table> = TABLES.lock().clone();
    let entries = tables.iter().flat_map(|table| &table.entries);
    let hits_of =
        |(owner, hits): &(AtomicU64, AtomicU64)| match mapping(owner.load(Ordering::Relaxed)) {
            Some(mapping) if is_meant(&mapping) => hits.load(Ordering::Relaxed),
            _ => 0,
        };
    entries.map(hits_of).sum()
}

/// Hits of one mapping that are still in threads' tables.
pub(super) fn hits_in_tables(number: u64) -> u64 {
    let hits_in = |table: &&'static Table| {
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
    fn counters_print_as_vmstat_does() {
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
