//! A condition variable whose whole state is its own memory, as that of the locks (lock.rs), with
//! parking_lot's interface. Threads of a mount wait all the time, on conditions: a child of fork(2)
//! inherits nothing of them but a count, in the copies of those mounts, which it never uses.

use super::futex::{AtomicU32, sleep, wake};
use super::lock::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct Condvar {
    /// The number of notifications that had a waiter.
    notified: AtomicU32,
    /// Threads in `wait`; changed with the mutex locked.
    waiters: AtomicU32,
}

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self {
            notified: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
        }
    }

    /// Unlocks the mutex until a notification, and then locks it again. A notification wakes one
    /// waiter at least, and nothing else does.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_until(guard, None);
    }

    /// Like [`Condvar::wait`], for `timeout` at most.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) {
        // A time past the end of the clock is never.
        self.wait_until(guard, Instant::now().checked_add(timeout));
    }

    fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Option<Instant>) {
        let notified = self.notified.load(Ordering::Relaxed);
        self.waiters.fetch_add(1, Ordering::Relaxed);
        MutexGuard::unlocked(guard, || {
            while self.notified.load(Ordering::Relaxed) == notified {
                let left = end.map(|end| end.saturating_duration_since(Instant::now()));
                if left == Some(Duration::ZERO) {
                    break;
                }
                // It also returns for a signal, or if a notification was faster.
                sleep(&self.notified, notified, left);
            }
        });
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes a waiter, if there is one.
    pub(crate) fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all waiters.
    pub(crate) fn notify_all(&self) {
        self.notify(i32::MAX.unsigned_abs());
    }

    fn notify(&self, count: u32) {
        // The caller changed the condition with the mutex locked: a waiter that did not see the
        // change had counted itself before.
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.notified.fetch_add(1, Ordering::Relaxed);
            wake(&self.notified, count);
        }
    }
}

#[cfg(all(test, not(folio_loom)))]
mod tests {
    use super::*;
    use crate::base::lock::Mutex;

    #[test]
    fn notifications_pass_turns_between_threads() {
        const TURNS: u32 = 10_000;
        let (turn, changed) = (Mutex::new(0), Condvar::new());
        let player = |own: u32| {
            for _ in 0..TURNS {
                let mut turn = turn.lock();
                while *turn % 3 != own {
                    changed.wait(&mut turn);
                }
                *turn += 1;
                drop(turn);
                changed.notify_all();
            }
        };
        std::thread::scope(|scope| {
            for own in 0..3 {
                scope.spawn(move || player(own));
            }
        });
        assert_eq!(*turn.lock(), 3 * TURNS);
        assert_eq!(changed.waiters.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn each_of_many_notify_one_wakes_a_waiter() {
        const ITEMS: u32 = 10_000;
        let (left, added) = (Mutex::new((0, ITEMS)), Condvar::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut items = left.lock();
                    while items.1 > 0 {
                        if items.0 == 0 {
                            added.wait(&mut items);
                        } else {
                            *items = (items.0 - 1, items.1 - 1);
                        }
                    }
                    drop(items);
                    added.notify_all();
                });
            }
            for _ in 0..ITEMS {
                left.lock().0 += 1;
                added.notify_one();
            }
        });
        assert_eq!(*left.lock(), (0, 0));
    }

    #[test]
    fn wait_without_notification_ends_by_its_timeout() {
        let (mutex, changed) = (Mutex::new(()), Condvar::new());
        let (start, timeout) = (Instant::now(), Duration::from_millis(5));
        changed.wait_for(&mut mutex.lock(), timeout);
        assert!(start.elapsed() >= timeout, "nothing else ends the wait");
        changed.wait_for(&mut mutex.lock(), Duration::ZERO);
    }
}
