//! A thread that runs a step at an interval, until its owner is dropped. Linux: `kjournald2`.

use parking_lot::{Condvar, Mutex};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// At most one thread; [`PeriodicThread::start`] starts it, the drop ends it.
#[derive(Default)]
pub(crate) struct PeriodicThread {
    signals: Arc<StopSignal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct StopSignal {
    is_stopping: Mutex<bool>,
    wake: Condvar,
}

impl PeriodicThread {
    /// Starts the thread, unless it runs: it calls `step` every `interval` until that breaks.
    /// Without memory or threads nothing is started.
    pub(crate) fn start(
        &self,
        name: &str,
        interval: Duration,
        mut step: impl FnMut() -> ControlFlow<()> + Send + 'static,
    ) {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return;
        }
        let signals = self.signals.clone();
        let builder = std::thread::Builder::new().name(name.to_owned());
        let run = move || while signals.wait(interval) && step().is_continue() {};
        *thread = builder.spawn(run).ok();
    }
}

impl StopSignal {
    /// Waits for `interval`; returns false, at once, if the thread has to end.
    fn wait(&self, interval: Duration) -> bool {
        let mut is_stopping = self.is_stopping.lock();
        if !*is_stopping {
            self.wake.wait_for(&mut is_stopping, interval);
        }
        !*is_stopping
    }
}

impl Drop for PeriodicThread {
    fn drop(&mut self) {
        *self.signals.is_stopping.lock() = true;
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
