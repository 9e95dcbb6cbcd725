//! Threads for requests that wait for devices, so that the threads of the queues do not.

use crate::server::{Outcome, Server};
use crate::wire::Message;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

/// A request for a worker.
pub(super) struct SlowRequest {
    pub(super) bytes: Vec<u8>,
    /// Its slot in the queue.
    pub(super) slot: usize,
    pub(super) replies: Arc<Replies>,
}

/// The replies for one queue.
pub(super) struct Replies {
    /// Slots with their replies; `None` for a malformed request.
    ready: Mutex<Vec<(usize, Option<Message>)>>,
    /// Readable when a reply is ready.
    event: OwnedFd,
}

impl Replies {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            ready: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Returns the descriptor to poll.
    pub(super) fn event(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Takes the replies that are ready.
    pub(super) fn take(&self) -> Vec<(usize, Option<Message>)> {
        // Before the list: a reply that comes later makes the event readable again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut ready)
    }

    fn add(&self, slot: usize, reply: Option<Message>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the event: the thread that wakes takes it.
        ready.push((slot, reply));
        drop(ready);
        // Fails only if the counter is at its maximum, and thus readable.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// One worker's end of the queue of slow requests.
pub(super) struct Workers(Arc<Mutex<Receiver<SlowRequest>>>);

impl Workers {
    pub(super) fn new(requests: Arc<Mutex<Receiver<SlowRequest>>>) -> Self {
        Self(requests)
    }

    /// Handles requests until all queues have ended.
    pub(super) fn serve(&self, server: &Server) {
        while let Some(request) = self.next() {
            let mut reply = Message::default();
            let outcome = server.handle(&request.bytes, &mut reply);
            let is_reply = matches!(outcome, Outcome::Replied | Outcome::Ended);
            request.replies.add(request.slot, is_reply.then_some(reply));
        }
    }

    fn next(&self) -> Option<SlowRequest> {
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        requests.recv().ok()
    }
}
