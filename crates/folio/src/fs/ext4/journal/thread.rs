//! A thread that runs a step after each pause, until its owner is dropped. Linux: `kjournald2`.

use crate::base::condvar::Condvar;
use crate::base::lock::Mutex;
use crate::base::owner_process::OwnerProcess;
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// At most one thread; [`PeriodicThread::start`] starts it, the drop ends it.
pub(crate) struct PeriodicThread {
    signals: Arc<ThreadSignals>,
    thread: Mutex<Option<JoinHandle<()>>>,
    owner: OwnerProcess,
}

impl Default for PeriodicThread {
    fn default() -> Self {
        Self {
            signals: Arc::default(),
            thread: Mutex::default(),
            owner: OwnerProcess::current(),
        }
    }
}

#[derive(Default)]
struct ThreadSignals {
    requested: Mutex<Requests>,
    wake: Condvar,
}

#[derive(Default)]
struct Requests {
    is_stopping: bool,
    is_woken: bool,
}

impl PeriodicThread {
    /// Starts the thread, unless it runs: it calls `step`, which returns the pause before the next
    /// call, until that breaks. Without memory or threads nothing is started.
    pub(crate) fn start(
        &self,
        name: &str,
        mut step: impl FnMut() -> ControlFlow<(), Duration> + Send + 'static,
    ) {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return;
        }
        let signals = self.signals.clone();
        let builder = std::thread::Builder::new().name(name.to_owned());
        let run = move || {
            while let ControlFlow::Continue(pause) = step()
                && signals.wait(pause)
            {}
        };
        *thread = builder.spawn(run).ok();
    }

    /// Ends the pause, if the thread runs.
    pub(crate) fn wake(&self) {
        self.signals.requested.lock().is_woken = true;
        self.signals.wake.notify_all();
    }
}

impl ThreadSignals {
    /// Waits for `pause` or a wakeup; returns false, at once, if the thread has to end.
    fn wait(&self, pause: Duration) -> bool {
        let mut requested = self.requested.lock();
        if !requested.is_stopping && !requested.is_woken {
            self.wake.wait_for(&mut requested, pause);
        }
        requested.is_woken = false;
        !requested.is_stopping
    }
}

impl Drop for PeriodicThread {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // A child of fork(2): the thread is the parent's.
            let _parents = ManuallyDrop::new(self.thread.get_mut().take());
            return;
        }
        self.signals.requested.lock().is_stopping = true;
        self.signals.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            // The thread itself may drop the last reference to its owner; it cannot wait for
            // itself.
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}
