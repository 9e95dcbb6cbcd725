//! The state of a file's cached data: the host's last answer, and changes made through Folio.

use super::host_calls::Stamp;
use crate::base::Timespec;
use crate::cache::Mapping;

/// The state of the data in memory.
pub(super) struct DataState {
    /// The ticket of the question that this state answers.
    pub(super) ticket: u64,
    /// The ticket of the last read that found an end before the cached one.
    pub(super) end_ticket: u64,
    pub(super) stamp: Stamp,
    /// Whether pages may be out of date although the stamp has not changed.
    pub(super) is_suspect: bool,
    /// Whether the last change was made through Folio.
    pub(super) is_own: bool,
    /// The stamp that the last change through Folio left.
    pub(super) own_stamp: Option<Stamp>,
    /// Number of changes through Folio in progress.
    pub(super) own_count: u32,
    /// Until this time of the monotonic clock, a notification may be about a change through Folio.
    pub(super) own_until_ns: u64,
    /// When pages are dropped once more, in nanoseconds of the monotonic clock.
    pub(super) recheck_ns: Option<u64>,
    /// Whether the cache has, or is about to have, data that the host does not have. Then the
    /// cache's size counts.
    pub(super) has_unwritten: bool,
    pub(super) is_being_written: bool,
    /// Time of the last write into the cache.
    pub(super) written: Option<Timespec>,
}

impl DataState {
    pub(super) fn new(stamp: Stamp) -> Self {
        Self {
            ticket: 0,
            end_ticket: 0,
            stamp,
            is_suspect: false,
            is_own: false,
            own_stamp: None,
            own_count: 0,
            own_until_ns: 0,
            // The age of the stamp has not been checked.
            recheck_ns: Some(0),
            has_unwritten: false,
            is_being_written: false,
            written: None,
        }
    }

    /// Drops size and time of cached writes once the host has all of them.
    pub(super) fn forget_written(&mut self, mapping: &Mapping) {
        if !self.is_being_written && !mapping.is_dirty() {
            self.has_unwritten = false;
            self.written = None;
        }
    }
}
