//! Counters of requests to a store, retries included.

use crate::uplink::Uplink;
use std::sync::atomic::{AtomicU64, Ordering};

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
    pub(crate) uplink: Uplink,
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
