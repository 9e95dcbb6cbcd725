//! The queue of invalidations for the kernel. A thread of its own writes them: the kernel accepts a
//! notice only once it has the lock of the page or directory concerned, and the holder of that lock
//! may be waiting for a reply.

use super::kernel_cache::{ChildName, KernelCache};
use crate::frame::Frame;
use crate::link::{Link, ProtocolViolation};
use folio_fuse::wire::Notice;
use folio_fuse::{EventCallError, ROOT};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Most queued messages. With more, everything is invalidated instead.
const WAITING_MAX: usize = 4096;
/// Codes of the messages that are forwarded (linux/fuse.h, `enum fuse_notify_code`): none that puts
/// data into the kernel's cache or reads data from it.
const FORWARDED_CODES: [i32; 3] = [2, 3, 6];

/// The queue.
#[derive(Default)]
pub(super) struct Notices {
    queue: Mutex<NoticeQueue>,
    changed: Condvar,
    /// Held while a notice is written, and while a call raises an event. A client that is killed
    /// during both would never end: the call has the lock of a directory, which the notice waits
    /// for with /dev/fuse open.
    turn: Mutex<()>,
}

/// A call of the server that raises an event, in the session of its link.
pub(super) struct RemoteCall {
    pub(super) link: Arc<Link>,
    /// An [`EventCall`](folio_fuse::EventCall) as bytes; empty at the end of a burst.
    pub(super) bytes: Vec<u8>,
}

/// The result of a call.
type CallResult = Result<(), EventCallError>;

enum QueuedNotice {
    Message(Vec<u8>),
    /// Made after the notices before it are written.
    Call(RemoteCall),
}

#[derive(Default)]
struct NoticeQueue {
    messages: VecDeque<QueuedNotice>,
    /// Results of calls, each for the session of its link. The thread of the calls has a table of
    /// descriptors without the streams.
    results: VecDeque<(Arc<Link>, CallResult)>,
    /// The link of a call whose result is not queued yet.
    calling: Option<Arc<Link>>,
    /// Whether `messages` has the end of a burst.
    has_burst_end: bool,
    drops_all_names: bool,
    drops_all_nodes: bool,
    has_ended: bool,
}

