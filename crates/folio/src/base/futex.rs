//! Sleep and wake on a word of memory: futex(2).

use rustix::thread::futex::{self, Flags};
pub(super) use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Loads of a word before a waiter sleeps on it.
pub(super) const SPINS: u32 = 100;

/// Sleeps while the word is `expected`, for `timeout` at most. Returns for a signal, too.
pub(super) fn sleep(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
    let _ = futex::wait(word, Flags::PRIVATE, expected, timeout.as_ref());
}

/// Wakes threads that sleep on a word, and returns whether there were any.
pub(super) fn wake(word: &AtomicU32, count: u32) -> bool {
    futex::wake(word, Flags::PRIVATE, count).is_ok_and(|woken| woken > 0)
}
