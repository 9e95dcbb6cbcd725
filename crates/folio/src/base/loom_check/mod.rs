//! The lock-free structures under loom, which tries every order of steps of a test, and every value
//! that the memory orders permit a load to return (base/sync).
//!
//! A pin has the fence that it needs on a host without membarrier(2), which loom does not model.
//! References of std's `Arc` are counted, but order nothing here.

mod locks;
mod memory;

use super::rcu;
use super::sync::thread::JoinHandle;
use loom::cell::UnsafeCell;

/// Runs `test` in each execution with at most `preemptions` switches from a thread that could
/// continue; in all executions with `None`.
pub(crate) fn check(
    preemptions: impl Into<Option<usize>>,
    test: impl Fn() + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions.into();
    model.max_branches = 20_000;
    model.check(move || {
        // A thread that uses a static sees all that was done before the first use of it. Here that
        // is nothing.
        drop(rcu::pin());
        test();
    });
}

/// Waits for all threads.
pub(crate) fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// A value in plain memory. Loom fails the test at an access that no order separates from a write
/// or from the drop.
pub(crate) struct Plain(UnsafeCell<u64>);

// SAFETY: loom stops the test before an access that races.
#[allow(unsafe_code)]
unsafe impl Sync for Plain {}

impl Plain {
    pub(crate) fn new(value: u64) -> Self {
        Self(UnsafeCell::new(value))
    }

    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }

    #[allow(unsafe_code)]
    pub(crate) fn set(&self, value: u64) {
        // SAFETY: as above.
        self.0.with_mut(|place| unsafe { *place = value });
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.set(u64::MAX);
        }
    }
}
