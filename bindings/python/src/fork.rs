//! The count of forks, by which an object knows whether it is of this process.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of forks that led to this process.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Notes that this process is a new child. os.register_at_fork calls it.
#[pyfunction]
pub(crate) fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of forks that led to this process.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}
