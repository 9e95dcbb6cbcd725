//! The thread that commits every few seconds (`commit=`).

use crate::fs::ext4::inode::Ext4;
use std::ops::ControlFlow;
use std::time::Duration;

impl Ext4 {
    /// Starts the thread, if the mount has a journal and the cache has threads.
    ///
    /// Without a thread, large transactions and syncs commit.
    pub(crate) fn start_commit_thread(&self) {
        if self.volume.journal.get().is_none() || !self.has_threads {
            return;
        }
        let fs = self.this.clone();
        let interval = Duration::from_millis(self.volume.options.commit_interval_ms);
        self.commit_thread.start("folio-commit", interval, move || {
            let Some(fs) = fs.upgrade() else {
                return ControlFlow::Break(());
            };
            fs.commit_changes();
            ControlFlow::Continue(())
        });
    }

    fn commit_changes(&self) {
        if let Some(journal) = self
            .volume
            .journal
            .get()
            .filter(|journal| journal.check().is_ok() && self.has_changes())
        {
            // A failure refuses all further changes, with an error for each caller.
            let _ = self.commit(journal, journal.running());
            self.evict_retired();
        }
    }
}
