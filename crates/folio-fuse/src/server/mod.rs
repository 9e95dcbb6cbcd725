//! The server of one client: one table of FUSE operations over [`Caller`].
//!
//! ```text
//!   transport     /dev/fuse (mount/), a guest's queue (virtiofs/), a stream (folio-remote)
//!      |  request                        ^ reply
//!      v                                 |
//!   Server::handle --> call.rs    header, arguments, credentials, reply
//!      |  session.rs  capabilities     names.rs       look up, create, rename, unlink
//!      |  data.rs     files and bytes  listing.rs     read directories
//!      |  entry.rs    entries, TTLs    attributes.rs  stat, set, extended attributes
//!      |  request_counts.rs  the number of requests, by operation
//!      |  described.rs    changes as system calls, for an observer (observer.rs)
//!      |  raised.rs     answers to the thread that raises events (events/)
//!      |  event_sender.rs   its calls       caused_events.rs  events for other clients
//!      |  notifier.rs   its requests for calls, where it is a program in a guest
//!      v
//!   nodes/  the node's handle --> Caller  the system call          changes/  invalidations
//! ```
//!
//! An operation decodes its arguments, calls [`Caller`] on the node's handle, and encodes the
//! reply.
//!
//! Neighbors: transports above; `wire/`, `nodes/`, `changes/` and `local/` below.
//!
//! Locks, none held while another is taken: a shard of the node table, the queue of implicit files,
//! the change queue. Exception: the list of passed-through files (`local/backing.rs`) comes before
//! a shard. No lock is held during a call.
//!
//! Invariants:
//! - S1: any number of threads handle requests at the same time.
//! - S2: an entry that could not be sent is not counted, so the node table does not grow by replies
//!   that did not fit.

mod attributes;
mod call;
mod caused_events;
mod data;
mod described;
mod entry;
mod event_sender;
mod listing;
mod names;
mod notifier;
mod observer;
mod raised;
mod request_counts;
mod session;
#[cfg(test)]
mod tests;

use crate::changes::EventInbox;
use crate::changes::{self, ChangeQueue, Invalidator, ReplyGuard, StaleItem};
use crate::client_options::{ClientOptions, PermissionChecks};
use crate::events::{EventCalls, NotifierService};
use crate::local::LocalClient;
use crate::nodes::{ContentVersion, NodeTable, ROOT};
use crate::wire::abi::{InHeader, LseekIn, init};
use crate::wire::{self, Reply, op, request};
use call::Call;
use folio::syscall::{Caller, Credentials, Handle};
use folio::vfs::{ChangeListener, InodeNumber};
use folio::{Errno, Kernel, Result};
pub use observer::{CallObserver, ObservedCall, ObservedKind};
pub use request_counts::RequestCounts;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// Most nodes in one notice.
const PRUNE_MAX: usize = 512;

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The reply is complete.
    Replied,
    /// This request has no reply.
    Silent,
    /// The reply is complete, and the client has unmounted: it has released all nodes and files.
    Ended,
    /// Not a request: too short, too long, or not as long as its header states. There is no reply.
    Malformed,
}

/// The reason why a request must wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Data must be read from the device.
    Data,
    /// Data must be written, or the operation takes as long.
    Long,
}

/// The result of an operation.
enum Done {
    Replied,
    Silent,
    Ended,
    /// The operation would have to wait, and must not.
    MustWait,
}

/// A server of one client: the kernel behind /dev/fuse, one virtiofs device, or one stream. Calls
/// from any thread.
///
/// A transport that pushes changes ([`Server::push_changes`]) holds [`Server::begin_reply`] while a
/// request is handled and until its reply is sent.
pub struct Server {
    nodes: NodeTable,
    changes: Arc<ChangeQueue>,
    permissions: PermissionChecks,
    options: ClientOptions,
    /// If the client is the local kernel.
    local: Option<LocalClient>,
    /// Capabilities that both sides have: `abi::init`.
    capabilities: AtomicU64,
    counts: Arc<RequestCounts>,
    observer: OnceLock<Arc<dyn CallObserver>>,
    /// If events of external changes are raised for the watchers of the mount.
    event_calls: OnceLock<EventCalls>,
    /// If a program in the client's machine may raise them.
    notifier: OnceLock<NotifierService<Self>>,
    // Last, so that handles are dropped before the kernel may unmount.
    kernel: Arc<Kernel>,
}

