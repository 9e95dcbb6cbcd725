//! The number of rounds that long tests make, and the end of threads beside them.
//!
//! `cargo xtask test --long` sets FOLIO_LONG_TESTS: every cut, fault and seed has its round.
//! Without it, a part of them has, spread evenly over all.

/// Whether every round runs.
pub fn is_long() -> bool {
    std::env::var_os("FOLIO_LONG_TESTS").is_some()
}

/// The step from one round to the next: 1 in a long run, else `short`.
pub fn step(short: usize) -> usize {
    if is_long() { 1 } else { short }
}

/// The number of random cases: `all` in a long run, else a third.
pub fn cases<N: std::ops::Div<N, Output = N> + From<u8>>(all: N) -> N {
    if is_long() { all } else { all / N::from(3) }
}

/// Ends threads that run until a flag is set, also when the test fails.
pub struct Done<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
