//! One client's session: its nodes and open files, and what it has still to hear. It outlives a
//! stream that is lost.

use super::effects::effects;
use crate::frame::{Frame, Kind};
use crate::handshake::SessionId;
use crate::link::{Breach, Link};
use crate::stream::{Peer, Stream};
use folio::Errno;
use folio_fuse::adapter::{Adapter, Invalidator};
use folio_fuse::wire::{self, Message, Notice, Outcome};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes that may wait for a client: more than it may have under way, and then some.
pub(super) const WAITING_BYTES_MAX: usize = 2 * super::UNDER_WAY_BYTES_MAX;
/// Changes are not told to a client that has this much to take already.
const BUSY_BYTES: usize = 4 << 20;
/// How often it is looked whether such a client has taken something.
const BUSY: Duration = Duration::from_millis(20);

/// A session.
pub(crate) struct Session {
    pub(super) id: SessionId,
    pub(super) peer: Peer,
    pub(super) link: Link,
    /// One that resumes the session at a time.
    pub(super) resuming: Mutex<()>,
    wire: wire::Server,
    limits: super::Limits,
    life: Mutex<Life>,
    /// Told when there is a stream, or the session is over.
    awake: Condvar,
    /// Requests that are not answered yet.
    under_way: AtomicUsize,
    again: Mutex<Again>,
}

/// Names in nodes.
type Names = HashMap<u64, Vec<Box<[u8]>>>;

/// What is told once more when the replies that were under way are sent.
#[derive(Default)]
struct Again {
    /// Names that were told just now; their node comes next.
    names: Names,
    /// Nodes that were told, with such names.
    nodes: Names,
}

#[derive(Default)]
struct Life {
    /// Since when there is no stream.
    lost: Option<Instant>,
    is_over: bool,
}

impl Session {
    pub(super) fn new(
        id: SessionId,
        peer: Peer,
        wire: wire::Server,
        limits: super::Limits,
    ) -> Self {
        Self {
            id,
            peer,
            link: Link::new(WAITING_BYTES_MAX),
            resuming: Mutex::new(()),
            wire,
            limits,
            life: Mutex::default(),
            awake: Condvar::new(),
            under_way: AtomicUsize::new(0),
            again: Mutex::default(),
        }
    }

    pub(super) fn adapter(&self) -> &Adapter {
        self.wire.adapter()
    }

    /// Goes on over a new stream; see [`Link::attach`].
    pub(super) fn attach(&self, stream: Arc<Stream>, theirs: u64) -> folio::Result<u64> {
        let generation = self.link.attach(stream, theirs)?;
        self.life.lock().lost = None;
        self.awake.notify_all();
        Ok(generation)
    }

    /// The stream is gone; the session waits for another. If it does already, it has since it began
    /// to.
    pub(super) fn lose(&self) {
        self.life.lock().lost.get_or_insert_with(Instant::now);
    }

    /// When the session's time is over if no stream comes; `None` if it has one.
    pub(super) fn dies_at(&self) -> Option<Instant> {
        self.life.lock().lost.map(|lost| lost + self.limits.grace)
    }

    pub(super) fn is_over(&self) -> bool {
        self.life.lock().is_over
    }

    /// Ends it: nodes and files are let go of, and the client is told why.
    pub(super) fn end(&self, why: &str) {
        if std::mem::replace(&mut self.life.lock().is_over, true) {
            return;
        }
        self.link.goodbye(why);
        self.link.detach();
        self.adapter().stop_pushing();
        self.awake.notify_all();
        self.wire.end();
    }

    /// Does what a request asks. Other sessions hear through `others` what that has changed.
    pub(super) fn attend(
        &self,
        request: &[u8],
        reply: &mut Message,
        others: impl FnMut(Notice<'_>),
    ) -> Result<(), Breach> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let telling = self.adapter().begin_reply();
        let attended = self.answer(request, reply, others);
        drop(telling);
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        attended
    }

