//! A mutex and a readers-writer lock whose whole state is their own memory, with lock_api's
//! interface: without poisoning.
//!
//! parking_lot's are not for a process that calls fork(2). They have one table of all waiting
//! threads, with pointers into their thread-local memory. The child inherits the table, but of the
//! threads only the one that called fork. The C library reuses the memory of all other threads, so
//! the child's first wait for a lock with an inherited waiter reads or links freed memory.
//!
//! Both wait by futex(2), and a waiter spins first: most locks are held for less than a
//! microsecond.

#![allow(unsafe_code)]

use super::futex::{AtomicU32, SPINS, sleep, wake};
use lock_api::GuardNoSend;
use std::hint;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

pub(crate) type Mutex<T> = lock_api::Mutex<RawMutex, T>;
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
pub(crate) type RwLock<T> = lock_api::RwLock<RawRwLock, T>;
pub(crate) type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock, T>;
pub(crate) type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock, T>;

/// The mutex of Drepper, "Futexes Are Tricky" (2011), section 5: [`UNLOCKED`], [`LOCKED`], or
/// [`CONTENDED`].
pub(crate) struct RawMutex(AtomicU32);

const UNLOCKED: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and a thread may sleep.
const CONTENDED: u32 = 2;

impl RawMutex {
    #[cold]
    fn lock_contended(&self) {
        let seen = spin(&self.0, |state| state != LOCKED);
        if seen == UNLOCKED
            && self
                .0
                .compare_exchange(UNLOCKED, LOCKED, Acquire, Relaxed)
                .is_ok()
        {
            return;
        }
        // The lock is taken as contended: this thread does not know whether another one sleeps.
        while self.0.swap(CONTENDED, Acquire) != UNLOCKED {
            sleep(&self.0, CONTENDED, None);
        }
    }
}

// SAFETY: of the threads that lock, only the one whose exchange found UNLOCKED returns, and the
// state is another one until that thread unlocks.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: Self = Self(AtomicU32::new(UNLOCKED));

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0
            .compare_exchange(UNLOCKED, LOCKED, Acquire, Relaxed)
            .is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        if self.0.swap(UNLOCKED, Release) == CONTENDED {
            wake(&self.0, 1);
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.load(Relaxed) != UNLOCKED
    }
}

/// While a writer waits for readers, later readers wait, too, except recursive ones. From its wake
/// to its turn another thread may be faster.
pub(crate) struct RawRwLock {
    /// The number of readers or [`WRITER`], and the two bits of waiting threads. Readers sleep on
    /// it.
    state: AtomicU32,
    /// Counts wakes of a writer. Writers sleep on it.
    writer_wakes: AtomicU32,
}

/// The part of the state that says what holds the lock: readers, or a writer.
const HOLDERS: u32 = (1 << 30) - 1;
/// A writer holds the lock.
const WRITER: u32 = HOLDERS;
const READERS_WAIT: u32 = 1 << 30;
const WRITERS_WAIT: u32 = 1 << 31;

/// How a reader takes the lock.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    /// After the writers that wait.
    Fair,
    /// Beside other readers at once: the thread may be one of them.
    Recursive,
}

impl RawRwLock {
    /// Returns the state with one more reader, unless the reader must wait.
    #[inline]
    const fn with_reader(state: u32, turn: Turn) -> Option<u32> {
        let holders_are_readers = state & HOLDERS < WRITER - 1;
        let is_fair = state & (READERS_WAIT | WRITERS_WAIT) == 0;
        if holders_are_readers && (is_fair || matches!(turn, Turn::Recursive)) {
            Some(state + 1)
        } else {
            None
        }
    }

