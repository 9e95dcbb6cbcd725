//! One stream of a session, and the threads that read its requests and run them.
//!
//! One thread reads. Once it has a request, another one reads on; a new thread starts if all are
//! busy. So a small request stays in one thread, and a slow one delays no other.

use super::effects::Effect;
use super::session::{CLIENT_GOODBYE, Session};
use super::state::ServerState;
use crate::frame::{FrameKind, FrameReader};
use crate::link::ProtocolViolation;
use folio_fuse::wire::Message;
use folio_net::{Job, StreamReader};
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads of one client, and so its requests that run at a time.
const THREADS_MAX: usize = 32;
/// Threads that wait for a turn to read.
const WAITING_MAX: usize = 2;

/// A stream of a session.
pub(super) struct Connection {
    state: Arc<ServerState>,
    session: Arc<Session>,
    /// The stream's number in the session's link.
    generation: u64,
    reader: Mutex<FrameReader<StreamReader>>,
    threads: AtomicUsize,
    waiting: AtomicUsize,
}

impl Connection {
    pub(super) fn new(
        state: Arc<ServerState>,
        session: Arc<Session>,
        generation: u64,
        reader: FrameReader<StreamReader>,
    ) -> Self {
        Self {
            state,
            session,
            generation,
            reader: Mutex::new(reader),
            threads: AtomicUsize::new(1),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Reads and runs requests until the stream ends or enough other threads do; the calling thread
    /// is the first.
    pub(super) fn work(self: Arc<Self>) {
        let mut reply = Message::default();
        while let Some(request) = self.next_request() {
            // Before the request runs: it may wait long, and the next must not wait for it.
            self.ensure_reader();
            let notify_other_clients =
                |effect: Effect<'_>| self.state.notify_other_sessions(&self.session, effect);
            let events = if self.state.needs_events_of(&self.session) {
                self.session.caused_events(&request)
            } else {
                Vec::new()
            };
            if let Err(violation) =
                self.session
                    .run_request(&request, &mut reply, &events, notify_other_clients)
            {
                self.state.end_session(&self.session, violation.message());
                break;
            }
        }
        self.threads.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits for the read turn and the next request; `None` if the thread is not needed any more.
    fn next_request(&self) -> Option<Vec<u8>> {
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let mut reader = self.reader.lock();
        let request = self.read_request(&mut reader);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        request
    }

    fn read_request(&self, reader: &mut FrameReader<StreamReader>) -> Option<Vec<u8>> {
        loop {
            let frame = match reader.next() {
                Ok(Some(frame)) => frame,
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    // The session goes on if it has a newer stream by now.
                    if self.session.link.is_current(self.generation) {
                        self.state.end_session(&self.session, &error.to_string());
                    }
                    return None;
                }
                Ok(None) | Err(_) => {
                    self.state.lose_stream(&self.session, self.generation);
                    return None;
                }
            };
            let arrived = self.session.link.receive(
                self.generation,
                frame.kind,
                frame.body.len(),
                frame.acknowledged,
            );
            match arrived {
                Ok(true) => {}
                Ok(false) => return None,
                Err(violation) => {
                    self.state.end_session(&self.session, violation.message());
                    return None;
                }
            }
            match frame.kind {
                FrameKind::Message => return Some(frame.body),
                FrameKind::Acknowledge => {}
                FrameKind::EventResult => self.session.receive_event_result(&frame.body),
                FrameKind::Goodbye => {
                    self.state.end_session(&self.session, CLIENT_GOODBYE);
                    return None;
                }
                FrameKind::DropNames | FrameKind::EventCall => {
                    let violation = ProtocolViolation::MalformedMessage;
                    self.state.end_session(&self.session, violation.message());
                    return None;
                }
            }
        }
    }

    /// Starts another thread unless one waits for the read turn already.
    fn ensure_reader(self: &Arc<Self>) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return;
        }
        if self.threads.fetch_add(1, Ordering::SeqCst) >= THREADS_MAX {
            self.threads.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let this = self.clone();
        let reading = Job::new(move || this.work());
        if self.state.pool.try_run(reading).is_err() {
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
