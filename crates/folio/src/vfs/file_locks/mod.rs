//! Advisory locks: flock(2), and fcntl(2) on ranges of bytes. Linux: fs/locks.c.
//!
//! ```text
//!   LockTable    by inode: the locks, and the waiters
//!     |-- flock.rs    on the whole file
//!     |-- record.rs   on ranges: of processes, and of open file descriptions
//!     `-- owner.rs    their owners
//!   FileLock     releases the locks of an open file that is closed
//! ```
//!
//! Neighbors: open_file_locks.rs above has the calls. A lock on a whole file and one on a range do
//! not conflict.

mod flock;
mod owner;
mod record;

use super::inode::Inode;
use crate::base::condvar::Condvar;
use crate::base::lock::{Mutex, MutexGuard};
use crate::base::{Errno, Result};
use flock::{Attempt, Flocks};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub use flock::FlockOperation;
pub(crate) use owner::{LockOwner, OwnerId};
pub(crate) use record::Record;
use record::Records;

/// Returns whether a wait is withdrawn: the call then fails with EINTR. It must not block. `None`
/// waits without end.
pub(crate) type Withdrawal<'a> = Option<&'a (dyn Fn() -> bool + 'a)>;

/// Interval at which a waiter looks whether its call is withdrawn.
const WITHDRAWAL_INTERVAL: Duration = Duration::from_millis(10);
/// Linux: `MAX_DEADLK_ITERATIONS`.
const DEADLOCK_STEPS_MAX: usize = 10;

/// The locks of one file.
struct FileLocks {
    /// Keeps the address in use.
    _inode: Arc<dyn Inode>,
    flocks: Flocks,
    records: Records,
}

impl FileLocks {
    fn is_empty(&self) -> bool {
        self.flocks.is_empty() && self.records.is_empty()
    }

    fn release(&mut self, owner: OwnerId) {
        self.flocks.release(owner);
        self.records.release(owner);
    }
}

#[derive(Default)]
struct State {
    /// By the address of the inode.
    files: HashMap<usize, FileLocks>,
    /// Processes that wait for a range, each with the owner of the lock in its way.
    waits: Vec<(OwnerId, OwnerId)>,
}

impl State {
    fn file(&mut self, inode: &Arc<dyn Inode>) -> &mut FileLocks {
        let new = || FileLocks {
            _inode: inode.clone(),
            flocks: Flocks::default(),
            records: Records::default(),
        };
        self.files.entry(address(inode)).or_insert_with(new)
    }

    /// Returns whether `owner` would wait for itself if it waits for `blocker`.
    fn is_deadlock(&self, owner: OwnerId, blocker: OwnerId) -> bool {
        let mut at = blocker;
        for _ in 0..DEADLOCK_STEPS_MAX {
            if at == owner {
                return true;
            }
            let wait = self.waits.iter().find(|(waiter, _)| *waiter == at);
            let Some((_, blocker)) = wait else {
                return false;
            };
            at = *blocker;
        }
        false
    }
}

/// The locks of all files of one kernel.
#[derive(Default)]
pub(crate) struct LockTable {
    state: Mutex<State>,
    released: Condvar,
}

impl LockTable {
    /// Takes, converts or releases the lock of `owner` on a whole file.
    pub(super) fn flock(
        &self,
        inode: &Arc<dyn Inode>,
        owner: OwnerId,
        operation: FlockOperation,
        withdrawal: Withdrawal<'_>,
    ) -> Result<()> {
        let is_exclusive = match operation.difference(FlockOperation::NB) {
            FlockOperation::SH => false,
            FlockOperation::EX => true,
            FlockOperation::UN => {
                self.release(address(inode), |locks| locks.flocks.release(owner));
                return Ok(());
            }
            _ => return Err(Errno::INVAL.into()),
        };
        let mut state = self.state.lock();
        loop {
            let attempt = state.file(inode).flocks.lock(owner, is_exclusive);
            let (Attempt::Locked { has_released } | Attempt::Blocked { has_released }) = attempt;
            if has_released {
                self.released.notify_all();
            }
            if matches!(attempt, Attempt::Locked { .. }) {
                return Ok(());
            }
            if operation.contains(FlockOperation::NB) {
                return Err(Errno::AGAIN.into());
            }
            self.wait(&mut state, withdrawal)?;
        }
    }

    /// Locks a range. If another owner has it, waits if the caller `waits`.
    pub(super) fn lock(
        &self,
        inode: &Arc<dyn Inode>,
        wanted: Record,
        waits: bool,
        withdrawal: Withdrawal<'_>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            let records = &mut state.file(inode).records;
            let Some(held) = records.conflict(&wanted) else {
                records.lock(wanted);
                // A weaker lock may let a waiter in.
                self.released.notify_all();
                return Ok(());
            };
            if !waits {
                return Err(Errno::AGAIN.into());
            }
            // Open file descriptions have no deadlock: any process may have them.
            let is_process = wanted.pid.is_some();
            if is_process && state.is_deadlock(wanted.owner, held.owner) {
                return Err(Errno::DEADLK.into());
            }
            let wait = (wanted.owner, held.owner);
            if is_process {
                state.waits.push(wait);
            }
            let waited = self.wait(&mut state, withdrawal);
            if let Some(at) = state.waits.iter().position(|known| *known == wait) {
                state.waits.swap_remove(at);
            }
            waited?;
        }
    }

    /// Releases a range.
    pub(super) fn unlock(&self, inode: &Arc<dyn Inode>, range: &Record) {
        self.release(address(inode), |locks| locks.records.unlock(range));
    }

    /// Returns a lock that excludes `wanted`, or with `is_own` one of its owner in the range.
    pub(super) fn find(
        &self,
        inode: &Arc<dyn Inode>,
        wanted: &Record,
        is_own: bool,
    ) -> Option<Record> {
        let state = self.state.lock();
        let records = &state.files.get(&address(inode))?.records;
        if is_own {
            records.own(wanted)
        } else {
            records.conflict(wanted)
        }
    }

    /// Releases the ranges of a process that closes a descriptor of the file.
    pub(crate) fn release_closed(&self, inode: &Arc<dyn Inode>, owner: OwnerId) {
        self.release(address(inode), |locks| locks.records.release(owner));
    }

    /// Releases the ranges of a process that ends.
    pub(crate) fn release_process(&self, owner: OwnerId) {
        let mut state = self.state.lock();
        for locks in state.files.values_mut() {
            locks.records.release(owner);
        }
        let unlocked: Vec<_> = state
            .files
            .extract_if(|_, locks| locks.is_empty())
            .collect();
        drop(state);
        // This may be the last reference to an inode.
        drop(unlocked);
        self.released.notify_all();
    }

    fn release(&self, inode: usize, release: impl FnOnce(&mut FileLocks)) {
        let mut state = self.state.lock();
        let Some(locks) = state.files.get_mut(&inode) else {
            return;
        };
        release(locks);
        let unlocked = if locks.is_empty() {
            state.files.remove(&inode)
        } else {
            None
        };
        drop(state);
        // This may be the last reference to an inode.
        drop(unlocked);
        self.released.notify_all();
    }

    fn wait(&self, state: &mut MutexGuard<'_, State>, withdrawal: Withdrawal<'_>) -> Result<()> {
        match withdrawal {
            None => self.released.wait(state),
            Some(is_withdrawn) if is_withdrawn() => return Err(Errno::INTR.into()),
            Some(_) => self.released.wait_for(state, WITHDRAWAL_INTERVAL),
        }
        Ok(())
    }
}

fn address(inode: &Arc<dyn Inode>) -> usize {
    Arc::as_ptr(inode).cast::<()>().addr()
}

/// The locks that an open file has; dropping this releases them.
pub(super) struct FileLock {
    table: Arc<LockTable>,
    inode: usize,
    owner: OwnerId,
}

impl FileLock {
    /// Returns the locks of the open file at the address `owner`, none yet.
    pub(super) fn new(table: Arc<LockTable>, inode: &Arc<dyn Inode>, owner: usize) -> Self {
        Self {
            table,
            inode: address(inode),
            owner: OwnerId(owner),
        }
    }

    pub(super) fn table(&self) -> &LockTable {
        &self.table
    }

    pub(super) fn owner(&self) -> OwnerId {
        self.owner
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        self.table
            .release(self.inode, |locks| locks.release(self.owner));
    }
}
