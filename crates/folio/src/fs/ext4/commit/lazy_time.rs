//! `lazytime`: a change of times alone stays in memory until the inode is written for another
//! reason, it is synced, or a day has passed. Linux: `I_DIRTY_TIME`, fs/fs-writeback.c.

use crate::base::Timespec;
use crate::fs::ext4::Ext4;
use crate::fs::ext4::inode::{Ext4Inode, InodeState};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Times wait no longer than this, as mount(8) says.
const AGE_MAX_SECS: i64 = 24 * 60 * 60;
/// Inodes that wait in memory at most.
const INODES_MAX: usize = 4096;

/// The inodes whose times alone changed; none without `lazytime`.
pub(crate) struct LazyTimes {
    is_on: bool,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    inodes: HashMap<u32, Arc<Ext4Inode>, foldhash::fast::FixedState>,
    /// When the first of them came.
    since: Timespec,
}

impl LazyTimes {
    /// `is_on`: whether the mount asks for it.
    pub(crate) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            waiting: Mutex::default(),
        }
    }

    /// Everything that waits.
    pub(crate) fn take(&self) -> Vec<Arc<Ext4Inode>> {
        std::mem::take(&mut self.waiting.lock().inodes)
            .into_values()
            .collect()
    }

    /// The inode is written, or gone. What is returned is dropped with nothing locked.
    pub(crate) fn forget(&self, number: u32) -> Option<Arc<Ext4Inode>> {
        if self.is_on {
            self.waiting.lock().inodes.remove(&number)
        } else {
            None
        }
    }
}

impl Ext4Inode {
    /// Notes that times changed and nothing else. The caller is within an operation.
    pub(crate) fn note_times(&self, state: &mut InodeState) {
        let lazy = &self.fs.lazy_times;
        let Some(this) = self
            .this
            .upgrade()
            .filter(|_| lazy.is_on && !state.is_dirty && state.link_count() > 0)
        else {
            return self.mark_times_dirty(state);
        };
        let mut waiting = lazy.waiting.lock();
        if waiting.inodes.is_empty() {
            waiting.since = self.fs.now();
        }
        let listed = waiting.inodes.insert(self.number, this);
        drop(waiting);
        listed.into_iter().for_each(Ext4::retire);
    }
}

impl Ext4 {
    /// Lets the times that have waited too long, or too many, wait no more. To be called with
    /// nothing locked.
    pub(crate) fn limit_lazy_times(&self) {
        if !self.lazy_times.is_on {
            return;
        }
        let is_due = {
            let waiting = self.lazy_times.waiting.lock();
            let age = self.now().secs.saturating_sub(waiting.since.secs);
            !waiting.inodes.is_empty() && (age >= AGE_MAX_SECS || waiting.inodes.len() > INODES_MAX)
        };
        if is_due {
            self.flush_lazy_times();
        }
    }

    /// Makes every waiting change of times part of the running transaction.
    pub(crate) fn flush_lazy_times(&self) {
        if !self.lazy_times.is_on {
            return;
        }
        let _handle = self.start();
        for inode in self.lazy_times.take() {
            inode.mark_times_dirty(&mut inode.state_mut());
            Self::retire(inode);
        }
    }

    /// The same for one inode.
    pub(crate) fn flush_lazy_times_of(&self, inode: &Ext4Inode) {
        if let Some(listed) = self.lazy_times.forget(inode.number) {
            let _handle = self.start();
            inode.mark_times_dirty(&mut inode.state_mut());
            Self::retire(listed);
        }
    }
}
