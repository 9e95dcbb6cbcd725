//! The time limit of requests while bodies are being sent.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The slowest uplink for which no request times out, in bytes per second.
const BYTES_PER_SECOND: u64 = 64 << 10;

/// The bodies that are being sent to a store. They share the way there, so each of its requests may
/// take a second longer for each 64 KiB of them.
#[derive(Debug, Default)]
pub struct Uplink {
    /// Bytes of the bodies of requests without an answer so far.
    sending_bytes: AtomicU64,
}

/// The body of a request that has no answer so far.
pub struct Sending<'a> {
    uplink: &'a Uplink,
    bytes: u64,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let sending = &self.uplink.sending_bytes;
        sending.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Uplink {
    /// Notes that a body of so many bytes is being sent, until the result is dropped.
    pub fn sending(&self, bytes: u64) -> Sending<'_> {
        self.sending_bytes.fetch_add(bytes, Ordering::Relaxed);
        Sending {
            uplink: self,
            bytes,
        }
    }

    /// Returns when a request ends that started at `started` and has this limit.
    pub fn deadline(&self, started: Instant, limit: Duration) -> Instant {
        let sending_bytes = self.sending_bytes.load(Ordering::Relaxed);
        started + limit + Duration::from_secs(sending_bytes / BYTES_PER_SECOND)
    }

    /// Waits for the end of some work; returns nothing if that is after the deadline.
    pub async fn within<T>(
        &self,
        started: Instant,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        let mut until = self.deadline(started, limit);
        loop {
            if let Ok(done) = timeout_at(until, work.as_mut()).await {
                return Some(done);
            }
            // What began to be sent meanwhile shares the uplink.
            let later = self.deadline(started, limit);
            if later <= until {
                return None;
            }
            until = later;
        }
    }
}
