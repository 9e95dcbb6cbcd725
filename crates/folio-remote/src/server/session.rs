//! One client's session: its nodes and open files, and the frames that it has still to receive. It
//! outlives a lost stream.

use super::effects::{Effect, for_each_effect, has_succeeded};
use super::limits::{Limits, UNDER_WAY_BYTES_MAX};
use crate::frame::{Frame, FrameKind};
use crate::handshake::SessionId;
use crate::link::{Link, ProtocolViolation};
use folio::Errno;
use folio::vfs::FileEvent;
use folio_fuse::wire::{Message, Notice};
use folio_fuse::{EventCall, EventCallError, EventCaller, Invalidator, Outcome};
use folio_net::{Peer, Stream};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The reason of a session's end by its own client.
pub(super) const CLIENT_GOODBYE: &str = "goodbye";
/// Bytes that may wait for a client: more than it may have under way.
const WAITING_BYTES_MAX: usize = 2 * UNDER_WAY_BYTES_MAX;
/// Waiting bytes from which on no changes are sent to a client.
const BUSY_BYTES: usize = 4 << 20;
/// Time between checks whether a busy client has taken bytes.
const BUSY_INTERVAL: Duration = Duration::from_millis(20);

/// A session.
pub(crate) struct Session {
    pub(super) id: SessionId,
    pub(super) peer: Peer,
    pub(super) link: Link,
    /// Held while a stream is being attached, so that streams are attached one after another.
    pub(super) resuming: Mutex<()>,
    fuse: folio_fuse::Server,
    limits: Limits,
    lifetime: Mutex<Lifetime>,
    /// Notified when there is a stream, or the session has ended.
    can_send: Condvar,
    /// Requests that are not answered yet.
    under_way: AtomicUsize,
    repeats: Mutex<RepeatedChanges>,
    /// Whether the client's watchers get events.
    pub(super) sends_events: bool,
    event_results: Mutex<EventResults>,
    /// Notified on a result, or the end of the session.
    event_returned: Condvar,
}

/// Results of calls that raise events in the client's kernel.
#[derive(Default)]
struct EventResults {
    last: Option<Result<(), EventCallError>>,
    has_ended: bool,
}

/// Names by directory node.
type NamesByNode = HashMap<u64, Vec<Box<[u8]>>>;

/// Changes that are sent once more, after the replies that were under way.
#[derive(Default)]
struct RepeatedChanges {
    /// Names that were sent just now; their node comes next.
    names: NamesByNode,
    /// Nodes that were sent, each with such names.
    nodes: NamesByNode,
}

#[derive(Default)]
struct Lifetime {
    /// The time since which there is no stream.
    lost_at: Option<Instant>,
    has_ended: bool,
}

impl Session {
    pub(super) fn new(id: SessionId, peer: Peer, fuse: folio_fuse::Server, limits: Limits) -> Self {
        Self {
            id,
            peer,
            link: Link::new(WAITING_BYTES_MAX),
            resuming: Mutex::new(()),
            fuse,
            limits,
            lifetime: Mutex::default(),
            can_send: Condvar::new(),
            under_way: AtomicUsize::new(0),
            repeats: Mutex::default(),
            sends_events: false,
            event_results: Mutex::default(),
            event_returned: Condvar::new(),
        }
    }

    /// Continues over a new stream; see [`Link::attach`].
    pub(super) fn attach(&self, stream: Arc<Stream>, peer_received: u64) -> folio::Result<u64> {
        let generation = self.link.attach(stream, peer_received)?;
        self.lifetime.lock().lost_at = None;
        self.can_send.notify_all();
        Ok(generation)
    }

    /// Starts the grace of a session without a stream, unless it has started already.
    pub(super) fn start_grace(&self) {
        self.lifetime
            .lock()
            .lost_at
            .get_or_insert_with(Instant::now);
    }

    /// Returns when the session's grace ends; `None` if it has a stream.
    pub(super) fn expires_at(&self) -> Option<Instant> {
        self.lifetime
            .lock()
            .lost_at
            .map(|lost_at| lost_at + self.limits.grace)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lifetime.lock().has_ended
    }

    /// Ends the session: releases nodes and files, and sends the reason to the client.
    pub(super) fn end(&self, reason: &str) {
        // Several threads may find the end; one of them releases.
        if std::mem::replace(&mut self.lifetime.lock().has_ended, true) {
            return;
        }
        self.link.send_goodbye(reason);
        // Before the nodes are released: no later request is accepted.
        self.link.detach();
        self.fuse.stop_pushing();
        self.can_send.notify_all();
        self.event_results.lock().has_ended = true;
        self.event_returned.notify_all();
        self.fuse.end();
    }

    /// Returns the events that a request causes for other clients, before it runs.
    pub(super) fn caused_events(&self, request: &[u8]) -> Vec<FileEvent> {
        self.fuse.caused_events(request)
    }

