//! The client: a mount whose requests another machine answers.
//!
//! ```text
//!   kernel --- /dev/fuse ---> read --> under way --> link --> stream             relay.rs
//!      ^  ^                                |               |
//!      |  +------ replies -----------------+---- receive <-+                     server_connection.rs
//!      +--------- notices.rs (a thread of its own) <---+                         (and reconnect)
//!         calls ---- events.rs (likewise) <---+
//!                 kernel_cache.rs: all names and nodes, to invalidate them at once
//! ```
//!
//! Files, each above the ones it uses: this one, events.rs, server_connection.rs, relay.rs,
//! notices.rs, kernel_cache.rs.
//!
//! Neighbors: `folio-cli` above; below, the frames of `link.rs`, and the kernel.
//!
//! Locks, never held together, nor while bytes are sent or received: the requests under way; the
//! index of the kernel's cache; the notices.
//!
//! Invariants:
//! - C1: every request of the kernel is answered once: by the server, or by the client with an
//!   error if the server cannot answer any more.
//! - C2: a resumed session has missed neither replies nor changes. With any other session, all that
//!   the kernel has cached is invalidated, and open files are lost.
//! - C3: only the thread that receives from the server writes replies, except for requests that
//!   fail here. Notices have a thread of their own.

mod events;
mod kernel_cache;
mod notices;
mod relay;
mod server_connection;

use crate::key::Key;
use folio::{Errno, Error, Result};
pub use folio_fuse::MountAttributes;
use folio_fuse::{Mountpoint, Unmounter};
use folio_net::Address;
pub(crate) use kernel_cache::KernelCache;
use relay::Relay;
use server_connection::ServerConnection;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Calls that wait for the thread that makes them: one of the server, and the end of a burst.
const CALLS_MAX: usize = 2;

/// A connection to a share that is not mounted yet.
pub struct Remote {
    connection: ServerConnection,
}

/// A mounted share, ready to be served.
pub struct Mount {
    relay: Arc<Relay>,
    connection: ServerConnection,
    mountpoint: Mountpoint,
}

impl Remote {
    /// Connects to a server. If the connection is lost later, calls on the mount wait for it up to
    /// `retry`, and then fail until there is a connection again. With `wants_events`, changes by
    /// other programs are events for those that watch the mount. `report` receives messages for the
    /// operator.
    ///
    /// # Errors
    /// EACCES if the keys differ or the server refuses, EPROTO if the server does not match,
    /// EOPNOTSUPP if it sends no events, else the host's error.
    pub fn connect(
        address: Address,
        key: Option<Key>,
        retry: Duration,
        wants_events: bool,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self> {
        Ok(Self {
            connection: ServerConnection::connect(
                address,
                key,
                retry,
                wants_events,
                Arc::new(report),
            )?,
        })
    }

    /// Returns the share's name.
    pub fn share(&self) -> &str {
        &self.connection.grant().share
    }

    /// Mounts the share on the directory `target`.
    ///
    /// # Errors
    /// The host's, from /dev/fuse and mount(2).
    pub fn mount(self, target: &Path, attributes: &MountAttributes) -> Result<Mount> {
        let grant = self.connection.grant();
        let mountpoint = Mountpoint::new(target, attributes, grant.kernel_checks_permissions)?;
        let relay = Arc::new(Relay::new(Arc::clone(mountpoint.device()), grant));
        Ok(Mount {
            relay,
            connection: self.connection,
            mountpoint,
        })
    }
}

impl Mount {
    /// Returns a handle that unmounts, which ends [`Mount::serve`].
    pub fn unmounter(&self) -> Unmounter {
        self.mountpoint.unmounter().clone()
    }

    /// Returns a function that gives up a server that cannot be reached: waiting and later calls
    /// fail. While there is a connection, it does nothing.
    pub fn abandoner(&self) -> impl Fn() + Send + Sync + use<> {
        let relay = self.relay.clone();
        move || relay.abandon_if_lost()
    }

    /// Relays requests until the file system is unmounted and no program uses it any more.
    ///
    /// # Errors
    /// ESTALE if the server shares another tree after a reconnect; the mount is detached then, and
    /// calls fail. EPROTO if server and kernel do not match. EAGAIN if the host has no thread left.
    pub fn serve(self) -> Result<()> {
        let Self {
            relay,
            mut connection,
            mountpoint,
        } = self;
        let Some(init) = relay.first_request()? else {
            return Ok(());
        };
        connection.begin(&relay, init)?;
        let raises_events = connection.raises_events();
        let (report, target) = (connection.report(), mountpoint.unmounter().target());
        let (calls, received_calls) = mpsc::sync_channel(CALLS_MAX);
        std::thread::scope(|scope| {
            let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
            let notices = thread("folio notices")
                .spawn_scoped(scope, || relay.write_notices(&{ calls }, &*report));
            let raising = raises_events.then(|| {
                thread("folio events").spawn_scoped(scope, || {
                    events::raise_until_end(&relay, target, received_calls);
                })
            });
            let receiving = thread("folio receive").spawn_scoped(scope, || {
                let received = connection.receive_until_end(&relay);
                if received.is_err() {
                    relay.abandon();
                    // The kernel ends the session after that.
                    let _ = mountpoint.unmounter().unmount(true);
                }
                received
            });
            let read = match (&notices, &receiving, raising.transpose()) {
                (Ok(_), Ok(_), Ok(_)) => relay.read_requests(),
                _ => Err(Error::new(Errno::AGAIN, "the host has no thread left")),
            };
            relay.end();
            match receiving.map(|thread| thread.join()) {
                Ok(Ok(received)) => read.and(received),
                Ok(Err(_)) => Err(Error::new(Errno::IO, "the relay has panicked")),
                Err(_) => read,
            }
        })
    }
}
