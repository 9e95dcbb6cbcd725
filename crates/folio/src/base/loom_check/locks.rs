//! The mutex, the readers-writer lock and the condition variable, on a model of futex(2). A thread
//! that is never woken is a deadlock, which loom reports.

use super::{Plain, check, join};
use crate::base::sync::thread::{self, JoinHandle};
use condvar::Condvar;
use lock::{Mutex, RwLock};
use std::sync::Arc;

// Once more, on the futex below.
#[path = "../condvar.rs"]
#[allow(dead_code)]
mod condvar;
#[path = "../lock.rs"]
#[allow(dead_code)]
mod lock;

mod futex {
    use loom::sync::{Mutex, atomic};
    use loom::thread::{self, Thread};
    use std::ops::Deref;
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    pub(super) const SPINS: u32 = 0;
    /// Words of a test, at most.
    const WORDS: usize = 6;

    loom::lazy_static! {
        static ref UNUSED: std::sync::Mutex<Vec<atomic::AtomicU32>> = std::sync::Mutex::new(
            (0..WORDS).map(|_| atomic::AtomicU32::new(0)).collect()
        );
        /// The threads that sleep, with the addresses of their words.
        static ref SLEEPERS: Mutex<Vec<(usize, Thread)>> = Mutex::new(Vec::new());
    }

    /// Creates the words of the test, before it starts threads that would have to see that.
    pub(super) fn prepare() {
        let _ = (UNUSED.lock(), SLEEPERS.lock());
    }

    /// A word of a lock. Loom's own cannot be constants, as the initial state of a lock is.
    #[derive(Default)]
    pub(super) struct AtomicU32(OnceLock<atomic::AtomicU32>);

    impl AtomicU32 {
        pub(super) const fn new(value: u32) -> Self {
            assert!(value == 0, "the words of unused locks");
            Self(OnceLock::new())
        }
    }

    impl Deref for AtomicU32 {
        type Target = atomic::AtomicU32;

        fn deref(&self) -> &atomic::AtomicU32 {
            self.0.get_or_init(|| UNUSED.lock().unwrap().pop().unwrap())
        }
    }

    fn address(word: &AtomicU32) -> usize {
        std::ptr::from_ref(word).addr()
    }

    /// Time does not pass: no timeout ends the sleep.
    pub(super) fn sleep(word: &AtomicU32, expected: u32, _timeout: Option<Duration>) {
        let mut sleepers = SLEEPERS.lock().unwrap();
        // An exchange sees the newest value, as the host does.
        let seen = word.compare_exchange(expected, expected, Ordering::Relaxed, Ordering::Relaxed);
        if seen.is_ok() {
            let own = thread::current();
            sleepers.push((address(word), own.clone()));
            while sleepers.iter().any(|(_, thread)| thread.id() == own.id()) {
                drop(sleepers);
                thread::park();
                sleepers = SLEEPERS.lock().unwrap();
            }
        }
    }

    pub(super) fn wake(word: &AtomicU32, count: u32) -> bool {
        let mut sleepers = SLEEPERS.lock().unwrap();
        let before = sleepers.len();
        for _ in 0..count {
            let place = sleepers.iter().position(|(at, _)| *at == address(word));
            let Some(place) = place else { break };
            sleepers.remove(place).1.unpark();
        }
        sleepers.len() < before
    }
}

/// Adds 1 as a thread does that assumes to be alone.
fn increment(value: &Plain) {
    value.set(value.get() + 1);
}

fn start<T: Send + Sync + 'static>(
    shared: &Arc<T>,
    part: impl FnOnce(&T) + 'static,
) -> JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || part(&shared))
}

#[test]
fn mutex_orders_its_owners() {
    check(3, || {
        futex::prepare();
        let sum = Arc::new(Mutex::new(Plain::new(0)));
        let threads = [0; 2].map(|_| start(&sum, |sum| increment(&sum.lock())));
        increment(&sum.lock());
        join(threads);
        assert_eq!(sum.lock().get(), 3);
    });
}

#[test]
fn writers_order_readers_and_writers() {
    check(3, || {
        futex::prepare();
        let sum = Arc::new(RwLock::new(Plain::new(0)));
        let writer = start(&sum, |sum| increment(&sum.write()));
        let reader = start(&sum, |sum| {
            let sum = sum.read();
            assert_eq!(sum.get(), sum.get());
        });
        increment(&sum.write());
        join([writer, reader]);
        assert_eq!(sum.read().get(), 2);
    });
}

#[test]
fn writer_sees_that_readers_have_ended() {
    check(3, || {
        futex::prepare();
        let read = Arc::new((RwLock::new(()), [0; 2].map(Plain::new)));
        let readers = [0, 1].map(|own| {
            start(&read, move |(lock, read)| {
                let _lock = lock.read();
                increment(&read[own]);
            })
        });
        let lock = read.0.write();
        assert!(read.1.iter().all(|count| count.get() <= 1));
        drop(lock);
        join(readers);
    });
}

#[test]
fn notification_wakes_a_waiter() {
    check(3, || {
        futex::prepare();
        let left = Arc::new((Mutex::new(2), Condvar::new()));
        let waiters = [0; 2].map(|_| {
            start(&left, |(left, added)| {
                let mut left = left.lock();
                while *left == 2 {
                    added.wait(&mut left);
                }
                *left -= 1;
            })
        });
        *left.0.lock() = 1;
        left.1.notify_all();
        join(waiters);
        assert_eq!(*left.0.lock(), -1);
    });
}
