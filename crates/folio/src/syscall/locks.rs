//! Advisory locks: flock(2), and fcntl(2) on ranges of bytes.

use super::process::{Fd, Process};
use super::{FlockOperation, Whence};
use crate::base::{Errno, Result, rcu};
use crate::vfs::{FileTable, LockBase, LockMode, LockOwner, LockTable, OpenFile, Record};
use std::fmt;
use std::sync::Arc;

/// The owner of a lock on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// The process: released when it closes any descriptor of the file (`F_SETLK`).
    Process,
    /// The open file: released when its last descriptor is closed (`F_OFD_SETLK`).
    OpenFile,
}

/// A lock on a range of bytes. Linux: `struct flock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLock {
    /// The mode (`l_type`).
    pub mode: LockMode,
    /// The start of `start`: `Set`, `Current` or `End` (`l_whence`).
    pub whence: Whence,
    /// The first byte of the range (`l_start`).
    pub start: i64,
    /// Length in bytes, to the end of all offsets if 0, before `start` if negative (`l_len`).
    pub len: i64,
    /// The process that has the lock, -1 for an open file description (`l_pid`).
    pub pid: i32,
}

/// The operation of a [`LockCall`].
enum Operation {
    Flock(FlockOperation),
    Record {
        mode: LockMode,
        record: Record,
        waits: bool,
    },
}

/// A call that may wait for a lock, apart from its process, which other threads may change
/// meanwhile.
pub struct LockCall {
    file: Arc<OpenFile>,
    fd: Fd,
    table: Arc<LockTable>,
    files: Arc<FileTable>,
    operation: Operation,
    /// Keeps the address in use.
    _owner: Arc<LockOwner>,
}

impl fmt::Debug for LockCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockCall")
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

impl LockCall {
    /// Makes the call. While it waits, asks every few milliseconds whether it `is_withdrawn`, which
    /// must not block.
    ///
    /// # Errors
    ///
    /// Those of [`Process::flock`] or [`Process::fcntl_setlk`], and EINTR if it was withdrawn.
    pub fn finish(self, is_withdrawn: &dyn Fn() -> bool) -> Result<()> {
        self.run(Some(is_withdrawn))
    }

    fn run(self, withdrawal: Option<&dyn Fn() -> bool>) -> Result<()> {
        let (mode, record, waits) = match self.operation {
            Operation::Flock(operation) => {
                return self.file.flock(&self.table, operation, withdrawal);
            }
            Operation::Record {
                mode,
                record,
                waits,
            } => (mode, record, waits),
        };
        let file = &self.file;
        file.set_lock(&self.table, mode, record, waits, withdrawal)?;
        // Another thread may have closed the descriptor meanwhile, before there was a lock to
        // release. Linux: `fcntl_setlk`.
        let is_open = {
            let pin = rcu::pin();
            let now = self.files.get(self.fd.as_raw() as usize, &pin);
            now.is_some_and(|now| std::ptr::eq(now.value(), &**file))
        };
        if record.pid.is_some() && mode != LockMode::Unlock && !is_open {
            file.set_lock(&self.table, LockMode::Unlock, record, false, None)?;
            return Err(Errno::BADF.into());
        }
        Ok(())
    }
}

impl Process {
    /// Takes, converts or releases an advisory lock on an open file. Waits for conflicting locks of
    /// other open files, unless `NB` is set. Linux: flock(2).
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, EINVAL unless exactly one of `SH`, `EX` and `UN` is set, EAGAIN
    /// with `NB` if another open file has a conflicting lock.
    pub fn flock(&self, fd: Fd, operation: FlockOperation) -> Result<()> {
        self.begin_flock(fd, operation)?.run(None)
    }

    /// Returns the call of [`Process::flock`], for a caller that may withdraw it.
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open.
    pub fn begin_flock(&self, fd: Fd, operation: FlockOperation) -> Result<LockCall> {
        self.lock_call(fd, self.file(fd)?, Operation::Flock(operation))
    }

