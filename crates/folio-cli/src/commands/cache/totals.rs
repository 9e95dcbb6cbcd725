//! Sums over files, and their rows in tables.

use crate::output::{PathRecord, human};
use folio_pagecache::{ResidencyReport, State, UnknownReason};
use serde::Serialize;
use std::collections::HashSet;

/// How much of some files is in memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Totals {
    /// Files, each counted once however many names it has.
    pub(super) files: u64,
    /// Files with unknown residency; they count in no other number.
    pub(super) unknown_files: u64,
    /// Their size.
    pub(super) size_bytes: u64,
    /// In memory.
    pub(super) resident_bytes: u64,
    /// Dirty; null unless known for all files.
    pub(super) dirty_bytes: Option<u64>,
    /// Under writeback.
    pub(super) writeback_bytes: Option<u64>,
    /// Evicted.
    pub(super) evicted_bytes: Option<u64>,
    /// Of that, the part that a little more memory would have kept.
    pub(super) recently_evicted_bytes: Option<u64>,
}

impl Totals {
    /// Returns the sum over no files.
    pub(super) fn none() -> Self {
        let zero = Some(0);
        Self {
            dirty_bytes: zero,
            writeback_bytes: zero,
            evicted_bytes: zero,
            recently_evicted_bytes: zero,
            ..Self::default()
        }
    }

    /// Returns the values of one file.
    pub(super) fn of(state: &State) -> Self {
        let mut totals = Self {
            files: 1,
            ..Self::none()
        };
        let Some(residency) = state.residency() else {
            return Self {
                unknown_files: 1,
                ..totals
            };
        };
        totals.size_bytes = residency.size_bytes;
        totals.resident_bytes = residency.resident_bytes;
        totals.dirty_bytes = residency.dirty_bytes;
        totals.writeback_bytes = residency.writeback_bytes;
        totals.evicted_bytes = residency.evicted_bytes;
        totals.recently_evicted_bytes = residency.recently_evicted_bytes;
        totals
    }

    /// Adds another sum.
    pub(super) fn add(&mut self, other: &Self) {
        let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        self.files += other.files;
        self.unknown_files += other.unknown_files;
        self.size_bytes += other.size_bytes;
        self.resident_bytes += other.resident_bytes;
        self.dirty_bytes = both(self.dirty_bytes, other.dirty_bytes);
        self.writeback_bytes = both(self.writeback_bytes, other.writeback_bytes);
        self.evicted_bytes = both(self.evicted_bytes, other.evicted_bytes);
        self.recently_evicted_bytes =
            both(self.recently_evicted_bytes, other.recently_evicted_bytes);
    }

    /// Returns the sum over all files, each counted once however many names it has.
    pub(super) fn sum<'a>(states: impl IntoIterator<Item = &'a State>) -> Self {
        let mut seen = HashSet::new();
        let mut totals = Self::none();
        for state in states {
            if seen.insert(state.id) {
                totals.add(&Self::of(state));
            }
        }
        totals
    }

    /// Whether the residency of all files is unknown.
    fn is_unknown(&self) -> bool {
        self.files > 0 && self.unknown_files == self.files
    }

    /// Returns the resident percentage.
    pub(super) fn percent(&self) -> f64 {
        if self.size_bytes == 0 {
            100.0
        } else {
            self.resident_bytes as f64 * 100.0 / self.size_bytes as f64
        }
    }

    /// Formats a row of the table; unknown values are question marks.
    pub(super) fn line(&self, name: &str) -> String {
        if self.is_unknown() {
            return columns(["?"; 7].map(str::to_owned), name);
        }
        let part = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), human);
        let percent = format!("{:.0}%", self.percent().floor());
        let cells = [
            human(self.size_bytes),
            human(self.resident_bytes),
            percent,
            part(self.dirty_bytes),
            part(self.writeback_bytes),
            part(self.evicted_bytes),
            part(self.recently_evicted_bytes),
        ];
        columns(cells, name)
    }
}

/// Returns the heading of the table.
pub(super) fn head() -> String {
    columns(
        [
            "SIZE", "CACHED", "%", "DIRTY", "WRITING", "EVICTED", "RECENTLY",
        ]
        .map(str::to_owned),
        "PATH",
    )
}

fn columns(cells: [String; 7], name: &str) -> String {
    let [size, resident, percent, dirty, writeback, evicted, recently] = cells;
    format!(
        "{size:>7} {resident:>7} {percent:>5} {dirty:>7} {writeback:>7} {evicted:>7} {recently:>8}  {name}"
    )
}

/// A file or a directory, as JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Entry {
    #[serde(flatten)]
    pub(super) path: PathRecord,
    #[serde(rename = "type")]
    #[cfg_attr(test, schemars(extend("enum" = ["file", "directory"])))]
    pub(super) kind: &'static str,
    #[serde(flatten)]
    pub(super) totals: Totals,
    /// Why the residency is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unknown: Option<UnknownReason>,
}

/// Returns why the residency of a file is unknown.
pub(super) fn unknown(state: &State) -> Option<UnknownReason> {
    match state.known {
        ResidencyReport::Known(_) => None,
        ResidencyReport::Unknown(unknown) => Some(unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio_pagecache::Residency;

    #[test]
    fn sum_counts_each_file_once() {
        let known = |resident_bytes, dirty_bytes| {
            ResidencyReport::Known(Residency {
                size_bytes: 8192,
                resident_bytes,
                dirty_bytes,
                ..Residency::default()
            })
        };
        let state = |inode, known| State {
            path: "x".into(),
            id: (1, inode),
            size_bytes: 8192,
            known,
        };
        let one = state(1, known(4096, Some(10)));
        let mut totals = Totals::sum([
            &one,
            &one,
            &state(2, ResidencyReport::Unknown(UnknownReason::Rights)),
        ]);
        assert_eq!((totals.files, totals.unknown_files), (2, 1));
        assert_eq!(
            (totals.size_bytes, totals.resident_bytes, totals.dirty_bytes),
            (8192, 4096, Some(10))
        );
        assert!(totals.line("x").contains(" 50% "), "{}", totals.line("x"));
        totals.add(&Totals::of(&state(3, known(0, None))));
        assert_eq!((totals.dirty_bytes, totals.size_bytes), (None, 16384));
        assert!(
            Totals::of(&state(2, ResidencyReport::Unknown(UnknownReason::Kernel)))
                .line("x")
                .contains("? ")
        );
        assert_eq!(Totals::none().percent(), 100.0);
    }
}
