//! `lazytime`: a change of times alone stays in memory until the inode is written for another
//! reason, it is synced, or a day has passed. Linux: `I_DIRTY_TIME`, fs/fs-writeback.c.

use super::state::InodeState;
use super::{Ext4, Ext4Inode};

/// Changed times wait no longer than this, as mount(8) documents.
const AGE_MAX_SECS: i64 = 24 * 60 * 60;
/// Inodes that wait in memory at most.
const INODES_MAX: usize = 4096;

impl Ext4Inode {
    /// Marks an inode of which only times changed. The caller is within an operation.
    pub(crate) fn note_times(&self, state: &mut InodeState) {
        let lazy = &self.fs.lazy_times;
        let Some(this) = self
            .this
            .upgrade()
            .filter(|_| lazy.is_enabled && !state.is_dirty && state.link_count() > 0)
        else {
            return self.mark_times_dirty(state);
        };
        let listed = lazy.insert(self.number, this, || self.fs.volume.now());
        listed.into_iter().for_each(Ext4::retire);
    }
}

impl Ext4 {
    /// Flushes lazy times that are a day old, or too many. The caller holds no lock.
    pub(crate) fn limit_lazy_times(&self) {
        if self.lazy_times.is_enabled
            && self
                .lazy_times
                .is_due(self.volume.now(), AGE_MAX_SECS, INODES_MAX)
        {
            self.flush_lazy_times();
        }
    }

    /// Makes every waiting change of times part of the running transaction.
    pub(crate) fn flush_lazy_times(&self) {
        if !self.lazy_times.is_enabled {
            return;
        }
        let _handle = self.volume.start();
        for inode in self.lazy_times.take() {
            inode.mark_times_dirty(&mut inode.state_mut());
            Self::retire(inode);
        }
    }

    /// Makes a waiting change of one inode's times part of the running transaction.
    pub(crate) fn flush_lazy_times_of(&self, inode: &Ext4Inode) {
        if let Some(listed) = self.lazy_times.remove(inode.number) {
            let _handle = self.volume.start();
            inode.mark_times_dirty(&mut inode.state_mut());
            Self::retire(listed);
        }
    }
}
