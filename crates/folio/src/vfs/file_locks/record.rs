//! Advisory locks on ranges of bytes: fcntl(2) with F_SETLK and F_OFD_SETLK. Both kinds conflict
//! with each other. Linux: `posix_lock_inode`.

use super::owner::OwnerId;

/// A lock on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) owner: OwnerId,
    /// The process of the owner; `None` for an open file description.
    pub(crate) pid: Option<u32>,
    pub(crate) is_exclusive: bool,
    /// The first and the last byte.
    pub(crate) start: u64,
    pub(crate) last: u64,
}

impl Record {
    fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    fn conflicts(&self, other: &Self) -> bool {
        self.owner != other.owner
            && self.overlaps(other)
            && (self.is_exclusive || other.is_exclusive)
    }
}

/// The locks on the ranges of one file: those of one owner follow one another, sorted and disjoint.
/// F_GETLK reports the first conflict in this order.
#[derive(Default)]
pub(super) struct Records(Vec<Record>);

impl Records {
    /// Returns a lock of another owner that excludes `wanted`.
    pub(super) fn conflict(&self, wanted: &Record) -> Option<Record> {
        self.0.iter().find(|held| held.conflicts(wanted)).copied()
    }

    /// Returns a lock of the same owner in the range of `wanted`.
    pub(super) fn own(&self, wanted: &Record) -> Option<Record> {
        let is_own = |held: &&Record| held.owner == wanted.owner && held.overlaps(wanted);
        self.0.iter().find(is_own).copied()
    }

    /// Locks a range, which has no conflict. It replaces the owner's locks in the range, and joins
    /// equal ones beside it.
    pub(super) fn lock(&mut self, new: Record) {
        self.replace(&new, true);
    }

    /// Releases the owner's locks in a range.
    pub(super) fn unlock(&mut self, range: &Record) {
        self.replace(range, false);
    }

    fn replace(&mut self, change: &Record, is_locked: bool) {
        let first = self.0.iter().position(|held| held.owner == change.owner);
        let first = first.unwrap_or(self.0.len());
        let own = self.0[first..].iter();
        let count = own.take_while(|held| held.owner == change.owner).count();
        let mut kept = Vec::with_capacity(count + 2);
        let mut new = *change;
        for held in self.0.drain(first..first + count) {
            let is_equal = is_locked && held.is_exclusive == new.is_exclusive;
            let is_beside = held.start <= new.last.saturating_add(1)
                && new.start <= held.last.saturating_add(1);
            if is_equal && is_beside {
                new.start = new.start.min(held.start);
                new.last = new.last.max(held.last);
                continue;
            }
            if held.start < new.start {
                let last = held.last.min(new.start - 1);
                kept.push(Record { last, ..held });
            }
            if held.last > new.last {
                let start = held.start.max(new.last + 1);
                kept.push(Record { start, ..held });
            }
        }
        if is_locked {
            kept.push(new);
        }
        kept.sort_unstable_by_key(|held| held.start);
        self.0.splice(first..first, kept);
    }

    /// Releases all locks of an owner.
    pub(super) fn release(&mut self, owner: OwnerId) {
        self.0.retain(|held| held.owner != owner);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(owner: usize, is_exclusive: bool, start: u64, last: u64) -> Record {
        Record {
            owner: OwnerId(owner),
            pid: None,
            is_exclusive,
            start,
            last,
        }
    }

    #[test]
    fn unlock_in_the_middle_splits_a_lock() {
        let mut records = Records::default();
        records.lock(record(1, true, 0, 99));
        records.unlock(&record(1, true, 40, 59));
        assert_eq!(records.0, [record(1, true, 0, 39), record(1, true, 60, 99)]);
    }

    #[test]
    fn adjacent_locks_of_one_kind_are_joined() {
        let mut records = Records::default();
        for (start, last) in [(0, 9), (20, 29), (10, 19)] {
            records.lock(record(1, false, start, last));
        }
        assert_eq!(records.0, [record(1, false, 0, 29)]);
        records.lock(record(1, true, 10, 19));
        assert_eq!(records.0.len(), 3);
        records.lock(record(1, true, 0, i64::MAX as u64));
        assert_eq!(records.0, [record(1, true, 0, i64::MAX as u64)]);
    }

    #[test]
    fn lock_of_another_owner_conflicts() {
        let mut records = Records::default();
        records.lock(record(1, false, 0, 9));
        assert_eq!(records.conflict(&record(2, false, 0, 9)), None);
        let held = Some(record(1, false, 0, 9));
        assert_eq!(records.conflict(&record(2, true, 9, 9)), held);
        assert_eq!(records.conflict(&record(2, true, 10, 10)), None);
        assert_eq!(records.conflict(&record(1, true, 0, 9)), None);
    }
}
