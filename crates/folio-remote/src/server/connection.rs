//! One stream of a session, and the threads that read its requests and do what they ask.
//!
//! One thread reads; when it has a request another one reads on, and a new one is made if all are
//! busy. So a small request goes through one thread, and a slow one keeps nobody waiting.

use super::Shared;
use super::session::Session;
use crate::frame::{Input, Kind};
use crate::link::Breach;
use crate::stream::Reader;
use folio_fuse::wire::Message;
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads of one client, and so its requests that are worked on at a time.
const THREADS_MAX: usize = 32;
/// Threads that wait for a turn to read.
const WAITING_MAX: usize = 2;

/// A stream.
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) session: Arc<Session>,
    /// The link's number of it.
    pub(super) generation: u64,
    pub(super) input: Mutex<Input<Reader>>,
    threads: AtomicUsize,
    waiting: AtomicUsize,
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        session: Arc<Session>,
        generation: u64,
        input: Input<Reader>,
    ) -> Self {
        Self {
            shared,
            session,
            generation,
            input: Mutex::new(input),
            threads: AtomicUsize::new(1),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Reads and does requests until the stream ends; the calling thread is the first.
    pub(super) fn work(self: Arc<Self>) {
        let mut reply = Message::default();
        while let Some(request) = self.next() {
            self.have_another();
            let others = |notice: folio_fuse::wire::Notice<'_>| {
                self.shared.tell_others(&self.session, notice)
            };
            if let Err(breach) = self.session.attend(&request, &mut reply, others) {
                self.shared.end(&self.session, breach.words());
                break;
            }
        }
        self.threads.fetch_sub(1, Ordering::SeqCst);
    }

    /// The next request; `None` if the thread is not needed any more.
    fn next(&self) -> Option<Vec<u8>> {
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let mut input = self.input.lock();
        let request = self.read(&mut input);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        request
    }

    fn read(&self, input: &mut Input<Reader>) -> Option<Vec<u8>> {
        loop {
            let frame = match input.next() {
                Ok(Some(frame)) => frame,
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    // Said over the stream that broke the rules, unless the session has another by
                    // now.
                    if self.session.link.is_current(self.generation) {
                        self.shared.end(&self.session, &error.to_string());
                    }
                    return None;
                }
                Ok(None) | Err(_) => {
                    self.shared.lost(&self.session, self.generation);
                    return None;
                }
            };
            let size = (frame.kind, frame.body.len());
            match self
                .session
                .link
                .receive(self.generation, size, frame.acknowledged)
            {
                Ok(true) => {}
                Ok(false) => return None,
                Err(breach) => {
                    self.shared.end(&self.session, breach.words());
                    return None;
                }
            }
            match frame.kind {
                Kind::Message => return Some(frame.body),
                Kind::Acknowledge => {}
                Kind::Goodbye => {
                    self.shared.end(&self.session, super::GOODBYE);
                    return None;
                }
                Kind::DropNames => {
                    self.shared.end(&self.session, Breach::Malformed.words());
                    return None;
                }
            }
        }
    }

    /// Sees to it that somebody reads on.
    fn have_another(self: &Arc<Self>) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return;
        }
        if self.threads.fetch_add(1, Ordering::SeqCst) >= THREADS_MAX {
            self.threads.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let this = self.clone();
        if !self.shared.start("share", move || this.work()) {
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
