//! Progress in percent on standard output, as qemu-img prints it.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Progress of one command. The line ends when it is dropped.
pub(crate) struct Percent {
    state: Mutex<PercentState>,
}

#[derive(Default)]
struct PercentState {
    total_bytes: u64,
    done_bytes: u64,
    /// The percentage printed last.
    printed: f64,
}

impl Percent {
    /// Prints that nothing is done yet.
    pub(crate) fn start() -> Self {
        print(0.0);
        Self {
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PercentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the total.
    pub(crate) fn expect(&self, len_bytes: u64) {
        self.state().total_bytes = len_bytes;
    }

    /// Adds completed bytes, and prints each whole percent once.
    pub(crate) fn add(&self, len_bytes: u64) {
        let mut state = self.state();
        state.done_bytes += len_bytes;
        let percent = state.done_bytes as f64 * 100.0 / state.total_bytes.max(1) as f64;
        if percent < 100.0 && percent >= state.printed + 1.0 {
            state.printed = percent;
            print(percent);
        }
    }

    /// Prints that all is done.
    pub(crate) fn complete(&self) {
        print(100.0);
    }
}

impl Drop for Percent {
    fn drop(&mut self) {
        // If the output is closed, no reader is left.
        let _ = writeln!(std::io::stdout());
    }
}

fn print(percent: f64) {
    let mut out = std::io::stdout();
    // If the output is closed, no reader is left; the work goes on.
    let _ = write!(out, "    ({percent:.2}/100%)\r");
    let _ = out.flush();
}
