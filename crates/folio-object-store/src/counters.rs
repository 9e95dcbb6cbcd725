//! Counters of requests to a store, retries included, and how long a request may take while bodies
//! are being sent.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The slowest uplink for which no request times out, in bytes per second.
const UPLINK_BYTES_PER_SECOND: u64 = 64 << 10;

/// Counters of one connection to a store.
#[derive(Debug, Default)]
pub struct RequestCounters {
    gets: AtomicU64,
    heads: AtomicU64,
    puts: AtomicU64,
    posts: AtomicU64,
    deletes: AtomicU64,
    failed: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// Bytes of the bodies of requests without an answer so far.
    sending_bytes: AtomicU64,
}

/// The body of a request that has no answer so far.
pub(crate) struct Sending<'a> {
    counters: &'a RequestCounters,
    bytes: u64,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let sending = &self.counters.sending_bytes;
        sending.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The values of [`RequestCounters`] at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// GET requests: reads and lists.
    pub gets: u64,
    /// HEAD requests.
    pub heads: u64,
    /// PUT requests, parts of uploads and copies included.
    pub puts: u64,
    /// POST requests: starts and ends of uploads.
    pub posts: u64,
    /// DELETE requests.
    pub deletes: u64,
    /// Requests without an answer, or with an error as the answer.
    pub failed: u64,
    /// Bytes of the bodies received.
    pub received_bytes: u64,
    /// Bytes of the bodies sent.
    pub sent_bytes: u64,
}

impl RequestCounts {
    /// Returns the number of all requests.
    pub fn requests(&self) -> u64 {
        self.gets + self.heads + self.puts + self.posts + self.deletes
    }
}

impl std::ops::AddAssign for RequestCounts {
    fn add_assign(&mut self, other: Self) {
        self.gets += other.gets;
        self.heads += other.heads;
        self.puts += other.puts;
        self.posts += other.posts;
        self.deletes += other.deletes;
        self.failed += other.failed;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
    }
}

impl RequestCounters {
    /// Counts a request with a method and a body of `sent_bytes` bytes.
    pub(crate) fn request(&self, method: &str, sent_bytes: u64) {
        let counter = match method {
            "GET" => &self.gets,
            "HEAD" => &self.heads,
            "PUT" => &self.puts,
            "DELETE" => &self.deletes,
            _ => &self.posts,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
    }

    /// Notes that a body of so many bytes is being sent, until the result is dropped.
    pub(crate) fn sending(&self, bytes: u64) -> Sending<'_> {
        self.sending_bytes.fetch_add(bytes, Ordering::Relaxed);
        Sending {
            counters: self,
            bytes,
        }
    }

    /// Waits for the end of some work; returns nothing if it takes longer than a limit, which grows
    /// by a second for each 64 KiB that are being sent.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let started = Instant::now();
        let deadline = || {
            let sending_bytes = self.sending_bytes.load(Ordering::Relaxed);
            started + limit + Duration::from_secs(sending_bytes / UPLINK_BYTES_PER_SECOND)
        };
        let mut work = pin!(work);
        let mut until = deadline();
        loop {
            if let Ok(done) = timeout_at(until, work.as_mut()).await {
                return Some(done);
            }
            // What began to be sent meanwhile shares the uplink.
            let later = deadline();
            if later <= until {
                return None;
            }
            until = later;
        }
    }

    /// Counts a request without an answer, or with an error as the answer.
    pub(crate) fn failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a part of a body.
    pub(crate) fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the present values.
    pub fn counts(&self) -> RequestCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RequestCounts {
            gets: read(&self.gets),
            heads: read(&self.heads),
            puts: read(&self.puts),
            posts: read(&self.posts),
            deletes: read(&self.deletes),
            failed: read(&self.failed),
            received_bytes: read(&self.received_bytes),
            sent_bytes: read(&self.sent_bytes),
        }
    }
}
