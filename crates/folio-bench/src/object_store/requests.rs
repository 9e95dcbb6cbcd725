//! Counts of a store's requests: how many, their bytes, and how many waited for one another.

use crate::report::{Evidence, Sample};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Latency of a PUT in the modeled stores, and of a GET.
pub(super) const PUT: Duration = Duration::from_millis(60);
pub(super) const GET: Duration = Duration::from_millis(30);

/// The requests of a measurement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Requests {
    /// All of them.
    pub(crate) count: u64,
    /// The longest chain in which each began after the end of the one before.
    pub(crate) in_sequence: u64,
    /// Bytes of the bodies that the store sent.
    pub(crate) sent_bytes: u64,
}

impl Requests {
    /// Returns the counts for each of `operations`, as evidence beside a figure.
    pub(crate) fn evidence(self, operations: usize) -> Evidence {
        let each = |count: u64| Some(count as f64 / operations as f64);
        Evidence {
            requests: each(self.count),
            requests_in_sequence: (operations == 1).then_some(self.in_sequence as f64),
            received_bytes: each(self.sent_bytes),
            ..Evidence::default()
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Changes when a measurement begins: requests of the one before count no more.
    epoch: u64,
    requests: Requests,
}

/// Counts the requests of one store.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestMeter(Arc<Mutex<State>>);

/// A request that the store is answering; ends when dropped.
pub(crate) struct Running {
    meter: RequestMeter,
    epoch: u64,
    depth: u64,
}

impl RequestMeter {
    /// Counts a request.
    pub(crate) fn begin(&self) -> Running {
        let mut state = self.0.lock();
        state.requests.count += 1;
        Running {
            epoch: state.epoch,
            depth: state.requests.in_sequence + 1,
            meter: self.clone(),
        }
    }

    /// Counts bytes of a body.
    pub(crate) fn sent(&self, bytes: u64) {
        self.0.lock().requests.sent_bytes += bytes;
    }

    /// Returns the seconds of each of `operations` since `start`, with the requests since the last
    /// call.
    pub(crate) fn since(&self, start: Instant, operations: usize) -> Sample {
        let seconds = start.elapsed().as_secs_f64() / operations as f64;
        Sample::of(seconds).with(self.take().evidence(operations))
    }

    /// Returns the counts since the last call.
    pub(crate) fn take(&self) -> Requests {
        let mut state = self.0.lock();
        state.epoch += 1;
        std::mem::take(&mut state.requests)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.meter.0.lock();
        if state.epoch == self.epoch {
            state.requests.in_sequence = state.requests.in_sequence.max(self.depth);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_that_wait_are_in_sequence() {
        let meter = RequestMeter::default();
        let together = [meter.begin(), meter.begin()];
        drop(together);
        let late = meter.begin();
        meter.sent(10);
        let last = meter.begin();
        drop(late);
        let found = meter.take();
        assert_eq!(
            (found.count, found.in_sequence, found.sent_bytes),
            (4, 2, 10)
        );
        drop(last);
        assert_eq!(meter.take().in_sequence, 0);
    }
}