    /// Runs a request and queues its reply. Passes its changes to `notify_other_clients`, and
    /// `events` if it succeeds.
    ///
    /// # Errors
    /// A violation of the protocol, which ends the session.
    pub(super) fn run_request(
        &self,
        request: &[u8],
        reply: &mut Message,
        events: &[FileEvent],
        notify_other_clients: impl FnMut(Effect<'_>),
    ) -> Result<(), ProtocolViolation> {
        // Before the file system is asked: a change after its answer may overtake the reply (S3).
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let reply_guard = self.fuse.begin_reply();
        let run = self.run_counted_request(request, reply, events, notify_other_clients);
        drop(reply_guard);
        // Only with the reply in the queue: a later change cannot overtake it.
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        run
    }

    fn run_counted_request(
        &self,
        request: &[u8],
        reply: &mut Message,
        events: &[FileEvent],
        mut notify_other_clients: impl FnMut(Effect<'_>),
    ) -> Result<(), ProtocolViolation> {
        if self.exceeds_limits(request) {
            return self.link.push(error_reply(request, Errno::NFILE));
        }
        // Asked only once: another request may change the answer.
        let raises_event = self.fuse.raises_event(request);
        match self.fuse.handle(request, reply) {
            Outcome::Malformed => Err(ProtocolViolation::MalformedMessage),
            Outcome::Silent => Ok(()),
            Outcome::Replied | Outcome::Ended => {
                // Before the client's reply: then no program can know of a change that another
                // client has not been notified of. A request that raises an event changes nothing.
                if !raises_event {
                    let notify = |notice: Notice<'_>| notify_other_clients(Effect::Notice(notice));
                    for_each_effect(request, reply.bytes(), notify);
                    if has_succeeded(reply.bytes()) {
                        events
                            .iter()
                            .for_each(|event| notify_other_clients(Effect::Event(event)));
                    }
                }
                self.link.push(Frame::message(reply.bytes().to_vec()))
            }
        }
    }

    /// Returns whether the request would give the client more nodes or files than allowed.
    fn exceeds_limits(&self, request: &[u8]) -> bool {
        /// Opcodes that add a node or a file (linux/fuse.h): LOOKUP, SYMLINK, MKNOD, MKDIR, LINK,
        /// OPEN, READ, WRITE, CREATE, READDIRPLUS, TMPFILE.
        const ADDING: [u8; 11] = [1, 6, 8, 9, 13, 14, 15, 16, 35, 44, 51];
        let (nodes, files) = self.fuse.load();
        let is_full = nodes >= self.limits.nodes || files >= self.limits.files;
        is_full && request.get(4).is_some_and(|opcode| ADDING.contains(opcode))
    }

    /// Queues a change by another client.
    pub(super) fn report_change(&self, effect: Effect<'_>) {
        match effect {
            Effect::Notice(Notice::Inode { node, .. }) => self.fuse.report_node_change(node),
            Effect::Notice(
                Notice::Entry { parent, name } | Notice::Deleted { parent, name, .. },
            ) => self.fuse.report_name_change(parent, name),
            // No single request changes all names, or asks to forget nodes.
            Effect::Notice(Notice::Names | Notice::Prune { .. }) => {}
            Effect::Event(event) => self.fuse.report_event(event),
        }
    }

    /// Raises events by the client's thread until the session ends.
    ///
    /// # Errors
    /// EOPNOTSUPP if that thread cannot be recognized.
    pub(super) fn send_events(&self) -> folio::Result<()> {
        if self.next_event_result().is_none() {
            return Ok(());
        }
        self.fuse.send_events(self)
    }

    /// Notes the result of a call that raises an event.
    pub(super) fn receive_event_result(&self, body: &[u8]) {
        let number = body.try_into().map_or(i32::MAX, i32::from_le_bytes);
        self.event_results.lock().last = Some(EventCallError::decode(number));
        self.event_returned.notify_all();
    }

    /// Waits for the result of a call; `None` once the session has ended.
    fn next_event_result(&self) -> Option<Result<(), EventCallError>> {
        let mut results = self.event_results.lock();
        self.event_returned.wait_while(&mut results, |results| {
            results.last.is_none() && !results.has_ended
        });
        results.last.take()
    }

    /// Sends queued changes to the client until the session ends. It has a thread of its own, so
    /// that no other thread waits for the client.
    pub(super) fn push_changes(&self) {
        self.fuse.push_changes(self);
    }

    /// Waits until a change can be sent to the client. Meanwhile the server merges several changes
    /// of one node or name.
    ///
    /// # Errors
    /// `NotConnected` once the session has ended.
    fn wait_until_sendable(&self) -> io::Result<()> {
        let mut lifetime = self.lifetime.lock();
        loop {
            if lifetime.has_ended {
                return Err(io::ErrorKind::NotConnected.into());
            }
            // Checked under the lock, which `attach` takes before it notifies.
            if !self.link.is_attached() {
                self.can_send.wait(&mut lifetime);
            } else if self.link.waiting_bytes() > BUSY_BYTES {
                self.can_send.wait_for(&mut lifetime, BUSY_INTERVAL);
            } else {
                return Ok(());
            }
        }
    }

    /// Returns whether a notice that is queued after this call may overtake an older reply. Asked
    /// before it is queued: a reply may follow it, and its request be done, before it is sent.
    fn may_overtake_reply(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }

    fn send(&self, frame: Frame) -> io::Result<()> {
        self.link
            .push(frame)
            .map_err(|violation| io::Error::other(violation.message()))
    }

    fn send_notice(&self, notice: Notice<'_>) -> io::Result<()> {
        let mut message = Vec::new();
        notice.encode(&mut message);
        self.send(Frame::message(message))
    }
}

impl EventCaller for Session {
    fn make(&self, call: &EventCall) -> Result<(), EventCallError> {
        let mut body = Vec::new();
        call.encode(&mut body);
        let lost = Err(EventCallError::Unreachable(Errno::NOTCONN));
        self.event_results.lock().last = None;
        if self.wait_until_sendable().is_err() || self.send(Frame::event_call(body)).is_err() {
            return lost;
        }
        self.next_event_result().unwrap_or(lost)
    }

    fn release(&self) {
        // The client's mount stays open if the queue is full.
        let _ = self.send(Frame::event_call(Vec::new()));
    }
}

/// A change may overtake a reply that is older than it. So a change that is sent while replies are
/// under way is sent again after them: [`Invalidator::invalidate_node`] returns false as if the
/// node were unknown, the server repeats it later, and the names in the node are repeated with it.
impl Invalidator for Session {
    fn invalidate_node(&self, node: u64, len_bytes: i64) -> io::Result<bool> {
        self.wait_until_sendable()?;
        let (repeated, new) = {
            let mut repeats = self.repeats.lock();
            (repeats.nodes.remove(&node), repeats.names.remove(&node))
        };
        for name in repeated.iter().flatten() {
            self.send_notice(Notice::Entry { parent: node, name })?;
        }
        let may_overtake = self.may_overtake_reply();
        self.send_notice(Notice::Inode {
            node,
            offset: 0,
            len_bytes,
        })?;
        let is_repeat = repeated.is_some() && new.is_none();
        if is_repeat || !may_overtake {
            return Ok(true);
        }
        self.repeats
            .lock()
            .nodes
            .insert(node, new.unwrap_or_default());
        Ok(false)
    }

    fn invalidate_name(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        self.wait_until_sendable()?;
        let may_overtake = self.may_overtake_reply();
        self.send_notice(Notice::Entry { parent, name })?;
        if may_overtake {
            self.repeats
                .lock()
                .names
                .entry(parent)
                .or_default()
                .push(name.into());
        }
        Ok(())
    }

    fn invalidate_all_names(&self) -> io::Result<()> {
        self.wait_until_sendable()?;
        // All names are dropped below, those to be repeated included.
        *self.repeats.lock() = RepeatedChanges::default();
        self.send(Frame::empty(FrameKind::DropNames))
    }
}

/// Encodes a reply that fails with `errno`.
fn error_reply(request: &[u8], errno: Errno) -> Frame {
    let unique = request.get(8..16).unwrap_or(&[0; 8]);
    let header = [16_u32.to_ne_bytes(), (-errno.raw_os_error()).to_ne_bytes()].concat();
    Frame::message([&header[..], unique].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::{Kernel, KernelOptions};
    use folio_fuse::{ClientOptions, PermissionChecks};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn session() -> Session {
        let kernel = Kernel::new(KernelOptions::default());
        let options = ClientOptions::exclusive();
        let fuse = folio_fuse::Server::new(kernel, PermissionChecks::Off, options);
        Session::new(SessionId::default(), Peer::User(0), fuse, Limits::default())
    }

    /// Runs `notify` while a reply is under way: it follows the notice into the queue, and is done
    /// before the notice is sent.
    fn with_reply_after_notice<T: Send>(
        session: &Session,
        notify: impl FnOnce() -> io::Result<T> + Send,
    ) -> T {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let mut full = ours.try_clone().unwrap();
        session.attach(Arc::new(ours.into()), 0).unwrap();
        full.set_nonblocking(true).unwrap();
        while full.write(&[0; 4096]).is_ok() {}
        while full.write(&[0]).is_ok() {}
        full.set_nonblocking(false).unwrap();
        let before = session.link.waiting_bytes();
        session.under_way.fetch_add(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let notifying = scope.spawn(notify);
            while session.link.waiting_bytes() == before {
                std::thread::yield_now();
            }
            session.link.push(Frame::message(vec![0; 16])).unwrap();
            session.under_way.fetch_sub(1, Ordering::SeqCst);
            peer.set_read_timeout(Some(BUSY_INTERVAL)).unwrap();
            let mut bytes = [0; 4096];
            while !notifying.is_finished() {
                let _ = peer.read(&mut bytes);
            }
            notifying.join().unwrap().unwrap()
        })
    }

    #[test]
    fn notice_before_a_reply_is_repeated() {
        let session = session();
        let is_final = with_reply_after_notice(&session, || session.invalidate_node(5, 0));
        assert!(!is_final && session.repeats.lock().nodes.contains_key(&5));
        with_reply_after_notice(&session, || session.invalidate_name(6, b"name"));
        assert!(session.repeats.lock().names.contains_key(&6));
        // The repetition comes after that reply, and is the last one.
        assert!(with_reply_after_notice(&session, || session.invalidate_node(5, 0)));
    }
}