impl Server {
    /// Creates a server of the file system mounted as `/` in `kernel`.
    pub fn new(kernel: Arc<Kernel>, permissions: PermissionChecks, options: ClientOptions) -> Self {
        let root = Caller::new(&kernel, &Credentials::root(), 0).root();
        Self {
            changes: Arc::new(ChangeQueue::new(root.number())),
            nodes: NodeTable::new(root, kernel.cache().objects().clone()),
            permissions,
            options,
            local: None,
            capabilities: AtomicU64::new(0),
            counts: Arc::default(),
            observer: OnceLock::new(),
            event_calls: OnceLock::new(),
            notifier: OnceLock::new(),
            kernel,
        }
    }

    /// Makes the kernel behind /dev/fuse the client.
    pub(crate) fn with_local_client(self, options: ClientOptions, local: LocalClient) -> Self {
        Self {
            options,
            local: Some(local),
            ..self
        }
    }

    /// Asks for events of external changes, before [`Server::watch_changes`].
    /// [`Server::send_events`] raises them.
    pub fn raise_events(&mut self) {
        self.changes.ask_for_events();
        let _ = self.event_calls.set(EventCalls::new());
    }

    /// Returns the state of raised events, if events are raised.
    pub(crate) fn event_calls(&self) -> Option<&EventCalls> {
        self.event_calls.get()
    }

    /// Returns the events to raise, if there are any.
    pub(crate) fn event_inbox(&self) -> Option<&EventInbox> {
        self.changes.inbox()
    }

    /// Returns the node of an inode.
    pub(crate) fn node_of(&self, number: InodeNumber) -> u64 {
        self.nodes.id_of(number.0)
    }

    /// Waits until all changes so far have been pushed, with a time limit.
    pub(crate) fn wait_until_pushed(&self) {
        self.changes.wait_until_sent();
    }

    /// Returns the options, to be changed before the first request.
    pub fn options_mut(&mut self) -> &mut ClientOptions {
        &mut self.options
    }

    /// Returns whether external writers may change the file system.
    pub fn is_shared(&self) -> bool {
        self.nodes.root().has_external_writers()
    }

    /// Returns the number of nodes that the client knows, and the number of open files.
    pub fn load(&self) -> (usize, usize) {
        self.nodes.len()
    }

    /// Returns the counters of the requests that have been handled.
    pub fn request_counts(&self) -> Arc<RequestCounts> {
        Arc::clone(&self.counts)
    }

    /// Shows changes to `observer` from now on. The first observer stays.
    pub fn observe(&self, observer: Arc<dyn CallObserver>) {
        let _ = self.observer.set(observer);
    }

    /// Handles `request` (header and body) and writes the reply. May wait for devices.
    pub fn handle(&self, request: &[u8], reply: &mut dyn Reply) -> Outcome {
        // Never an error if waiting is permitted.
        self.answer(request, reply, true)
            .unwrap_or(Outcome::Malformed)
    }

    /// Handles `request` if it need not wait, for a thread that has more requests to serve.
    ///
    /// # Errors
    /// [`Wait`] if the request must wait. Nothing was done; [`Server::handle`] does it, perhaps on
    /// another thread.
    pub fn handle_at_once(
        &self,
        request: &[u8],
        reply: &mut dyn Reply,
    ) -> std::result::Result<Outcome, Wait> {
        self.answer(request, reply, false)
    }

    /// Releases all nodes and files, as after an unmount: for a transport that has lost its client.
    pub fn end(&self) {
        self.nodes.clear();
        self.detach_notifier();
    }

    /// Subscribes to changes by external writers; returns false if the file system cannot report
    /// them. [`Server::push_changes`] sends them.
    pub fn watch_changes(&self) -> bool {
        let listener: Arc<dyn ChangeListener> = self.changes.clone();
        let has_notifications = self.nodes.root().listen(Arc::downgrade(&listener));
        if has_notifications {
            self.changes.enable_own_changes();
            // The question begins to watch the root, which no client looks up.
            let _ = self.nodes.root().stat();
        }
        has_notifications
    }

    /// Returns whether changes of the root are reported now.
    pub(crate) fn has_change_notifications(&self) -> bool {
        self.nodes.has_change_notifications(ROOT)
    }

    /// Sends changes to the client until [`Server::stop_pushing`].
    pub fn push_changes(&self, invalidator: &dyn Invalidator) {
        changes::push(&self.changes, &self.nodes, invalidator);
    }

    /// Asks the client to forget unused nodes whenever the memory of inodes and names is over its
    /// limit, until [`Server::stop_pushing`]. Returns at once from a client that has no such
    /// notice.
    pub fn prune_nodes(&self, invalidator: &dyn Invalidator) {
        while let Some(nodes) = self.nodes.next_to_prune() {
            for nodes in nodes.chunks(PRUNE_MAX) {
                if invalidator.prune_nodes(nodes).is_err() {
                    return;
                }
            }
        }
    }

