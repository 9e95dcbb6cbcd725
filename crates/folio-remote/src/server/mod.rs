//! The server: accepts clients, keeps the sessions of lost clients, and pushes changes to all.
//!
//! ```text
//!   accept --> greet (handshake) --> Session --- attach ---> Connection: threads that read and run requests
//!                                      |  effects.rs  changes by one client's request, for the other clients
//!                                      |  one thread per session pushes changes
//!                                      v
//!                              folio_fuse::Server, one per session; one kernel for all
//! ```
//!
//! Files, each above the ones it uses: this one, connection.rs, state.rs, session.rs, effects.rs,
//! limits.rs.
//!
//! Neighbors: `folio-cli` above; below, the FUSE server, and the frames of `link.rs`.
//!
//! Locks, in this order: a session's `resuming`, then the list of sessions, then a session's grace,
//! then its link. None but `resuming` is held while a request runs or bytes are sent or received.
//!
//! Invariants:
//! - S1: no client delays another: each has its own threads, change queue and link. A client that
//!   takes no bytes for 30 seconds, or lets more than `WAITING_BYTES_MAX` wait, is disconnected.
//! - S2: a request runs once: frames are counted on arrival (L1), and a reply is kept until it is
//!   acknowledged.
//! - S3: a change is pushed after every reply that may be older than it.

mod connection;
mod effects;
mod limits;
mod session;
mod state;

pub(crate) use effects::for_each_effect;
pub use limits::Limits;

use crate::frame::FrameReader;
use crate::handshake::{self, Handshake, SessionGrant, SessionRequest, TimedTransport};
use crate::key::Key;
use crate::stream::set_timeouts;
use connection::Connection;
use folio::{Errno, Error, Kernel, Result};
use folio_fuse::wire::REQUEST_MAX;
use folio_fuse::{ClientOptions, PermissionChecks};
use folio_net::{
    AcceptFailure, Address, Job, Listener, Peer, Stopper, Stream, WorkerPool, WorkerPoolOptions,
};
use limits::UNDER_WAY_BYTES_MAX;
use session::Session;
use state::ServerState;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Clients in the handshake at a time, beside those that have a session.
const HANDSHAKES_MAX: usize = 32;
/// Time that requests under way have at the end to finish.
const LAST_REQUESTS: Duration = Duration::from_secs(10);
/// Time to wait for a change when the host has no resources for another client.
const RESOURCE_WAIT: Duration = Duration::from_secs(1);
/// Time without work after which a thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The file tree that a server shares.
#[derive(Clone)]
pub struct Share {
    /// The kernel whose root directory is shared.
    pub kernel: Arc<Kernel>,
    /// The side that checks permissions.
    pub permissions: PermissionChecks,
    /// What clients may cache, and for how long.
    pub options: ClientOptions,
    /// The share's name for its clients; at most 255 bytes.
    pub name: String,
}

/// A server of one share.
pub struct Server(Arc<Inner>);

struct Inner {
    listener: Arc<Listener>,
    share: Share,
    key: Option<Key>,
    handshakes: AtomicUsize,
    state: Arc<ServerState>,
}

