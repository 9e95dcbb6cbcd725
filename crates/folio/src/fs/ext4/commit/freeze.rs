//! Freezes: the device has a clean file system while a caller copies it. Linux: `ext4_freeze`.

use super::super::inode::Ext4;
use crate::base::Result;
use crate::base::unwind::catch_panic;
use crate::fs::ext4::journal::Journal;
use crate::fs::ext4::layout::superblock::Superblock;
use std::sync::atomic::Ordering;

impl Ext4 {
    /// Makes everything durable, and calls `work` while nothing changes on the device and, with a
    /// journal, no mount has to replay it. Operations and writeback wait meanwhile. Files without
    /// names stay in the list of orphans, as in Linux. The number of multiple mount protection goes
    /// on. Without a journal other threads go on too.
    ///
    /// # Errors
    /// Those of a commit, and of `work`.
    pub(crate) fn freeze_while(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        // Most of it while operations run, so that they stop only for what is added meanwhile.
        self.sync_all(false)?;
        match self.volume.journal.get() {
            Some(journal) => self.freeze_journal(journal, work),
            None => work(),
        }
    }

    fn freeze_journal(
        &self,
        journal: &Journal,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        // Before operations stop: a first change sets the mark before it waits for them.
        if !self.volume.is_changed.load(Ordering::Acquire) {
            self.mark_changed()?;
        }
        let mut committer = journal.committer();
        self.write_closed(&mut committer)?;
        let _stopped = self.close_running(&mut committer, journal)?;
        self.write_closed(&mut committer)?;
        // The log is empty before the mark is cleared, and the mark is set before the next change.
        committer.checkpoint()?;
        let cleared = self.clear_mark(journal, &self.volume.superblock.lock());
        let worked = cleared.and_then(|()| catch_panic("the work during a freeze", work));
        let marked = {
            let _superblock = self.volume.superblock.lock();
            Superblock::write_recovery_flag(&*self.volume.device, true)
        };
        let marked = marked.and_then(|()| self.volume.device.flush());
        marked.map_err(|error| self.volume.fail_journal(error))?;
        worked
    }
}