    /// Ends [`Server::push_changes`] and [`Server::prune_nodes`].
    pub fn stop_pushing(&self) {
        self.changes.close();
        self.nodes.stop_pruning();
    }

    /// Counts a reply in progress. The guard is held from before the file system is asked for
    /// attributes or names until the reply that contains them is sent.
    pub fn begin_reply(&self) -> ReplyGuard<'_> {
        self.changes.begin_reply()
    }

    /// Reports that another client of the same kernel has changed a node: attributes, contents or
    /// both.
    pub fn report_node_change(&self, node: u64) {
        self.changes.add(StaleItem::Node(node));
    }

    /// Reports that another client of the same kernel has changed a name in a directory.
    pub fn report_name_change(&self, parent: u64, name: &[u8]) {
        self.changes.add(StaleItem::Name(parent, name.into()));
    }

    fn answer(
        &self,
        request: &[u8],
        reply: &mut dyn Reply,
        may_wait: bool,
    ) -> std::result::Result<Outcome, Wait> {
        let Some((header, arguments)) = request::split(request) else {
            return Ok(Outcome::Malformed);
        };
        if !may_wait && is_slow(header.opcode) {
            return Err(Wait::Long);
        }
        // An attempt that had to wait may have left bytes.
        reply.restart();
        let mut call = Call {
            header,
            arguments,
            credentials: &self.credentials(&header),
            reply,
            may_wait,
        };
        let done = match self.raised_call(&header, arguments) {
            // It changes nothing, and a file system that is read-only may change.
            Some(calls) => self.answer_raised(calls, &mut call),
            None => self
                .check_access(&header)
                .and_then(|()| self.dispatch_observed(&mut call)),
        };
        let (outcome, errno) = match done {
            Ok(Done::MustWait) => return Err(Wait::Data),
            Ok(Done::Silent) => (Outcome::Silent, 0),
            Ok(Done::Replied) => (Outcome::Replied, 0),
            Ok(Done::Ended) => (Outcome::Ended, 0),
            Err(error) => (Outcome::Replied, error.errno().raw_os_error()),
        };
        self.counts.add(header.opcode);
        if outcome != Outcome::Silent {
            wire::finish(call.reply, header.unique, errno);
        }
        Ok(outcome)
    }

    /// Returns the credentials to act with.
    fn credentials(&self, header: &InHeader) -> Credentials {
        match self.permissions {
            PermissionChecks::ByClient => Credentials {
                is_capable: true,
                ..Credentials::user(header.uid, header.gid, Vec::new())
            },
            PermissionChecks::Off => Credentials::root(),
        }
    }

    fn caller<'a>(&'a self, credentials: &'a Credentials, umask: u16) -> Caller<'a> {
        Caller::new(&self.kernel, credentials, umask)
    }

    /// EROFS for a change of a read-only file system, EACCES for a user without access.
    ///
    /// An open for writing is refused by the client's kernel, which knows that it has mounted it
    /// read-only, or else by the write.
    fn check_access(&self, header: &InHeader) -> Result<()> {
        const CHANGES: [u32; 16] = [
            op::SETATTR,
            op::SYMLINK,
            op::MKNOD,
            op::MKDIR,
            op::UNLINK,
            op::RMDIR,
            op::RENAME,
            op::RENAME2,
            op::LINK,
            op::WRITE,
            op::SETXATTR,
            op::REMOVEXATTR,
            op::CREATE,
            op::FALLOCATE,
            op::COPY_FILE_RANGE,
            op::TMPFILE,
        ];
        if self.options.read_only && CHANGES.contains(&header.opcode) {
            return Err(Errno::ROFS.into());
        }
        match &self.local {
            Some(local) if local.denies(header) => Err(Errno::ACCESS.into()),
            _ => Ok(()),
        }
    }

    fn dispatch_observed(&self, call: &mut Call<'_>) -> Result<Done> {
        let Some(observer) = self.observer.get() else {
            return self.dispatch(call);
        };
        let Some(observed) = self.described(&call.header, call.arguments) else {
            return self.dispatch(call);
        };
        if !call.may_wait {
            // An attempt that has to wait would be seen twice.
            return Ok(Done::MustWait);
        }
        let mut done = Err(Errno::IO.into());
        let failed = observer.observe(&observed, &mut || done = self.dispatch(call));
        match failed {
            Some(errno) => {
                call.reply.restart();
                Err(errno.into())
            }
            None => done,
        }
    }

    fn dispatch(&self, call: &mut Call<'_>) -> Result<Done> {
        let replied = match call.header.opcode {
            op::INIT => self.init(call),
            op::DESTROY => {
                self.end();
                return Ok(Done::Ended);
            }
            op::FORGET | op::BATCH_FORGET => {
                // There is no reply that could report an error.
                let _ = self.forget(call);
                return Ok(Done::Silent);
            }
            // The interrupted request has been handled, or its reply is on its way.
            op::INTERRUPT | op::NOTIFY_REPLY => return Ok(Done::Silent),
            op::READ => return self.read(call),
            op::LOOKUP => self.lookup(call),
            op::GETATTR => self.getattr(call),
            op::SETATTR => self.setattr(call),
            op::STATX => self.statx(call),
            op::READLINK => self.readlink(call),
            op::SYMLINK => self.symlink(call),
            op::MKNOD => self.mknod(call),
            op::MKDIR => self.mkdir(call),
            op::UNLINK => self.unlink(call),
            op::RMDIR => self.rmdir(call),
            op::RENAME | op::RENAME2 => self.rename(call),
            op::LINK => self.link(call),
            op::OPEN => self.open(call),
            op::CREATE => self.create(call),
            op::TMPFILE => self.tmpfile(call),
            op::WRITE => self.write(call),
            op::RELEASE => self.release(call),
            op::FSYNC => self.fsync(call),
            op::FSYNCDIR => self.fsyncdir(call),
            op::SYNCFS => self.kernel.process(Credentials::root()).sync(),
            op::STATFS => self.statfs(call),
            op::IOCTL => self.ioctl(call),
            op::GETXATTR => self.getxattr(call),
            op::LISTXATTR => self.listxattr(call),
            op::SETXATTR => self.setxattr(call),
            op::REMOVEXATTR => self.removexattr(call),
            op::OPENDIR => self.opendir(call),
            op::RELEASEDIR => Ok(()),
            op::READDIR => self.readdir(call),
            op::READDIRPLUS => self.readdirplus(call),
            op::FALLOCATE => self.fallocate(call),
            op::LSEEK => self.lseek(call),
            op::COPY_FILE_RANGE => self.copy_file_range(call),
            // Locks are the client kernel's; FLUSH has nothing to do at close(2), and ACCESS is
            // checked before a request. After ENOSYS the kernel does not send them again.
            _ => Err(Errno::NOSYS.into()),
        };
        replied.map(|()| Done::Replied)
    }

    /// Returns whether the local mount was made with this word of `-o`.
    fn was_given(&self, word: &str) -> bool {
        self.local
            .as_ref()
            .is_some_and(|local| local.was_given(word))
    }

    /// Returns whether the local kernel opens files of the host by itself.
    fn skips_host_open(&self) -> bool {
        self.local.as_ref().is_some_and(LocalClient::skips_open)
    }

    /// Returns the node whose data the client must write back before `request` is handled, and the
    /// offset of the first byte concerned: a search for data or holes while the client delays
    /// writes. The kernel does not write them back by itself. Linux: `fuse_lseek`.
    pub(crate) fn must_be_flushed(&self, request: &[u8]) -> Option<(u64, u64)> {
        let (header, mut arguments) = request::split(request)?;
        if header.opcode != op::LSEEK || !self.has(init::WRITEBACK_CACHE) || self.is_over_uring() {
            return None;
        }
        let args: LseekIn = arguments.take().ok()?;
        Some((header.node, args.offset))
    }

    /// Notes that the client has changed the inode behind `handle`.
    fn note_own_change(&self, handle: &Handle) {
        if self.changes.needs_own_changes() {
            let version = ContentVersion::of(&handle.attributes());
            let node = self.nodes.id(handle);
            self.changes.note_own_change(node, version);
        }
    }
}

/// Returns whether the reply to a request contains attributes or names ([`Server::begin_reply`]).
pub(crate) fn replies_with_attributes(request: &[u8]) -> bool {
    request::split(request).is_some_and(|(header, _)| {
        matches!(
            header.opcode,
            op::LOOKUP
                | op::GETATTR
                | op::STATX
                | op::SETATTR
                | op::SYMLINK
                | op::MKNOD
                | op::MKDIR
                | op::LINK
                | op::CREATE
                | op::TMPFILE
                | op::READDIRPLUS
        )
    })
}

/// Returns whether a request usually waits for devices.
fn is_slow(opcode: u32) -> bool {
    matches!(
        opcode,
        op::FSYNC
            | op::FSYNCDIR
            | op::SYNCFS
            | op::IOCTL
            | op::FALLOCATE
            | op::COPY_FILE_RANGE
            | op::DESTROY
    )
}
