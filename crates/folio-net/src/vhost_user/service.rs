//! The vhost-user service: a socket, and a device for each front end that connects.

use super::connection::Connection;
use super::device::Device;
use super::message;
use super::session::{ConfigChannel, Session};
use crate::{Socket, Stopper, accept_until};
use folio::{Error, Result};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A change of the connection to a virtual machine monitor.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// A monitor has connected.
    Connected,
    /// The monitor has disconnected.
    Disconnected,
    /// The monitor sent an invalid message and was disconnected; with the reason.
    Failed(String),
}

/// A socket that serves one virtual machine after another; its file is removed with it.
pub struct Service {
    listener: UnixListener,
    path: PathBuf,
    /// Removes the file.
    _socket: Option<Socket>,
    connection: Arc<CurrentConnection>,
    config_channel: Arc<ConfigChannel>,
    stopper: Stopper,
}

/// The connection to the current front end.
type CurrentConnection = Mutex<Option<UnixStream>>;

/// Informs the current front end of a service that its device's configuration has changed.
#[derive(Clone)]
pub struct ConfigNotifier(Arc<ConfigChannel>);

impl ConfigNotifier {
    /// Sends the message, if there is a front end that takes it.
    pub fn notify(&self) {
        if let Some(stream) = &*self.0.lock() {
            // A front end that has just ended is not interested.
            let _ = message::send_config_change(stream);
        }
    }
}

/// Returns a handle that ends accept(2) on `listener`, and disconnects the guest once its requests
/// in progress are answered.
fn stopper(listener: UnixListener, connection: Arc<CurrentConnection>) -> Stopper {
    Stopper::new(move || {
        let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        if let Some(connection) = &*connection.lock() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    })
}

impl Service {
    /// Listens on a new Unix socket at `path`; replaces a socket without a server.
    ///
    /// # Errors
    /// EADDRINUSE if a server listens there or a file of another type is there, else the host's.
    pub fn new(path: &Path) -> Result<Self> {
        let failed = |error| Error::io("listen", error).at(path.display().to_string());
        let socket = Socket::bind(path).map_err(failed)?;
        let listener = socket.listener().try_clone().map_err(failed)?;
        let path = socket.path().to_owned();
        Self::of(listener, path, Some(socket)).map_err(failed)
    }

    /// Serves on a socket that listens already, such as one of a service manager.
    ///
    /// # Errors
    /// The host's.
    pub fn from_listener(listener: UnixListener) -> Result<Self> {
        let failed = |error| Error::io("listen", error);
        let address = listener.local_addr().map_err(failed)?;
        let path = address.as_pathname().unwrap_or(Path::new("")).to_owned();
        Self::of(listener, path, None).map_err(failed)
    }

    fn of(listener: UnixListener, path: PathBuf, socket: Option<Socket>) -> io::Result<Self> {
        let connection = Arc::new(Mutex::new(None));
        let stopper = stopper(listener.try_clone()?, Arc::clone(&connection));
        Ok(Self {
            listener,
            path,
            _socket: socket,
            connection,
            config_channel: Arc::default(),
            stopper,
        })
    }

    /// Returns the absolute path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the handle that ends [`Service::serve`].
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Returns the handle that reports a changed configuration.
    pub fn config_notifier(&self) -> ConfigNotifier {
        ConfigNotifier(Arc::clone(&self.config_channel))
    }

    /// Serves one front end after another, each with a device of its own from `new_device`, until
    /// it is stopped, or the first disconnects, with `once`. A virtual machine that reboots stays
    /// connected; one that is started anew connects again. Calls `report` for each event.
    ///
    /// # Errors
    /// The host's, if the socket fails.
    pub fn serve<D: Device>(
        &self,
        once: bool,
        new_device: impl Fn() -> D,
        report: impl Fn(ConnectionEvent),
    ) -> Result<()> {
        raise_descriptor_limit();
        loop {
            let accepted = accept_until(&self.listener, || self.stopper.is_stopping());
            let Some(stream) = accepted.map_err(|error| self.failed(error))? else {
                return Ok(());
            };
            report(ConnectionEvent::Connected);
            let event = self.converse(stream, new_device());
            if self.stopper.is_stopping() {
                return Ok(());
            }
            report(event);
            if once {
                return Ok(());
            }
        }
    }

    /// Serves one front end, until it disconnects.
    fn converse<D: Device>(&self, stream: UnixStream, device: D) -> ConnectionEvent {
        let failed = |error: io::Error| ConnectionEvent::Failed(error.to_string());
        let copies = || Ok((stream.try_clone()?, stream.try_clone()?));
        let (of_connection, of_stopper) = match copies() {
            Ok(copies) => copies,
            Err(error) => return failed(error),
        };
        let connection = Arc::new(Connection::new(Arc::new(device), of_connection));
        let channel = Arc::clone(&self.config_channel);
        let mut session = match Session::new(Arc::clone(&connection), channel) {
            Ok(session) => session,
            Err(error) => return failed(error),
        };
        *self.connection.lock() = Some(of_stopper);
        if self.stopper.is_stopping() {
            // The stop may have come before the connection was known.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let ended = session.serve(&stream);
        *self.connection.lock() = None;
        session.end();
        if connection.has_lost_memory() {
            return ConnectionEvent::Failed("the monitor has shortened the guest's memory".into());
        }
        match ended {
            Ok(()) => ConnectionEvent::Disconnected,
            Err(error) if is_disconnect(&error) => ConnectionEvent::Disconnected,
            Err(error) => failed(error),
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io("accept", error).at(self.path().display().to_string())
    }
}

/// Raises the limit of descriptors to its maximum: each region of memory has one.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Best effort: without permission the limit stays.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Whether the front end has ended, as a program that is killed does.
fn is_disconnect(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}
