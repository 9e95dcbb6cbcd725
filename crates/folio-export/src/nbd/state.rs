//! The state that all threads of a server share: the export, the open connections, the stop flag.

use folio::block::Device;
use folio_net::{Stopper, Stream};
use parking_lot::{Condvar, Mutex};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A disk, and how clients see it.
pub struct Export {
    /// The disk.
    pub device: Arc<dyn Device>,
    /// The name that clients ask for, at most 4096 bytes; empty is the default export.
    pub name: String,
    /// A description for people, at most 4096 bytes.
    pub description: Option<String>,
    /// Whether changes fail with EPERM. They always do if the device is read-only.
    pub read_only: bool,
}

impl Export {
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.device.is_read_only()
    }
}

/// The most that a server does at a time. It closes connections beyond the limit at once; requests
/// beyond it wait.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections; each has a thread.
    pub connections: usize,
    /// Requests in flight beside the one that each connection's own thread runs; each has a thread.
    pub requests: usize,
    /// Longest time in which a client may take no byte of its replies; after it, the client is
    /// disconnected.
    pub send_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            requests: 64,
            send_timeout: Duration::from_secs(60),
        }
    }
}

/// Sends a message to the operator.
pub(crate) type Report = Box<dyn Fn(&str) + Send + Sync>;

/// The state of one server.
pub(crate) struct ServerState {
    pub(crate) export: Export,
    pub(crate) stopper: Stopper,
    pub(crate) send_timeout: Duration,
    connections_max: usize,
    requests_max: usize,
    /// Requests in flight beside those of the connections' own threads.
    requests: AtomicUsize,
    connections: Mutex<Vec<(u64, Arc<Stream>)>>,
    /// Notified when a connection closes.
    connection_closed: Condvar,
    report: Report,
}

impl ServerState {
    pub(crate) fn new(export: Export, limits: Limits, stopper: Stopper, report: Report) -> Self {
        Self {
            export,
            stopper,
            send_timeout: limits.send_timeout,
            connections_max: limits.connections,
            requests_max: limits.requests,
            requests: AtomicUsize::new(0),
            connections: Mutex::default(),
            connection_closed: Condvar::new(),
            report,
        }
    }

    /// Sends a message to the operator.
    pub(crate) fn report(&self, message: &str) {
        (self.report)(message);
    }

    /// Counts one more request in flight; returns false if there are as many as allowed.
    pub(crate) fn begin_request(&self) -> bool {
        let add_one = |count| (count < self.requests_max).then_some(count + 1);
        self.requests
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add_one)
            .is_ok()
    }

    pub(crate) fn end_request(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a connection; returns false if there are as many as allowed.
    pub(crate) fn add_connection(&self, number: u64, stream: &Arc<Stream>) -> bool {
        let mut connections = self.connections.lock();
        if connections.len() >= self.connections_max {
            return false;
        }
        connections.push((number, stream.clone()));
        true
    }

    /// Removes a closed connection.
    pub(crate) fn remove_connection(&self, number: u64) {
        self.connections
            .lock()
            .retain(|(other, _)| *other != number);
        self.connection_closed.notify_all();
    }

    pub(crate) fn has_connections(&self) -> bool {
        !self.connections.lock().is_empty()
    }

    /// Shuts all connections down, in one direction or both.
    pub(crate) fn shutdown_connections(&self, how: Shutdown) {
        let connections = self.connections.lock();
        for (_, stream) in connections.iter() {
            stream.shutdown(how);
        }
    }

    /// Waits for the next connection to close, at most `timeout`.
    pub(crate) fn wait_for_close(&self, timeout: Duration) {
        let mut connections = self.connections.lock();
        self.connection_closed.wait_for(&mut connections, timeout);
    }

    /// Waits until all connections are closed, at most until `deadline`. Returns whether they are.
    pub(crate) fn wait_for_all_closed(&self, deadline: Option<Instant>) -> bool {
        let mut connections = self.connections.lock();
        while !connections.is_empty() {
            match deadline {
                None => self.connection_closed.wait(&mut connections),
                Some(deadline) => {
                    let waited = self
                        .connection_closed
                        .wait_until(&mut connections, deadline);
                    if waited.timed_out() {
                        break;
                    }
                }
            }
        }
        connections.is_empty()
    }
}