impl Server {
    /// Creates a server that does not serve yet; clients that connect wait. `report` receives
    /// messages for the operator.
    ///
    /// # Errors
    /// EACCES if other machines could connect by TCP without a key, or any user of this machine to
    /// a share of root's: clients state the users of their requests.
    pub fn new(
        listener: Listener,
        share: Share,
        key: Option<Key>,
        limits: Limits,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self> {
        let address = listener.address();
        if key.is_none() && matches!(address, Address::Tcp { .. }) && !address.is_loopback() {
            let why = "the share would be open to every machine that reaches this TCP port: give --key-file, or listen at tcp:PORT";
            return Err(Error::new(Errno::ACCESS, why));
        }
        if key.is_none()
            && matches!(address, Address::Tcp { .. })
            && rustix::process::geteuid().is_root()
        {
            let why = "every user of this machine would be root in the share: give --key-file (head -c 32 /dev/urandom | base64 > key; chmod 600 key), or listen at unix:PATH";
            return Err(Error::new(Errno::ACCESS, why));
        }
        let listener = Arc::new(listener);
        let closed_by_stop = listener.clone();
        let pool = WorkerPool::new(WorkerPoolOptions {
            thread_name: "share",
            // Sessions, handshakes and a connection's threads have limits of their own.
            threads_max: usize::MAX,
            idle_timeout: IDLE_TIMEOUT,
        });
        Ok(Self(Arc::new(Inner {
            listener,
            share,
            key,
            handshakes: AtomicUsize::new(0),
            state: Arc::new(ServerState::new(
                limits,
                Stopper::new(move || closed_by_stop.close()),
                pool,
                Box::new(report),
            )),
        })))
    }

    /// Returns a handle that ends [`Server::serve`] from another thread.
    pub fn stopper(&self) -> Stopper {
        self.0.state.stopper.clone()
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> &Address {
        self.0.listener.address()
    }

    /// Serves clients until [`Stopper::stop`], and then finishes the requests under way, for at
    /// most 10 seconds.
    ///
    /// # Errors
    /// EAGAIN if the host has no thread left, else the host's error if no further client can
    /// connect.
    pub fn serve(self) -> Result<()> {
        let state = self.0.state.clone();
        let expiring = state.clone();
        let expiry = Job::new(move || expiring.end_expired_sessions());
        if state.pool.try_run(expiry).is_err() {
            return Err(Error::new(Errno::AGAIN, "the host has no thread left"));
        }
        let accepted = self.0.accept_clients();
        state.stopper.stop();
        for session in state.sessions() {
            state.end_session(&session, "the server is stopping");
        }
        let deadline = Instant::now() + LAST_REQUESTS;
        state.wake();
        if !state.pool.close(Some(deadline)) {
            state.report("stopping with unfinished requests, which take too long");
        }
        accepted
    }
}

impl Inner {
    fn accept_clients(self: &Arc<Self>) -> Result<()> {
        loop {
            let accepted = self.listener.accept().and_then(|client| {
                client.map_or(Ok(None), |client| {
                    set_timeouts(&client.0)?;
                    Ok(Some(client))
                })
            });
            if self.state.stopper.is_stopping() {
                return Ok(());
            }
            match accepted {
                Ok(None) => return Ok(()),
                Ok(Some((stream, peer))) => self.start_handshake(stream, peer),
                Err(error) => match AcceptFailure::of(&error) {
                    AcceptFailure::Transient => {}
                    AcceptFailure::OutOfResources => self.state.wait_for_change(RESOURCE_WAIT),
                    AcceptFailure::Fatal => return Err(Error::io("accept", error)),
                },
            }
        }
    }

    /// Greets a new client in a thread of its own, or closes the connection if there is none or too
    /// many clients are in the handshake.
    fn start_handshake(self: &Arc<Self>, stream: Stream, peer: Peer) {
        let is_full = self.handshakes.fetch_add(1, Ordering::SeqCst) >= HANDSHAKES_MAX;
        let this = self.clone();
        let greeting = Job::new(move || this.greet(stream, peer));
        if is_full || self.state.pool.try_run(greeting).is_err() {
            self.handshakes.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Agrees with a new client and serves it.
    fn greet(self: Arc<Self>, stream: Stream, peer: Peer) {
        let stream = Arc::new(stream);
        let connected = self.agree(&stream, peer);
        self.handshakes.fetch_sub(1, Ordering::SeqCst);
        match connected {
            Ok(connection) => Arc::new(connection).work(),
            Err(error) => {
                stream.shutdown(Shutdown::Both);
                self.state.report(&format!("{peer}: {error}"));
            }
        }
    }

    fn agree(&self, stream: &Arc<Stream>, peer: Peer) -> Result<Connection> {
        let mut transport = TimedTransport::new(stream);
        let handshake = handshake::receive(&mut transport, self.key.as_ref())?;
        let session = match self.find_session(handshake.request, peer) {
            Some(session) => session,
            None => self
                .new_session(peer, handshake.request.wants_events)
                .inspect_err(|error| handshake::refuse(&mut transport, &error.to_string()))?,
        };
        let generation = self
            .welcome(&handshake, &session, stream, &mut transport)
            // The session is kept for the grace, as if it had lost this stream.
            .inspect_err(|_| session.start_grace())?;
        let reader = FrameReader::new(transport.finish()?, REQUEST_MAX);
        Ok(Connection::new(
            self.state.clone(),
            session,
            generation,
            reader,
        ))
    }

    /// Returns the session that the client names, if it belongs to the same peer. The address of a
    /// network client may have changed.
    fn find_session(&self, request: SessionRequest, peer: Peer) -> Option<Arc<Session>> {
        self.state.sessions().into_iter().find(|session| {
            session.id == request.session
                && (session.peer == peer || matches!(peer, Peer::Network(_)))
        })
    }

    fn new_session(&self, peer: Peer, wants_events: bool) -> Result<Arc<Session>> {
        let share = &self.share;
        let mut fuse = folio_fuse::Server::new(
            share.kernel.clone(),
            share.permissions,
            share.options.clone(),
        );
        // Where the host sends no change notifications, times to live limit what clients cache, and
        // then size and times decide whether cached data is valid.
        if wants_events {
            fuse.raise_events();
        }
        let has_notifications = fuse.watch_changes();
        let is_shared = fuse.is_shared();
        let options = fuse.options_mut();
        options.generation = next_generation();
        options.has_external_writers = is_shared;
        let id = handshake::new_session_id()?;
        let mut session = Session::new(id, peer, fuse, self.state.limits);
        // An image has no external writers, but other clients.
        session.sends_events = wants_events && (has_notifications || !is_shared);
        let session = Arc::new(session);
        self.state.add_session(&session)?;
        let pushing = session.clone();
        let push = Job::new(move || pushing.push_changes());
        let (sending, state) = (session.clone(), self.state.clone());
        let send = Job::new(move || {
            if let Err(error) = sending.send_events() {
                state.report(&format!("{}: {error}", sending.peer));
            }
        });
        let pool = &self.state.pool;
        if pool.try_run(push).is_err() || session.sends_events && pool.try_run(send).is_err() {
            self.state
                .end_session(&session, "the host has no thread left");
            return Err(Error::new(
                Errno::AGAIN,
                "the server's host has no thread left",
            ));
        }
        Ok(session)
    }

    /// Ends the handshake with the grant, and attaches the stream to the session.
    fn welcome(
        &self,
        handshake: &Handshake,
        session: &Session,
        stream: &Arc<Stream>,
        transport: &mut TimedTransport,
    ) -> Result<u64> {
        let request = &handshake.request;
        let is_resumed = request.session == session.id;
        // Between the number and the attachment another stream must not change the number.
        let _one_stream_at_a_time = session.resuming.lock();
        let grant = SessionGrant {
            is_resumed,
            sends_events: session.sends_events,
            kernel_checks_permissions: self.share.permissions == PermissionChecks::ByClient,
            session: session.id,
            // A frame that counts after this number would be sent again, and run twice (S2).
            received: session.link.detach(),
            message_bytes_max: REQUEST_MAX as u32,
            under_way_bytes_max: UNDER_WAY_BYTES_MAX as u32,
            grace_s: u32::try_from(self.state.limits.grace.as_secs()).unwrap_or(u32::MAX),
            share: self.share.name.clone(),
        };
        handshake.welcome(transport, self.key.as_ref(), &grant)?;
        session.attach(
            stream.clone(),
            if is_resumed { request.received } else { 0 },
        )
    }
}

/// Returns the generation of a new session's inodes. It comes from the time, so that no value
/// repeats after a restart, and always grows. By it a client's kernel detects that an inode
/// number of an earlier session names another inode now. The kernel keeps 32 bits.
fn next_generation() -> u32 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let now = since_epoch.as_millis() as u64;
    let next = |last: u64| Some(now.max(last + 1));
    let last = LAST
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
        .unwrap_or_default();
    // The low bits count how often a node number is reused within the session.
    (next(last).unwrap_or_default() as u32) << 6
}
