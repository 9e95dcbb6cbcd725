//! The thread that commits every few seconds (`commit=`). Linux: `kjournald2`.

use crate::fs::ext4::Ext4;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Started with the first change, ends with the mount.
#[derive(Default)]
pub(crate) struct CommitThread {
    signals: Arc<Signals>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Signals {
    is_stopping: Mutex<bool>,
    wake: Condvar,
}

impl Ext4 {
    /// Starts the thread, where the mount has a journal and threads are wanted.
    pub(crate) fn start_commit_thread(&self) {
        if self.journal.get().is_none() || !self.has_threads {
            return;
        }
        let mut thread = self.commit_thread.thread.lock();
        if thread.is_none() {
            let (fs, signals) = (self.this.clone(), self.commit_thread.signals.clone());
            let pause = Duration::from_millis(self.options.commit_interval_ms);
            let builder = std::thread::Builder::new().name("folio-commit".to_owned());
            // Without a thread transactions are committed when they are large, and by syncs.
            *thread = builder.spawn(move || run(&fs, &signals, pause)).ok();
        }
    }
}

impl Drop for CommitThread {
    fn drop(&mut self) {
        *self.signals.is_stopping.lock() = true;
        self.signals.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            // The thread itself may drop the last reference to the file system; it cannot wait for
            // itself.
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn run(fs: &Weak<Ext4>, signals: &Signals, pause: Duration) {
    loop {
        {
            let mut is_stopping = signals.is_stopping.lock();
            if !*is_stopping {
                signals.wake.wait_for(&mut is_stopping, pause);
            }
            if *is_stopping {
                return;
            }
        }
        let Some(fs) = fs.upgrade() else { return };
        if let Some(journal) = fs
            .journal
            .get()
            .filter(|journal| journal.check().is_ok() && fs.has_changes())
        {
            // A failure stops all changes, and whoever makes one is told.
            let _ = fs.commit(journal, journal.running());
            fs.bury();
        }
    }
}