    #[inline]
    fn try_read(&self, turn: Turn) -> bool {
        let mut state = self.state.load(Relaxed);
        while let Some(next) = Self::with_reader(state, turn) {
            match self
                .state
                .compare_exchange_weak(state, next, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    #[cold]
    fn read_contended(&self, turn: Turn) {
        spin(&self.state, |state| state != WRITER);
        while !self.try_read(turn) {
            let state = self.state.load(Relaxed);
            if Self::with_reader(state, turn).is_some() {
                continue;
            }
            assert_ne!(state & HOLDERS, WRITER - 1, "too many readers");
            if self.set(state, READERS_WAIT) {
                sleep(&self.state, state | READERS_WAIT, None);
            }
        }
    }

    #[cold]
    fn write_contended(&self) {
        spin(&self.state, |state| {
            state & HOLDERS == 0 || state & WRITERS_WAIT != 0
        });
        // The thread that wakes a writer clears the bit, though more writers may sleep: the writer
        // that it woke sets it again.
        let mut more_wait = 0;
        loop {
            let state = self.state.load(Relaxed);
            if state & HOLDERS == 0 {
                let locked = state | WRITER | more_wait;
                if self
                    .state
                    .compare_exchange_weak(state, locked, Acquire, Relaxed)
                    .is_ok()
                {
                    return;
                }
            } else if self.set(state, WRITERS_WAIT) {
                more_wait = WRITERS_WAIT;
                // The count is read before the bit: a thread that clears the bit counts after that,
                // and this one then does not sleep.
                let wakes = self.writer_wakes.load(Acquire);
                let state = self.state.load(Relaxed);
                if state & HOLDERS != 0 && state & WRITERS_WAIT != 0 {
                    sleep(&self.writer_wakes, wakes, None);
                }
            }
        }
    }

    /// Sets a bit of waiting threads in the state, unless it is `state` no longer.
    fn set(&self, state: u32, bit: u32) -> bool {
        state & bit != 0
            || self
                .state
                .compare_exchange(state, state | bit, Relaxed, Relaxed)
                .is_ok()
    }

    /// Wakes a writer, or all readers if no writer sleeps. `state` is that of the unlocked lock. If
    /// it has changed, then by a thread that waits too, or by one that now holds the lock and wakes
    /// them when it unlocks.
    #[cold]
    fn wake_waiters(&self, mut state: u32) {
        if state == WRITERS_WAIT {
            match self.state.compare_exchange(state, 0, Relaxed, Relaxed) {
                Ok(_) => {
                    self.wake_writer();
                    return;
                }
                Err(now) => state = now,
            }
        }
        if state == READERS_WAIT | WRITERS_WAIT {
            if self
                .state
                .compare_exchange(state, READERS_WAIT, Relaxed, Relaxed)
                .is_err()
                || self.wake_writer()
            {
                return;
            }
            // The writer had not slept yet. It takes the lock in its turn.
            state = READERS_WAIT;
        }
        if state == READERS_WAIT
            && self
                .state
                .compare_exchange(state, 0, Relaxed, Relaxed)
                .is_ok()
        {
            wake(&self.state, i32::MAX.unsigned_abs());
        }
    }

    /// Returns whether a writer slept.
    fn wake_writer(&self) -> bool {
        self.writer_wakes.fetch_add(1, Release);
        wake(&self.writer_wakes, 1)
    }
}

// SAFETY: a writer returns only from an exchange of a state without holders for WRITER, and no
// reader is added to that; a reader returns only from one that counted it, and a state with readers
// is not one without holders.
unsafe impl lock_api::RawRwLock for RawRwLock {
    const INIT: Self = Self {
        state: AtomicU32::new(0),
        writer_wakes: AtomicU32::new(0),
    };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock_shared(&self) {
        if !self.try_read(Turn::Fair) {
            self.read_contended(Turn::Fair);
        }
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.try_read(Turn::Fair)
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        let state = self.state.fetch_sub(1, Release) - 1;
        if state & HOLDERS == 0 && state != 0 {
            self.wake_waiters(state);
        }
    }

    #[inline]
    fn lock_exclusive(&self) {
        if !self.try_lock_exclusive() {
            self.write_contended();
        }
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        let mut state = self.state.load(Relaxed);
        // Threads that wait do not hold it.
        while state & HOLDERS == 0 {
            match self
                .state
                .compare_exchange_weak(state, state | WRITER, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        let state = self.state.fetch_sub(WRITER, Release) - WRITER;
        if state != 0 {
            self.wake_waiters(state);
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.state.load(Relaxed) & HOLDERS != 0
    }

    #[inline]
    fn is_locked_exclusive(&self) -> bool {
        self.state.load(Relaxed) & HOLDERS == WRITER
    }
}

// SAFETY: as above. A recursive reader differs only in that it does not wait for writers that wait.
unsafe impl lock_api::RawRwLockRecursive for RawRwLock {
    #[inline]
    fn lock_shared_recursive(&self) {
        if !self.try_read(Turn::Recursive) {
            self.read_contended(Turn::Recursive);
        }
    }

    #[inline]
    fn try_lock_shared_recursive(&self) -> bool {
        self.try_read(Turn::Recursive)
    }
}

/// Loads a state until it is as wanted, a limited number of times, and returns the last one.
fn spin(state: &AtomicU32, is_wanted: impl Fn(u32) -> bool) -> u32 {
    for _ in 0..SPINS {
        let now = state.load(Relaxed);
        if is_wanted(now) {
            return now;
        }
        hint::spin_loop();
    }
    state.load(Relaxed)
}

#[cfg(all(test, not(folio_loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    const ROUNDS: u32 = 20_000;

    #[test]
    fn mutex_excludes_all_other_threads() {
        let sum = Mutex::new((0, 0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mut sum = sum.lock();
                        sum.0 += 1;
                        if round % 64 == 0 {
                            thread::yield_now();
                        }
                        sum.1 += 1;
                        assert_eq!(sum.0, sum.1);
                    }
                });
            }
        });
        assert_eq!(*sum.lock(), (4 * ROUNDS, 4 * ROUNDS));
        assert!(sum.try_lock().is_some() && !sum.is_locked());
    }

    #[test]
    fn writers_exclude_readers_and_writers_and_all_end() {
        let sum = RwLock::new((0, 0));
        thread::scope(|scope| {
            for writer in 0..3 {
                let sum = &sum;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut sum = sum.write();
                        sum.0 += 1;
                        if (round + writer) % 64 == 0 {
                            thread::yield_now();
                        }
                        sum.1 += 1;
                    }
                });
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let seen = sum.read();
                        let again = (round % 8 == 0).then(|| sum.read_recursive().0);
                        if (round + writer) % 64 == 0 {
                            thread::yield_now();
                        }
                        assert_eq!(seen.0, seen.1);
                        assert!(again.is_none_or(|again| again == seen.0));
                    }
                });
            }
        });
        assert_eq!(*sum.write(), (3 * ROUNDS, 3 * ROUNDS));
        assert!(!sum.is_locked());
    }

    #[test]
    fn waiting_writer_holds_fair_readers_back() {
        let (lock, start, has_written) = (RwLock::new(()), Barrier::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            let held = lock.read();
            scope.spawn(|| {
                start.wait();
                let written = lock.write();
                has_written.store(true, Relaxed);
                drop(written);
            });
            start.wait();
            // A fair reader fails from the time that the writer waits.
            while lock.try_read().is_some() {
                hint::spin_loop();
            }
            assert!(lock.try_read_recursive().is_some() && !has_written.load(Relaxed));
            drop((lock.read_recursive(), held));
            // Readers that come and go do not keep it out.
            while !has_written.load(Relaxed) {
                drop(lock.read());
                thread::yield_now();
            }
        });
    }
}
