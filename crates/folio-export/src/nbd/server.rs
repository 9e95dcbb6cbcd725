//! The server: accepts clients, and stops without losing acknowledged or received requests.

use super::client::Client;
use super::connection::ConnectionTask;
use super::state::{Export, Limits, ServerState};
use super::uri::uri;
use folio::{Errno, Error, Result};
use folio_net::{AcceptFailure, Listener, Stopper, WorkerPool, WorkerPoolOptions};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that clients have at the end to take their replies.
const GRACE: Duration = Duration::from_secs(10);
/// Time to wait for a connection to close when the host has no resources for another.
const RESOURCE_WAIT: Duration = Duration::from_secs(1);
/// Time without work after which a thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest name and description of an export, in bytes (NBD project, doc/proto.md).
const TEXT_BYTES_MAX: usize = 4096;

/// A server of one export.
pub struct Server {
    listener: Arc<Listener>,
    pool: WorkerPool<ConnectionTask>,
    state: Arc<ServerState>,
}

impl Server {
    /// Creates a server that does not serve yet; clients that connect wait. `report` receives
    /// messages for the operator.
    ///
    /// # Errors
    /// ENAMETOOLONG if the export's name or description has more than 4096 bytes.
    pub fn new(
        listener: Listener,
        export: Export,
        limits: Limits,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self> {
        let description_len = export.description.as_ref().map_or(0, String::len);
        if export.name.len().max(description_len) > TEXT_BYTES_MAX {
            return Err(Error::new(
                Errno::NAMETOOLONG,
                "the export's name or description has more than 4096 bytes",
            ));
        }
        let listener = Arc::new(listener);
        let closed_by_stop = listener.clone();
        let stopper = Stopper::new(move || closed_by_stop.close());
        Ok(Self {
            listener,
            pool: WorkerPool::new(WorkerPoolOptions {
                thread_name: "nbd",
                threads_max: limits.connections + limits.requests,
                idle_timeout: IDLE_TIMEOUT,
            }),
            state: Arc::new(ServerState::new(export, limits, stopper, Box::new(report))),
        })
    }

    /// Returns a handle that ends [`Server::serve`] from another thread.
    pub fn stopper(&self) -> Stopper {
        self.state.stopper.clone()
    }

    /// Returns the URI under which clients find the export.
    pub fn uri(&self) -> String {
        uri(self.listener.address(), &self.state.export.name)
    }

    /// Serves clients until [`Stopper::stop`], then answers all received requests and flushes the
    /// device.
    ///
    /// # Errors
    /// The device's error if the flush fails; the host's error if no further client can connect.
    pub fn serve(self) -> Result<()> {
        let accepted = self.accept_clients();
        let state = &self.state;
        // Also after a failure to accept: threads that read must end.
        state.stopper.stop();
        // In this direction only: received requests are still answered (invariant 4).
        state.shutdown_connections(Shutdown::Read);
        if !state.wait_for_all_closed(Some(Instant::now() + GRACE)) {
            state.report("disconnecting clients that take no replies");
            state.shutdown_connections(Shutdown::Both);
            state.wait_for_all_closed(None);
        }
        // Before the flush: no write may come after it.
        self.pool.close(None);
        let flushed = state.export.device.flush();
        accepted.and(flushed)
    }

    fn accept_clients(&self) -> Result<()> {
        let state = &self.state;
        let mut number = 0;
        loop {
            let accepted = self.listener.accept();
            if state.stopper.is_stopping() {
                return Ok(());
            }
            match accepted {
                Ok(None) => return Ok(()),
                Ok(Some((stream, _))) => {
                    number += 1;
                    let stream = Arc::new(stream);
                    if state.add_connection(number, &stream) {
                        let client = Arc::new(Client::new(stream, state.clone(), number));
                        // The limits leave a thread for each connection. If the host has none,
                        // the connection is closed.
                        let _ = self.pool.try_run_or_queue(ConnectionTask::Greet(client));
                    }
                }
                Err(error) => match AcceptFailure::of(&error) {
                    AcceptFailure::Transient => {}
                    AcceptFailure::OutOfResources if state.has_connections() => {
                        state.wait_for_close(RESOURCE_WAIT);
                    }
                    AcceptFailure::OutOfResources | AcceptFailure::Fatal => {
                        return Err(Error::io("accept", error));
                    }
                },
            }
        }
    }
}
