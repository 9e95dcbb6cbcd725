//! The server: accepts clients, keeps the sessions of those that are lost, and tells all of them
//! what changes.
//!
//! ```text
//!   accept --> greet (handshake) --> Session --- attach ---> Connection: threads that read and do requests
//!                                      |  effects.rs  what one client's request changes for the others
//!                                      |  changes are told by a thread of the session's own
//!                                      v
//!                              folio_fuse::wire::Server, one for each session; one kernel for all
//! ```
//!
//! Neighbours: `folio-cli` above; below, the FUSE codec and its adapter, and the frames of
//! `link.rs`.
//!
//! Locks, none held while another is taken but as shown: a session's `resuming`, then the list of
//! sessions, then a session's life, then its link. None is held while a request is done or bytes
//! are moved, but `resuming`.
//!
//! Invariants:
//! - S1: no client makes another wait: each has threads, a queue of changes and a link of its own,
//!   and whoever takes no bytes for 30 seconds, or lets more than `WAITING_BYTES_MAX` wait, is cut
//!   off.
//! - S2: a request is done once: frames are counted as they come (L1), and a reply is kept until it
//!   is acknowledged.
//! - S3: a change is told behind every reply that may be older than it.

mod connection;
mod effects;
mod session;

use crate::frame::Input;
use crate::handshake::{self, Grant, Greeted, Timed, Wish};
use crate::key::Key;
use crate::stream::{Listener, Peer, Stream};
use connection::Connection;
use folio::{Errno, Error, Kernel, Result};
use folio_fuse::adapter::{Adapter, PermissionChecks};
use folio_fuse::wire::{self, Notice};
use parking_lot::{Condvar, Mutex};
use session::Session;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What the server makes of any request that was done.
pub(crate) fn fuzz_effects(request: &[u8]) {
    effects::effects(request, &[0; 16], |_| {});
}

/// Bytes of requests, and of the replies that they ask for, which a client may have under way.
pub(crate) const UNDER_WAY_BYTES_MAX: usize = 32 << 20;
/// Clients that are being greeted, beside those that have a session.
const GREETING_MAX: usize = 32;
/// How long requests have at the end to be done.
const LAST_REQUESTS: Duration = Duration::from_secs(10);
/// How long to wait when the host has no room for another client.
const FULL: Duration = Duration::from_secs(1);

/// What is shared.
#[derive(Clone)]
pub struct Share {
    /// What is mounted as `/` in it is shared.
    pub kernel: Arc<Kernel>,
    /// Whose permissions count.
    pub permissions: PermissionChecks,
    /// What clients may believe and keep.
    pub options: wire::ClientOptions,
    /// What clients are told it is; at most 255 bytes.
    pub name: String,
}

/// How much a server takes upon itself.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Sessions at a time, those of lost clients included.
    pub clients: usize,
    /// How long the session of a client that was lost is kept.
    pub grace: Duration,
    /// Inodes that a client may know at a time.
    pub nodes: usize,
    /// Files that a client may have open.
    pub files: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 64,
            grace: Duration::from_secs(60),
            nodes: 1 << 20,
            files: 16 << 10,
        }
    }
}

/// What all threads of a server share.
pub(crate) struct Shared {
    listener: Listener,
    share: Share,
    key: Option<Key>,
    limits: Limits,
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Told when a session is lost or over, or a thread has ended.
    changed: Condvar,
    greeting: AtomicUsize,
    threads: AtomicUsize,
    is_stopping: AtomicBool,
    tell: Box<dyn Fn(&str) + Send + Sync>,
}

/// A server of one share.
pub struct Server(Arc<Shared>);

/// Ends a server from another thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Ends [`Server::serve`]: no more clients; requests that are under way are done first.
    pub fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::SeqCst);
        self.0.listener.close();
        self.0.changed.notify_all();
    }
}

impl Server {
    /// A server that is not serving yet; clients that connect wait. `tell` gets what the operator
    /// should know.
    ///
    /// Errors: EACCES if others than this machine could connect by TCP without a key.
    pub fn new(
        listener: Listener,
        share: Share,
        key: Option<Key>,
        limits: Limits,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self> {
        if key.is_none() && listener.needs_key() {
            let why = "whoever reaches this TCP port could use the share: give --key-file, or listen at tcp:PORT";
            return Err(Error::new(Errno::ACCESS, why));
        }
        let shared = Arc::new(Shared {
            listener,
            share,
            key,
            limits,
            sessions: Mutex::default(),
            changed: Condvar::new(),
            greeting: AtomicUsize::new(0),
            threads: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
            tell: Box::new(tell),
        });
        Ok(Self(shared))
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.0.clone())
    }

