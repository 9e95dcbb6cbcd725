//! Advisory locks on whole files: flock(2). A lock belongs to the open file, so that descriptors
//! made by dup(2) share it, and the last close releases it. Linux: fs/locks.c.

use crate::base::condvar::Condvar;
use crate::base::lock::Mutex;
use crate::base::{Errno, Result};
use bitflags::bitflags;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

bitflags! {
    /// The operation of flock(2): exactly one of `SH`, `EX` and `UN`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FlockOperation: u32 {
        /// Take a lock that several open files may have.
        const SH = 1;
        /// Take a lock that no other open file has.
        const EX = 2;
        /// Fail with EAGAIN instead of waiting.
        const NB = 4;
        /// Release the lock.
        const UN = 8;
    }
}

/// The lock that one open file has on an inode.
struct Holder {
    /// The address of the open file.
    owner: usize,
    is_exclusive: bool,
}

/// The locks of all files of one kernel, by the address of the inode, which an open file keeps in
/// memory.
#[derive(Default)]
pub(crate) struct FlockTable {
    holders: Mutex<HashMap<usize, SmallVec<[Holder; 1]>>>,
    released: Condvar,
}

impl FlockTable {
    /// Takes, converts or releases the lock of `owner` on `inode`. As in Linux, a conversion first
    /// releases the old lock.
    fn apply(&self, inode: usize, owner: usize, operation: FlockOperation) -> Result<()> {
        let is_exclusive = match operation.difference(FlockOperation::NB) {
            FlockOperation::SH => false,
            FlockOperation::EX => true,
            FlockOperation::UN => {
                self.release(inode, owner);
                return Ok(());
            }
            _ => return Err(Errno::INVAL.into()),
        };
        let mut all = self.holders.lock();
        loop {
            let holders = all.entry(inode).or_default();
            if let Some(at) = holders.iter().position(|holder| holder.owner == owner) {
                if holders[at].is_exclusive == is_exclusive {
                    return Ok(());
                }
                holders.remove(at);
                self.released.notify_all();
            }
            let is_free = if is_exclusive {
                holders.is_empty()
            } else {
                holders.iter().all(|holder| !holder.is_exclusive)
            };
            if is_free {
                holders.push(Holder {
                    owner,
                    is_exclusive,
                });
                return Ok(());
            }
            if operation.contains(FlockOperation::NB) {
                return Err(Errno::AGAIN.into());
            }
            self.released.wait(&mut all);
        }
    }

    fn release(&self, inode: usize, owner: usize) {
        let mut all = self.holders.lock();
        let Some(holders) = all.get_mut(&inode) else {
            return;
        };
        holders.retain(|holder| holder.owner != owner);
        if holders.is_empty() {
            all.remove(&inode);
        }
        drop(all);
        self.released.notify_all();
    }
}

/// The lock that an open file takes and releases; dropping this releases it.
pub(super) struct FileLock {
    table: Arc<FlockTable>,
    inode: usize,
    owner: usize,
}

impl FileLock {
    /// Returns the lock of the open file at the address `owner` on the inode at `inode`, not yet
    /// taken.
    pub(super) fn new(table: Arc<FlockTable>, inode: usize, owner: usize) -> Self {
        Self {
            table,
            inode,
            owner,
        }
    }

    /// Takes, converts or releases the lock: flock(2).
    pub(super) fn apply(&self, operation: FlockOperation) -> Result<()> {
        self.table.apply(self.inode, self.owner, operation)
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        self.table.release(self.inode, self.owner);
    }
}