impl Notices {
    /// Queues a message of the server.
    pub(super) fn add(&self, message: Vec<u8>) {
        let code = message
            .get(4..8)
            .and_then(|code| Some(i32::from_ne_bytes(code.try_into().ok()?)));
        if !code.is_some_and(|code| FORWARDED_CODES.contains(&code)) {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.messages.len() >= WAITING_MAX {
            queue.drop_everything();
        } else {
            queue.messages.push_back(QueuedNotice::Message(message));
        }
        self.changed.notify_one();
    }

    /// Queues a call that raises an event.
    ///
    /// # Errors
    /// A violation of the protocol if the server has not waited for the result of the call before.
    pub(super) fn add_call(&self, call: RemoteCall) -> Result<(), ProtocolViolation> {
        let mut queue = self.queue.lock();
        if call.bytes.is_empty() {
            if std::mem::replace(&mut queue.has_burst_end, true) {
                return Ok(());
            }
        } else {
            match queue.calling.replace(call.link.clone()) {
                Some(before) if Arc::ptr_eq(&before, &call.link) => {
                    return Err(ProtocolViolation::MalformedMessage);
                }
                // No server waits for the result of a call of an earlier session.
                Some(_) => queue.messages.retain(|message| {
                    !matches!(message, QueuedNotice::Call(call) if !call.bytes.is_empty())
                }),
                None => {}
            }
        }
        queue.messages.push_back(QueuedNotice::Call(call));
        self.changed.notify_one();
        Ok(())
    }

    /// Queues the result of a call for the server.
    pub(super) fn add_result(&self, link: Arc<Link>, result: CallResult) {
        let mut queue = self.queue.lock();
        queue.calling.take_if(|calling| Arc::ptr_eq(calling, &link));
        queue.results.push_back((link, result));
        self.changed.notify_one();
    }

    /// Takes the turn to use the locks of directories in the kernel.
    pub(super) fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Queues the invalidation of all names.
    pub(super) fn drop_names(&self) {
        self.queue.lock().drops_all_names = true;
        self.changed.notify_one();
    }

    /// Queues the invalidation of all names and nodes.
    pub(super) fn drop_everything(&self) {
        self.queue.lock().drop_everything();
        self.changed.notify_one();
    }

    /// Ends [`Notices::write_until_end`].
    pub(super) fn end(&self) {
        self.queue.lock().has_ended = true;
        self.changed.notify_one();
    }

    /// Writes queued notices to `device` until the end, and passes calls on to `calls`. Reports
    /// when these cannot be made.
    ///
    /// Ignores errors of notices: the kernel refuses those for entries that it has not cached, and
    /// codes that it does not support.
    pub(super) fn write_until_end(
        &self,
        device: &OwnedFd,
        cache: &Mutex<KernelCache>,
        calls: &SyncSender<RemoteCall>,
        report: &dyn Fn(&str),
    ) {
        let mut is_reachable = true;
        let write = |message: &[u8]| {
            let _turn = self.take_turn();
            let _ = rustix::io::write(device, message);
        };
        loop {
            let mut queue = self.queue.lock();
            self.changed.wait_while(&mut queue, |queue| queue.is_idle());
            if queue.has_ended {
                return;
            }
            if let Some((link, result)) = queue.results.pop_front() {
                drop(queue);
                if let (true, Err(EventCallError::Unreachable(errno))) = (is_reachable, result) {
                    report(&format!(
                        "events wait: the mount cannot be reached ({errno}); \
                         another mount may hide it"
                    ));
                }
                is_reachable = !matches!(result, Err(EventCallError::Unreachable(_)));
                // The link has no limit.
                let _ = link.push(Frame::event_result(result));
                continue;
            }
            let (drops_all_names, drops_all_nodes) = (
                std::mem::take(&mut queue.drops_all_names),
                std::mem::take(&mut queue.drops_all_nodes),
            );
            let message = if drops_all_names || drops_all_nodes {
                None
            } else {
                queue.messages.pop_front()
            };
            if matches!(&message, Some(QueuedNotice::Call(call)) if call.bytes.is_empty()) {
                queue.has_burst_end = false;
            }
            drop(queue);
            match message {
                Some(QueuedNotice::Message(message)) => write(&message),
                // Without the thread of the calls, none is asked for.
                Some(QueuedNotice::Call(call)) => {
                    let _ = calls.send(call);
                }
                None => {
                    // Only now: entries that came since the mark was set are dropped, too.
                    let (nodes, names) = cache.lock().entries();
                    if drops_all_nodes {
                        nodes.iter().for_each(|node| write(&forget_node(*node)));
                    }
                    if drops_all_names {
                        // A kernel that supports this needs no other message.
                        write(&encoded(&Notice::Names));
                        names.iter().for_each(|name| write(&forget_name(name)));
                        write(&forget_node(ROOT));
                    }
                }
            }
        }
    }
}

impl NoticeQueue {
    fn is_idle(&self) -> bool {
        self.messages.is_empty()
            && self.results.is_empty()
            && !self.drops_all_names
            && !self.drops_all_nodes
            && !self.has_ended
    }

    /// Replaces all messages by the invalidation of everything.
    fn drop_everything(&mut self) {
        self.messages
            .retain(|message| matches!(message, QueuedNotice::Call(_)));
        (self.drops_all_names, self.drops_all_nodes) = (true, true);
    }
}

fn encoded(notice: &Notice<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    notice.encode(&mut message);
    message
}

fn forget_node(node: u64) -> Vec<u8> {
    encoded(&Notice::Inode {
        node,
        offset: 0,
        len_bytes: 0,
    })
}

fn forget_name(name: &ChildName) -> Vec<u8> {
    encoded(&Notice::Entry {
        parent: name.parent,
        name: &name.name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_before_last_result_is_a_violation() {
        let notices = Notices::default();
        let [one, two] = [(); 2].map(|()| Arc::new(Link::new(usize::MAX)));
        let add = |link: &Arc<Link>, bytes: &[u8]| {
            notices.add_call(RemoteCall {
                link: link.clone(),
                bytes: bytes.to_vec(),
            })
        };
        assert!(add(&one, b"call").is_ok() && add(&one, b"call").is_err());
        // The next session's call replaces it.
        assert!(add(&two, b"call").is_ok());
        // The result of the earlier session.
        notices.add_result(one, Ok(()));
        assert!(add(&two, b"call").is_err());
        notices.add_result(two.clone(), Ok(()));
        assert!(add(&two, b"call").is_ok());
        for _ in 0..100 {
            assert!(add(&two, b"").is_ok());
        }
        assert!(notices.queue.lock().messages.len() <= 4);
    }
}