    /// Where clients find it.
    pub fn address(&self) -> crate::Address {
        self.0.listener.address()
    }

    /// Serves clients until [`Stopper::stop`].
    ///
    /// Errors: the host's, if it lets nobody connect any more.
    pub fn serve(self) -> Result<()> {
        let shared = self.0;
        let this = shared.clone();
        if !shared.start("share", move || this.bury()) {
            return Err(Error::new(Errno::AGAIN, "the host gives no more threads"));
        }
        let accepted = shared.accept();
        shared.is_stopping.store(true, Ordering::SeqCst);
        for session in shared.all_sessions() {
            shared.end(&session, "the server is stopping");
        }
        let deadline = Instant::now() + LAST_REQUESTS;
        let mut sessions = shared.sessions.lock();
        shared.changed.notify_all();
        while shared.threads.load(Ordering::SeqCst) > 0 {
            if shared
                .changed
                .wait_until(&mut sessions, deadline)
                .timed_out()
            {
                (shared.tell)("requests are left that take too long");
                break;
            }
        }
        accepted
    }
}

impl Shared {
    fn all_sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().clone()
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Starts a thread that is waited for at the end; false if the host has none.
    pub(super) fn start(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> bool {
        self.threads.fetch_add(1, Ordering::SeqCst);
        let place = Place(self.clone());
        let spawned = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _place = place;
                work();
            });
        spawned.is_ok()
    }

    /// Tells all sessions but one.
    pub(super) fn tell_others(&self, but: &Arc<Session>, notice: Notice<'_>) {
        for session in self.all_sessions() {
            if !Arc::ptr_eq(&session, but) {
                session.changed(notice);
            }
        }
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &Arc<Session>, why: &str) {
        self.sessions
            .lock()
            .retain(|other| !Arc::ptr_eq(other, session));
        if !session.is_over() && why != GOODBYE && !self.is_stopping() {
            (self.tell)(&format!("{}: {why}", session.peer));
        }
        session.end(why);
        self.changed.notify_all();
    }

    /// A session's stream is gone.
    pub(super) fn lost(&self, session: &Arc<Session>, generation: u64) {
        if session.link.lose(generation) {
            session.lose();
            if self.limits.grace.is_zero() {
                self.end(session, "the connection is lost");
            }
            self.changed.notify_all();
        }
    }

    /// Ends sessions whose clients stay away.
    fn bury(&self) {
        let mut sessions = self.sessions.lock();
        while !self.is_stopping() {
            // Once a second at least, for those whose senders lost them.
            let soon = Instant::now() + Duration::from_secs(1);
            self.changed.wait_until(&mut sessions, soon);
            let now = Instant::now();
            sessions
                .iter()
                .filter(|session| !session.link.is_attached())
                .for_each(|session| session.lose());
            let is_dead = |session: &&Arc<Session>| session.dies_at().is_some_and(|at| at <= now);
            let dead: Vec<_> = sessions.iter().filter(is_dead).cloned().collect();
            if !dead.is_empty() {
                parking_lot::MutexGuard::unlocked(&mut sessions, || {
                    dead.iter().for_each(|session| {
                        self.end(session, "the client has stayed away for too long")
                    });
                });
            }
        }
    }

    fn accept(self: &Arc<Self>) -> Result<()> {
        loop {
            let accepted = self.listener.accept();
            if self.is_stopping() {
                return Ok(());
            }
            match accepted {
                Ok(None) => {}
                Ok(Some((stream, peer))) => {
                    let is_full = self.greeting.fetch_add(1, Ordering::SeqCst) >= GREETING_MAX;
                    let this = self.clone();
                    // With no thread for it, or too many, the connection is closed.
                    if is_full || !self.start("share", move || this.greet(stream, peer)) {
                        self.greeting.fetch_sub(1, Ordering::SeqCst);
                    }
                }
                Err(error) if is_passing(&error) => {}
                Err(error) if is_full(&error) => {
                    self.changed.wait_for(&mut self.sessions.lock(), FULL);
                }
                Err(error) => return Err(Error::io("accept", error)),
            }
        }
    }

    /// Agrees with a new client and serves it.
    fn greet(self: Arc<Self>, stream: Stream, peer: Peer) {
        let stream = Arc::new(stream);
        let connected = self.agree(&stream, peer);
        self.greeting.fetch_sub(1, Ordering::SeqCst);
        match connected {
            Ok(connection) => Arc::new(connection).work(),
            Err(error) => {
                // Nothing more is said, and who hears nothing goes.
                stream.close();
                (self.tell)(&format!("{peer}: {error}"));
            }
        }
    }

    fn agree(self: &Arc<Self>, stream: &Arc<Stream>, peer: Peer) -> Result<Connection> {
        let mut talk = Timed::new(stream);
        let greeted = handshake::receive(&mut talk, self.key.as_ref())?;
        let session = match self.find(greeted.wish, peer) {
            Some(session) => session,
            None => self
                .new_session(peer)
                .inspect_err(|error| handshake::refuse(&mut talk, &error.to_string()))?,
        };
        let generation = self
            .welcome(&greeted, &session, (stream, &mut talk))
            .inspect_err(|_| {
                // As it was before, or as one that was never there.
                session.lose();
            })?;
        let input = Input::new(talk.finish()?, wire::REQUEST_MAX);
        Ok(Connection::new(self.clone(), session, generation, input))
    }

    /// The session that the client names, if it is its own.
    fn find(&self, wish: Wish, peer: Peer) -> Option<Arc<Session>> {
        let is_same = |session: &&Arc<Session>| {
            session.id == wish.session && (session.peer == peer || matches!(peer, Peer::Network(_)))
        };
        self.sessions.lock().iter().find(is_same).cloned()
    }

    fn new_session(self: &Arc<Self>, peer: Peer) -> Result<Arc<Session>> {
        let share = &self.share;
        let adapter = Arc::new(Adapter::new(share.kernel.clone(), share.permissions));
        // What the host does not tell of, times to live are for, and then size and times for the
        // data.
        adapter.watch_changes();
        let options = wire::ClientOptions {
            generation: next_generation(),
            has_external_writers: adapter.is_shared(),
            ..share.options.clone()
        };
        let wire = wire::Server::new(adapter, share.permissions, options);
        let session = Arc::new(Session::new(
            handshake::new_session_id()?,
            peer,
            wire,
            self.limits,
        ));
        {
            let mut sessions = self.sessions.lock();
            if sessions.len() >= self.limits.clients || self.is_stopping() {
                return Err(Error::new(
                    Errno::BUSY,
                    "the share has as many clients as it may have",
                ));
            }
            sessions.push(session.clone());
        }
        let teller = session.clone();
        if !self.start("share changes", move || teller.tell_changes()) {
            self.end(&session, "the host gives no more threads");
            return Err(Error::new(
                Errno::AGAIN,
                "the server's host gives no more threads",
            ));
        }
        Ok(session)
    }

    /// Says the last word of the handshake, and has the session go on over the stream.
    fn welcome(
        &self,
        greeted: &Greeted,
        session: &Session,
        (stream, talk): (&Arc<Stream>, &mut Timed),
    ) -> Result<u64> {
        let is_resumed = greeted.wish.session == session.id;
        let _one_at_a_time = session.resuming.lock();
        let grant = Grant {
            is_resumed,
            kernel_judges: self.share.permissions == PermissionChecks::ByClient,
            session: session.id,
            received: session.link.detach(),
            message_bytes_max: wire::REQUEST_MAX as u32,
            under_way_bytes_max: UNDER_WAY_BYTES_MAX as u32,
            grace_s: u32::try_from(self.limits.grace.as_secs()).unwrap_or(u32::MAX),
            share: self.share.name.clone(),
        };
        greeted.welcome(talk, self.key.as_ref(), &grant)?;
        session.attach(
            stream.clone(),
            if is_resumed { greeted.wish.received } else { 0 },
        )
    }
}

/// Why a session ends that its client has ended.
pub(super) const GOODBYE: &str = "goodbye";

/// The generation of a session's inodes: of the time, so that none is met again after a restart,
/// and never the same. A client's kernel finds by it that an inode of a session before is not this
/// one. It keeps 32 bits.
fn next_generation() -> u32 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let now = since.as_millis() as u64;
    let next = |last: u64| Some(now.max(last + 1));
    let last = LAST
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
        .unwrap_or_default();
    // Below are the generations that a number has within a session.
    (next(last).unwrap_or_default() as u32) << 6
}

/// One thread's place, given up when it ends, however that is.
struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::SeqCst);
        // Who waits for it has looked and sleeps, or has not looked yet.
        drop(self.0.sessions.lock());
        self.0.changed.notify_all();
    }
}

/// The client has gone before it was accepted, or a signal came.
fn is_passing(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, NotConnected, WouldBlock};
    matches!(
        error.kind(),
        ConnectionAborted | Interrupted | ConnectionReset | NotConnected | WouldBlock
    )
}

/// The host is out of descriptors or memory, which passes when others go.
fn is_full(error: &io::Error) -> bool {
    let full = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| full.contains(&errno))
}