    /// Returns a lock that excludes `wanted`, if there is one; with the mode `Unlock` and the kind
    /// `OpenFile`, a lock of the open file itself in the range. Linux: fcntl(2) with F_GETLK.
    ///
    /// # Errors
    ///
    /// EBADF if `fd` is not open, EINVAL for an invalid range, mode or process, EOVERFLOW.
    pub fn fcntl_getlk(
        &self,
        fd: Fd,
        kind: LockKind,
        wanted: &RecordLock,
    ) -> Result<Option<RecordLock>> {
        let file = self.file(fd)?;
        let is_own = wanted.mode == LockMode::Unlock;
        if is_own && kind == LockKind::Process {
            return Err(Errno::INVAL.into());
        }
        let record = self.record(&file, kind, wanted)?;
        let found = file.find_lock(self.locks(), &record, is_own);
        Ok(found.map(|found| RecordLock {
            mode: if found.is_exclusive {
                LockMode::Write
            } else {
                LockMode::Read
            },
            whence: Whence::Set,
            start: found.start as i64,
            len: if found.last == i64::MAX as u64 {
                0
            } else {
                (found.last - found.start + 1) as i64
            },
            pid: found.pid.map_or(-1, |pid| pid as i32),
        }))
    }

    /// Sets or releases a lock on a range of bytes. If another owner has it, waits if the caller
    /// `waits`. Linux: fcntl(2) with F_SETLK and F_SETLKW.
    ///
    /// # Errors
    ///
    /// EAGAIN if another owner has a conflicting lock and the caller does not wait, EDEADLK if it
    /// would wait for itself, EBADF unless open for the mode, EINVAL for an invalid range or
    /// process, EOVERFLOW.
    pub fn fcntl_setlk(
        &self,
        fd: Fd,
        kind: LockKind,
        lock: &RecordLock,
        waits: bool,
    ) -> Result<()> {
        self.begin_setlk(fd, kind, lock, waits)?.run(None)
    }

    /// Returns the call of [`Process::fcntl_setlk`], for a caller that may withdraw it.
    ///
    /// # Errors
    ///
    /// Those of [`Process::fcntl_setlk`] but EAGAIN and EDEADLK.
    pub fn begin_setlk(
        &self,
        fd: Fd,
        kind: LockKind,
        lock: &RecordLock,
        waits: bool,
    ) -> Result<LockCall> {
        let file = self.file(fd)?;
        let record = self.record(&file, kind, lock)?;
        if kind == LockKind::Process {
            self.lock_owner().set_has_locks();
        }
        let operation = Operation::Record {
            mode: lock.mode,
            record,
            waits,
        };
        self.lock_call(fd, file, operation)
    }

    fn lock_call(&self, fd: Fd, file: Arc<OpenFile>, operation: Operation) -> Result<LockCall> {
        file.check_not_path()?;
        Ok(LockCall {
            file,
            fd,
            table: self.locks().clone(),
            files: self.files().clone(),
            operation,
            _owner: self.lock_owner().clone(),
        })
    }

    fn record(&self, file: &Arc<OpenFile>, kind: LockKind, lock: &RecordLock) -> Result<Record> {
        let base = match lock.whence {
            Whence::Set => LockBase::Start,
            Whence::Current => LockBase::Position,
            Whence::End => LockBase::End,
            Whence::Data | Whence::Hole => return Err(Errno::INVAL.into()),
        };
        let (start, last) = file.lock_range(base, lock.start, lock.len)?;
        let (owner, pid) = match kind {
            LockKind::Process => (self.lock_owner().id(), Some(self.lock_owner().pid())),
            LockKind::OpenFile if lock.pid != 0 => return Err(Errno::INVAL.into()),
            LockKind::OpenFile => (file.lock_owner(self.locks()), None),
        };
        Ok(Record {
            owner,
            pid,
            is_exclusive: lock.mode == LockMode::Write,
            start,
            last,
        })
    }
}