    fn answer(
        &self,
        request: &[u8],
        reply: &mut Message,
        others: impl FnMut(Notice<'_>),
    ) -> Result<(), Breach> {
        if self.takes_too_much(request) {
            return self.link.push(refusal(request, Errno::NFILE));
        }
        match self.wire.handle(request, reply) {
            Outcome::Malformed => Err(Breach::Malformed),
            Outcome::Silent => Ok(()),
            Outcome::Replied | Outcome::Ended => {
                // Before anybody can know that it is done.
                effects(request, reply.bytes(), others);
                self.link.push(Frame::message(reply.bytes().to_vec()))
            }
        }
    }

    /// Whether the request would give the client more nodes or files than it may have.
    fn takes_too_much(&self, request: &[u8]) -> bool {
        /// Opcodes that add a node or a file (linux/fuse.h): LOOKUP, SYMLINK, MKNOD, MKDIR, LINK,
        /// OPEN, READ, WRITE, CREATE, READDIRPLUS, TMPFILE.
        const ADDING: [u8; 11] = [1, 6, 8, 9, 13, 14, 15, 16, 35, 44, 51];
        let (nodes, files) = self.adapter().load();
        let is_full = nodes >= self.limits.nodes || files >= self.limits.files;
        is_full && request.get(4).is_some_and(|opcode| ADDING.contains(opcode))
    }

    /// Another client has changed something.
    pub(super) fn changed(&self, notice: Notice<'_>) {
        match notice {
            Notice::Inode { node, .. } => self.adapter().report_node_change(node),
            Notice::Entry { parent, name } | Notice::Deleted { parent, name, .. } => {
                self.adapter().report_name_change(parent, name);
            }
            // No single request changes all of them.
            Notice::Names => {}
        }
    }

    /// Tells changes until the session is over: a thread of its own, so that nobody else waits for
    /// the client.
    pub(super) fn tell_changes(&self) {
        self.adapter().push_changes(self);
    }

    /// Waits until the client can be told something; meanwhile several changes of one thing become
    /// one.
    fn wait_to_tell(&self) -> io::Result<()> {
        let mut life = self.life.lock();
        loop {
            if life.is_over {
                return Err(io::ErrorKind::NotConnected.into());
            }
            // Looked at with the lock, which whoever attaches takes before it wakes us.
            if !self.link.is_attached() {
                self.awake.wait(&mut life);
            } else if self.link.waiting_bytes() > BUSY_BYTES {
                self.awake.wait_for(&mut life, BUSY);
            } else {
                return Ok(());
            }
        }
    }

    fn tell(&self, frame: Frame) -> io::Result<()> {
        self.link
            .push(frame)
            .map_err(|breach| io::Error::other(breach.words()))
    }

    fn tell_notice(&self, notice: Notice<'_>) -> io::Result<()> {
        let mut message = Vec::new();
        notice.encode(&mut message);
        self.tell(Frame::message(message))
    }
}

/// A change may overtake a reply that is older than it. What is told while replies are under way is
/// told again behind them: the node counts as unknown, so that the adapter comes back with it, and
/// names in it come along.
impl Invalidator for Session {
    fn invalidate_node(&self, node: u64) -> io::Result<bool> {
        self.wait_to_tell()?;
        let (before, now) = {
            let mut again = self.again.lock();
            (again.nodes.remove(&node), again.names.remove(&node))
        };
        for name in before.iter().flatten() {
            self.tell_notice(Notice::Entry { parent: node, name })?;
        }
        self.tell_notice(Notice::Inode {
            node,
            offset: 0,
            len_bytes: 0,
        })?;
        let is_again = before.is_some() && now.is_none();
        if is_again || self.under_way.load(Ordering::SeqCst) == 0 {
            return Ok(true);
        }
        self.again
            .lock()
            .nodes
            .insert(node, now.unwrap_or_default());
        Ok(false)
    }

    fn invalidate_name(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        self.wait_to_tell()?;
        self.tell_notice(Notice::Entry { parent, name })?;
        if self.under_way.load(Ordering::SeqCst) > 0 {
            self.again
                .lock()
                .names
                .entry(parent)
                .or_default()
                .push(name.into());
        }
        Ok(())
    }

    fn invalidate_all_names(&self) -> io::Result<()> {
        self.wait_to_tell()?;
        *self.again.lock() = Again::default();
        self.tell(Frame::empty(Kind::DropNames))
    }
}

/// A reply that says no.
fn refusal(request: &[u8], errno: Errno) -> Frame {
    let unique = request.get(8..16).unwrap_or(&[0; 8]);
    let head = [16_u32.to_ne_bytes(), (-errno.raw_os_error()).to_ne_bytes()].concat();
    Frame::message([&head[..], unique].concat())
}
