//! One client's connection, as all threads that work for it share it.

use super::state::{Export, ServerState};
use crate::pace::Pace;
use folio_net::Stream;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Most requests of one connection in flight, besides the one of the thread that reads.
const IN_FLIGHT_MAX: u32 = 32;
/// Most threads that have replies to send while further requests start in parallel. A client that
/// takes no replies holds about this many threads and buffers.
const SENDERS_MAX: u32 = 8;

/// A connected client.
pub(crate) struct Client {
    pub(crate) stream: Arc<Stream>,
    /// Held while bytes are sent.
    output: Mutex<()>,
    /// Threads that hold the output or wait for it.
    senders: AtomicU32,
    pub(crate) server: Arc<ServerState>,
    number: u64,
    in_flight: AtomicU32,
    /// The pace of small requests.
    pub(crate) pace: Pace,
    has_reported: AtomicBool,
}

impl Client {
    pub(crate) fn new(stream: Arc<Stream>, server: Arc<ServerState>, number: u64) -> Self {
        Self {
            stream,
            output: Mutex::default(),
            senders: AtomicU32::new(0),
            server,
            number,
            in_flight: AtomicU32::new(0),
            pace: Pace::default(),
            has_reported: AtomicBool::new(false),
        }
    }

    pub(crate) fn export(&self) -> &Export {
        &self.server.export
    }

    /// Reports the first failure of each client to the operator, so that no client can fill a log.
    pub(crate) fn report(&self, error: &folio::Error) {
        if !self.has_reported.swap(true, Ordering::Relaxed) {
            self.server.report(&format!(
                "client {}: {error}; later failures of this client are not reported",
                self.number
            ));
        }
    }

    /// Waits until no other thread sends.
    pub(crate) fn lock_output(&self) -> OutputGuard<'_> {
        self.senders.fetch_add(1, Ordering::Relaxed);
        OutputGuard {
            senders: &self.senders,
            _locked: self.output.lock(),
        }
    }

    /// Reports that the client is disconnected because it takes no replies.
    pub(crate) fn report_stuck(&self) {
        self.server.report(&format!(
            "client {}: takes no replies for {} s: disconnected",
            self.number,
            self.server.send_timeout.as_secs()
        ));
    }

    /// Counts one more request in flight; returns false if this client or the server has as many
    /// as allowed, or if the client takes its replies too slowly.
    pub(crate) fn begin_request(&self) -> bool {
        if self.senders.load(Ordering::Relaxed) >= SENDERS_MAX || !self.server.begin_request() {
            return false;
        }
        let add_one = |count| (count < IN_FLIGHT_MAX).then_some(count + 1);
        let is_counted = self
            .in_flight
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_one)
            .is_ok();
        if !is_counted {
            self.server.end_request();
        }
        is_counted
    }

    pub(crate) fn end_request(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.server.end_request();
    }
}

/// The right to send.
pub(crate) struct OutputGuard<'a> {
    senders: &'a AtomicU32,
    _locked: MutexGuard<'a, ()>,
}

impl Drop for OutputGuard<'_> {
    fn drop(&mut self) {
        self.senders.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.server.remove_connection(self.number);
    }
}
