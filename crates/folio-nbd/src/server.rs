//! The server: accepts clients, and stops without losing what they were promised.

use crate::connection::Client;
use crate::crew::{Crew, Task};
use crate::listener::Listener;
use folio::block::Device;
use folio::{Errno, Error, Result};
use parking_lot::{Condvar, Mutex};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long clients have at the end to take replies.
const GRACE: Duration = Duration::from_secs(10);
/// How long to wait for a client to go when the host has no room for another.
const FULL: Duration = Duration::from_secs(1);

/// A disk, and how clients see it.
pub struct Export {
    /// The disk.
    pub device: Arc<dyn Device>,
    /// What clients ask for; empty is the default export. At most 4096 bytes.
    pub name: String,
    /// A line for people.
    pub description: Option<String>,
    /// Whether changes are refused with EPERM; they are in any case if the device refuses them.
    pub read_only: bool,
}

impl Export {
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.device.is_read_only()
    }
}

/// How much a server takes upon itself; who comes beyond is turned away or waits.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time; each has a thread.
    pub connections: usize,
    /// Requests that are worked on at a time beside those; each has a thread.
    pub requests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            requests: 64,
        }
    }
}

/// What all threads of a server share.
pub(crate) struct Shared {
    pub(crate) export: Export,
    pub(crate) crew: Arc<Crew>,
    listener: Listener,
    limits: Limits,
    clients: Mutex<Vec<(u64, Weak<Client>)>>,
    /// Told when a client has gone.
    changed: Condvar,
    is_stopping: AtomicBool,
    tell: Box<dyn Fn(&str) + Send + Sync>,
}

impl Shared {
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Something for the operator.
    pub(crate) fn tell(&self, message: &str) {
        (self.tell)(message);
    }

    /// A connection is closed.
    pub(crate) fn left(&self, number: u64) {
        self.clients.lock().retain(|(other, _)| *other != number);
        self.changed.notify_all();
    }

    fn shutdown(&self, how: Shutdown) {
        let clients: Vec<_> = self
            .clients
            .lock()
            .iter()
            .filter_map(|(_, client)| client.upgrade())
            .collect();
        clients
            .iter()
            .for_each(|client| client.stream.shutdown(how));
    }

    /// Waits until all clients have gone; whether they have.
    fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut clients = self.clients.lock();
        while !clients.is_empty() {
            match deadline {
                None => self.changed.wait(&mut clients),
                Some(deadline) if self.changed.wait_until(&mut clients, deadline).timed_out() => {
                    break;
                }
                Some(_) => {}
            }
        }
        clients.is_empty()
    }
}

/// A server of one export.
pub struct Server(Arc<Shared>);

/// Ends a server from another thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Ends [`Server::serve`]: no more clients, no more requests; those received are answered
    /// first.
    pub fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::Release);
        self.0.listener.close();
    }
}

impl Server {
    /// A server that is not serving yet; clients that connect wait. `tell` gets what the operator
    /// should know.
    ///
    /// Errors: ENAMETOOLONG for a name that no client could ask for.
    pub fn new(
        listener: Listener,
        export: Export,
        limits: Limits,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self> {
        if export.name.len() > 4096
            || export
                .description
                .as_ref()
                .is_some_and(|text| text.len() > 4096)
        {
            return Err(Error::new(
                Errno::NAMETOOLONG,
                "the export's name has more than 4096 bytes",
            ));
        }
        Ok(Self(Arc::new(Shared {
            export,
            crew: Arc::new(Crew::new(limits.connections + limits.requests)),
            listener,
            limits,
            clients: Mutex::default(),
            changed: Condvar::new(),
            is_stopping: AtomicBool::new(false),
            tell: Box::new(tell),
        })))
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.0.clone())
    }

    /// Where clients find the export.
    pub fn uri(&self) -> String {
        self.0.listener.uri(&self.0.export.name)
    }

    /// Serves clients until [`Stopper::stop`], answers what they have asked, and flushes the
    /// device.
    ///
    /// Errors: the device's, if it cannot be flushed; the host's, if it lets nobody connect any
    /// more.
    pub fn serve(self) -> Result<()> {
        let accepted = self.accept();
        let shared = self.0;
        shared.is_stopping.store(true, Ordering::Release);
        shared.shutdown(Shutdown::Read);
        if !shared.wait(Some(Instant::now() + GRACE)) {
            shared.tell("clients that take no replies are cut off");
            shared.shutdown(Shutdown::Both);
            shared.wait(None);
        }
        shared.crew.close();
        let flushed = shared.export.device.flush();
        accepted.and(flushed)
    }

    fn accept(&self) -> Result<()> {
        let shared = &self.0;
        let mut number = 0;
        loop {
            let accepted = shared.listener.accept();
            if shared.is_stopping() {
                return Ok(());
            }
            match accepted {
                Ok(stream) => {
                    number += 1;
                    let client = Arc::new(Client::new(stream, shared.clone(), number));
                    if self.admit(number, &client) {
                        // With no thread for it, the connection is closed.
                        let _ = shared.crew.give(Task::Greet(client));
                    }
                }
                Err(error) if is_passing(&error) => {}
                Err(error) if is_full(&error) && !shared.clients.lock().is_empty() => {
                    let mut clients = shared.clients.lock();
                    shared.changed.wait_for(&mut clients, FULL);
                }
                Err(error) => return Err(Error::io("accept", error)),
            }
        }
    }

    fn admit(&self, number: u64, client: &Arc<Client>) -> bool {
        let mut clients = self.0.clients.lock();
        if clients.len() >= self.0.limits.connections {
            return false;
        }
        clients.push((number, Arc::downgrade(client)));
        true
    }
}

/// The client has gone before it was accepted, or a signal came.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::Interrupted | ErrorKind::ConnectionReset
    )
}

/// The host is out of descriptors or memory, which passes when others go.
fn is_full(error: &io::Error) -> bool {
    let full = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| full.contains(&errno))
}
