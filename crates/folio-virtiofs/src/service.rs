//! The socket that a virtual machine monitor connects to, and the device it finds there.

use crate::device::{Device, TAG_LEN};
use crate::guest::Memory;
use folio::{Errno, Error, Result};
use folio_fuse::Server;
use folio_net::{Socket, Stopper};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use vhost::vhost_user::{Error as VhostUserError, Listener};
use vhost_user_backend::{Error as BackendError, ShutdownHandle, VhostUserDaemon};
use vm_memory::GuestMemoryAtomic;

/// Most bytes of a tag.
pub const TAG_LEN_MAX: usize = TAG_LEN;
/// Most request queues; a guest uses as many as it has processors at most.
const QUEUES_MAX: usize = 32;

/// How a share appears to a guest.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the guest mounts it by, for front ends that ask the device; QEMU and cloud-hypervisor
    /// have their own.
    pub tag: Option<String>,
    /// Queues for requests, each with a thread. Linux before 6.11 uses one.
    pub queues: usize,
    /// Whether to end when the first guest is gone.
    pub once: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tag: None,
            queues: 1,
            once: false,
        }
    }
}

/// What happens at the socket.
#[derive(Debug)]
pub enum Event {
    /// A virtual machine monitor has connected.
    Connected,
    /// It is gone.
    Gone,
    /// It said something that makes no sense, or went in the middle of a message; it is cut off.
    Failed(String),
}

/// A socket that serves one virtual machine after another; its file goes with it.
pub struct Service {
    socket: Socket,
    options: Options,
    connection: Arc<Connection>,
    stopper: Stopper,
}

/// The connection to the current front end.
type Connection = Mutex<Option<ShutdownHandle>>;

/// Returns a handle that ends accept(2) on `socket`, and disconnects the guest once its requests
/// that are under way are answered.
fn stopper(socket: UnixListener, connection: Arc<Connection>) -> Stopper {
    Stopper::new(move || {
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        if let Some(connection) = &*connection.lock() {
            connection.shutdown();
        }
    })
}

impl Service {
    /// Listens on a new Unix socket at `path`; one that a server left behind there is replaced.
    ///
    /// Errors: EADDRINUSE if a server listens there or a file of another kind is there, EINVAL for
    /// options that make no sense, else the host's.
    pub fn new(path: &Path, options: Options) -> Result<Self> {
        let tag_len = options.tag.as_ref().map_or(1, String::len);
        if !(1..=TAG_LEN_MAX).contains(&tag_len) {
            let text = format!("a tag has 1 to {TAG_LEN_MAX} bytes, not {tag_len}");
            return Err(Error::new(Errno::INVAL, text));
        }
        if !(1..=QUEUES_MAX).contains(&options.queues) {
            let text = format!(
                "{} request queues: not a number from 1 to {QUEUES_MAX}",
                options.queues
            );
            return Err(Error::new(Errno::INVAL, text));
        }
        let failed = |error| Error::io("listen", error).at(path.display().to_string());
        let socket = Socket::bind(path).map_err(failed)?;
        let connection = Arc::new(Mutex::new(None));
        let same_socket = socket.listener().try_clone().map_err(failed)?;
        let stopper = stopper(same_socket, Arc::clone(&connection));
        Ok(Self {
            socket,
            options,
            connection,
            stopper,
        })
    }

    /// Where it listens, absolute.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// What ends [`Service::serve`].
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves whoever connects, one after another, each with a server of its own that `start`
    /// makes, until somebody stops it (or the first is gone, with [`Options::once`]). A virtual
    /// machine that reboots stays connected; one that is started anew connects again. `tell` hears
    /// what happens.
    pub fn serve(&self, start: impl Fn() -> Server, tell: impl Fn(Event)) -> Result<()> {
        let place =
            |text: String| Error::new(Errno::IO, text).at(self.path().display().to_string());
        let socket = self
            .socket
            .listener()
            .try_clone()
            .map_err(|error| place(error.to_string()))?;
        let mut listener = Listener::from(socket);
        raise_descriptor_limit();
        loop {
            let memory = GuestMemoryAtomic::new(Memory::new());
            let device = Device::new(
                start(),
                memory.clone(),
                self.options.tag.as_deref(),
                self.options.queues,
            );
            let device = Arc::new(device);
            let daemon = VhostUserDaemon::new("virtiofs".to_owned(), Arc::clone(&device), memory);
            let mut daemon = daemon.map_err(|error| place(error.to_string()))?;
            let accepted = daemon.start(&mut listener);
            if self.stopper.is_stopping() {
                return Ok(());
            }
            accepted.map_err(|error| place(error.to_string()))?;
            tell(Event::Connected);
            *self.connection.lock() = daemon.shutdown_handle();
            if self.stopper.is_stopping() {
                daemon.request_shutdown();
            }
            let ended = daemon.wait();
            *self.connection.lock() = None;
            device.close();
            // Ends its threads.
            drop(daemon);
            drop(device);
            if self.stopper.is_stopping() {
                return Ok(());
            }
            tell(gone(ended));
            if self.options.once {
                return Ok(());
            }
        }
    }
}

/// Raises the limit of descriptors as far as it may be raised: each connection costs some for good
/// (the exit events of vhost-user-backend 0.24 are never closed).
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // One that may not be raised is what there is.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

/// How a connection ended.
fn gone(ended: std::result::Result<(), BackendError>) -> Event {
    match ended {
        Ok(())
        | Err(BackendError::HandleRequest(
            VhostUserError::Disconnected
            | VhostUserError::PartialMessage
            | VhostUserError::SocketBroken(_),
        )) => Event::Gone,
        Err(error) => Event::Failed(error.to_string()),
    }
}
