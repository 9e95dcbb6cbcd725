//! Advisory locks of open files: flock(2), and fcntl(2) on ranges of bytes.

use super::file::{OFFSET_MAX, OpenFile};
use super::file_locks::{FileLock, FlockOperation, LockTable, OwnerId, Record, Withdrawal};
use super::revalidate::revalidate;
use crate::base::{Errno, Result};
use std::sync::Arc;

/// The mode of a lock on a range, or its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Several owners may have the range (`F_RDLCK`).
    Read,
    /// One owner has the range (`F_WRLCK`).
    Write,
    /// The range is released (`F_UNLCK`).
    Unlock,
}

/// The start of the offsets of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockBase {
    Start,
    Position,
    End,
}

/// The first and the last byte of a range.
pub(crate) type LockRange = (u64, u64);

impl OpenFile {
    /// Takes, converts or releases the lock of this open file: flock(2).
    pub(crate) fn flock(
        self: &Arc<Self>,
        table: &Arc<LockTable>,
        operation: FlockOperation,
        withdrawal: Withdrawal<'_>,
    ) -> Result<()> {
        self.check_not_path()?;
        let lock = self.own_lock(table);
        lock.table()
            .flock(self.inode(), lock.owner(), operation, withdrawal)
    }

    /// Returns this open file as an owner of ranges.
    pub(crate) fn lock_owner(self: &Arc<Self>, table: &Arc<LockTable>) -> OwnerId {
        self.own_lock(table).owner()
    }

    fn own_lock(self: &Arc<Self>, table: &Arc<LockTable>) -> &FileLock {
        let address = Arc::as_ptr(self).addr();
        let new_lock = || FileLock::new(table.clone(), self.inode(), address);
        self.lock.get_or_init(new_lock)
    }

    /// Returns the bytes of a range of `len` bytes: to the end of all offsets if it is 0, before
    /// `start` if it is negative. Linux: `flock64_to_posix_lock`.
    pub(crate) fn lock_range(&self, base: LockBase, start: i64, len: i64) -> Result<LockRange> {
        self.check_not_path()?;
        let base = match base {
            LockBase::Start => 0,
            LockBase::Position => *self.position.lock() as i64,
            LockBase::End => {
                revalidate(&**self.inode())?;
                self.common().attributes().size_bytes as i64
            }
        };
        let first = base.checked_add(start).ok_or(Errno::OVERFLOW)?;
        let (first, last) = match len {
            0 => (first, i64::MAX),
            1.. => (
                first,
                first.max(0).checked_add(len - 1).ok_or(Errno::OVERFLOW)?,
            ),
            _ => (first.saturating_add(len), first.saturating_sub(1)),
        };
        match (u64::try_from(first), u64::try_from(last)) {
            (Ok(first), Ok(last)) => Ok((first, last.min(OFFSET_MAX))),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Sets or releases a lock on a range: fcntl(2).
    pub(crate) fn set_lock(
        &self,
        table: &LockTable,
        mode: LockMode,
        record: Record,
        waits: bool,
        withdrawal: Withdrawal<'_>,
    ) -> Result<()> {
        match mode {
            LockMode::Read => self.check_readable()?,
            LockMode::Write => self.check_writable()?,
            LockMode::Unlock => {
                table.unlock(self.inode(), &record);
                return Ok(());
            }
        }
        table.lock(self.inode(), record, waits, withdrawal)
    }

    /// Returns a lock that excludes `record`, or with `is_own` one of its owner in the range.
    pub(crate) fn find_lock(
        &self,
        table: &LockTable,
        record: &Record,
        is_own: bool,
    ) -> Option<Record> {
        table.find(self.inode(), record, is_own)
    }
}
