//! A queue: its ring, and the thread that takes requests from it.

use super::connection::{Connection, MemoryCache};
use super::device::{Device, Request, Wait};
use super::guest_memory::Memory;
use super::inflight::InflightQueue;
use super::split_ring::{Chain, RingError, SplitRing};
use crate::Job;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that are handled in sequence before the thread looks for other news.
const BATCH_LEN: usize = 256;
/// Requests returned to a busy driver before it is notified of them.
const NOTIFY_LEN: usize = 16;
/// Time for which a thread polls an empty queue before it sleeps. Waking a thread takes longer than
/// most requests, and longer than a guest takes to send the next one.
const POLL_TIME: Duration = Duration::from_micros(100);
/// A queue is polled only if the guest's last pause was shorter than this.
const SHORT_PAUSE: Duration = Duration::from_micros(250);
/// Interval at which a queue without a file for notifications is polled.
const UNNOTIFIED: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// A queue of a front end.
pub(super) struct Queue<D> {
    index: usize,
    connection: Arc<Connection<D>>,
    state: Mutex<QueueState>,
    in_progress: Arc<RequestCount>,
    /// Wakes the thread after a change of the state.
    wake: OwnedFd,
}

/// The state of a queue.
#[derive(Default)]
pub(super) struct QueueState {
    /// None while the queue is stopped.
    ring: Option<SplitRing>,
    is_enabled: bool,
    is_stopping: bool,
    kick: Option<Arc<OwnedFd>>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    inflight: Option<InflightQueue>,
    /// Requests that an earlier server left unfinished.
    unfinished: VecDeque<u16>,
}

/// The number of requests in progress of one queue.
#[derive(Default)]
struct RequestCount {
    count: Mutex<usize>,
    is_zero: Condvar,
}

impl RequestCount {
    /// Counts one request until the result is dropped (V2).
    fn begin(self: &Arc<Self>) -> RequestGuard {
        *self.count.lock() += 1;
        RequestGuard(Arc::clone(self))
    }

    fn get(&self) -> usize {
        *self.count.lock()
    }

    fn wait_for_zero(&self) {
        self.is_zero
            .wait_while(&mut self.count.lock(), |count| *count > 0);
    }
}

/// A counted request. Also one whose thread panics is counted no longer.
struct RequestGuard(Arc<RequestCount>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.is_zero.notify_all();
        }
    }
}

/// What the thread of a queue keeps from request to request.
#[derive(Default)]
struct Scratch {
    memory: Option<MemoryCache>,
    chain: Chain,
    /// When the queue was found empty.
    empty_since: Option<Instant>,
}

impl QueueState {
    /// Takes the next request, beside those in progress.
    fn take(&mut self, memory: &Memory, in_progress: usize) -> Result<Option<u16>, RingError> {
        if let Some(head) = self.unfinished.pop_front() {
            return Ok(Some(head));
        }
        let Some(ring) = self.ring.as_mut().filter(|_| self.is_enabled) else {
            return Ok(None);
        };
        if self.is_stopping {
            return Ok(None);
        }
        if in_progress >= ring.len() && ring.available(memory)? > 0 {
            // A driver offers descriptors again only once they were returned.
            return Err(RingError::Index);
        }
        let head = ring.pop(memory)?;
        if let (Some(head), Some(inflight)) = (head, &mut self.inflight) {
            inflight.begin(head).map_err(|_| RingError::OutOfMemory)?;
        }
        Ok(head)
    }

    fn finish(&mut self, memory: &Memory, head: u16, written: u32) -> Result<(), RingError> {
        let lost = |_| RingError::OutOfMemory;
        let Some(ring) = &mut self.ring else {
            // The driver broke the ring meanwhile: nothing is left to repeat.
            return match &self.inflight {
                Some(inflight) => inflight.forget(head).map_err(lost),
                None => Ok(()),
            };
        };
        if let Some(inflight) = &self.inflight {
            inflight.prepare_end(head).map_err(lost)?;
        }
        ring.push_used(memory, head, written)?;
        if let Some(inflight) = &self.inflight {
            inflight.end(head, ring.next_used()).map_err(lost)?;
        }
        Ok(())
    }

    fn notify(&mut self, memory: &Memory) -> Result<(), RingError> {
        if let (Some(ring), Some(call)) = (&mut self.ring, &self.call)
            && ring.should_notify(memory)?
        {
            signal(call);
        }
        Ok(())
    }

    /// Returns the number of requests that can be taken.
    fn available(&self, memory: &Memory) -> Result<u16, RingError> {
        match &self.ring {
            Some(ring) if self.is_enabled && !self.is_stopping => ring.available(memory),
            _ => Ok(0),
        }
    }

    /// Stops a queue whose driver broke it; the front end learns so.
    fn break_off(&mut self) {
        self.ring = None;
        self.unfinished.clear();
        if let Some(error) = &self.error {
            signal(error);
        }
    }
}

/// Signals an event; the other side has closed it at worst.
fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

impl<D: Device> Queue<D> {
    pub(super) fn new(index: usize, connection: Arc<Connection<D>>) -> io::Result<Self> {
        Ok(Self {
            index,
            connection,
            state: Mutex::default(),
            in_progress: Arc::default(),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    pub(super) fn is_started(&self) -> bool {
        self.state.lock().ring.is_some()
    }

    /// Starts a stopped queue, with the requests that an earlier server left unfinished.
    pub(super) fn start(&self, ring: SplitRing, resumed: Option<(InflightQueue, Vec<u16>)>) {
        // Those of a ring that was broken do not belong to this one.
        self.drain();
        let mut state = self.state.lock();
        state.ring = Some(ring);
        state.is_stopping = false;
        (state.inflight, state.unfinished) = match resumed {
            Some((inflight, unfinished)) => (Some(inflight), unfinished.into()),
            None => (None, VecDeque::new()),
        };
        drop(state);
        self.wake();
    }

    /// Stops a queue once its requests in progress are returned; returns the index of the next
    /// request.
    pub(super) fn stop(self: &Arc<Self>) -> Option<u16> {
        self.state.lock().is_stopping = true;
        self.connection.device.end_waits();
        let mut scratch = Scratch::default();
        while self.serve_one(&mut scratch) {}
        self.in_progress.wait_for_zero();
        let mut state = self.state.lock();
        let memory = self.connection.memory();
        if state.notify(&memory).is_err() {
            state.break_off();
        }
        let ring = state.ring.take();
        (state.kick, state.call) = (None, None);
        ring.map(|ring| ring.next_available)
    }

    /// Waits until none of its requests is in progress.
    pub(super) fn drain(&self) {
        self.in_progress.wait_for_zero();
    }

    pub(super) fn enable(&self, is_enabled: bool) {
        self.state.lock().is_enabled = is_enabled;
        self.wake();
    }

    pub(super) fn set_kick(&self, file: Option<OwnedFd>) {
        self.state.lock().kick = file.map(Arc::new);
        self.wake();
    }

    pub(super) fn set_call(&self, file: Option<OwnedFd>) {
        self.state.lock().call = file;
        // Requests may have been returned before.
        self.notify(&self.connection.memory());
    }

    pub(super) fn set_error(&self, file: Option<OwnedFd>) {
        self.state.lock().error = file;
    }

    pub(super) fn wake(&self) {
        signal(&self.wake);
    }

    /// Serves until the connection closes.
    pub(super) fn run(self: &Arc<Self>) {
        let mut scratch = Scratch::default();
        while !self.connection.is_closed() {
            self.wait();
            self.serve(&mut scratch);
            self.connection.end_if_memory_is_lost();
        }
    }

    /// Waits for requests, or for a change of the state.
    fn wait(&self) {
        let (kick, is_unnotified) = {
            let state = self.state.lock();
            let serves = state.ring.is_some() && state.is_enabled;
            let kick = state.kick.clone().filter(|_| serves);
            (kick, serves && state.kick.is_none())
        };
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        if let Some(kick) = &kick {
            fds.push(PollFd::new(&**kick, PollFlags::IN));
        }
        let timeout = is_unnotified.then_some(&UNNOTIFIED);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of kernel memory.
            Err(_) => std::thread::yield_now(),
        }
        let mut number = [0; 8];
        if !fds[0].revents().is_empty() {
            let _ = rustix::io::read(&self.wake, &mut number);
        }
        if let (Some(kick), Some(fd)) = (&kick, fds.get(1)) {
            let events = fd.revents();
            if events.contains(PollFlags::IN) {
                let _ = rustix::io::read(&**kick, &mut number);
            } else if !events.is_empty() {
                // An end of file, or no file to wait for.
                let mut state = self.state.lock();
                if state
                    .kick
                    .as_ref()
                    .is_some_and(|now| Arc::ptr_eq(now, kick))
                {
                    state.kick = None;
                    state.is_enabled = false;
                }
            }
        }
    }

    /// Handles requests until the queue is empty and the driver is to notify of more.
    fn serve(self: &Arc<Self>, scratch: &mut Scratch) {
        let pause = scratch.empty_since.take().map(|since| since.elapsed());
        let was_short_pause = pause.is_some_and(|pause| pause < SHORT_PAUSE);
        while self.request_notifications(scratch, false).is_some() {
            let mut count = 0;
            while count < BATCH_LEN && self.serve_one(scratch) {
                count += 1;
                if count % NOTIFY_LEN == 0 {
                    self.notify(self.connection.cached_memory(&mut scratch.memory));
                }
            }
            self.notify(self.connection.cached_memory(&mut scratch.memory));
            if self.connection.has_lost_memory() {
                return;
            }
            if count == BATCH_LEN {
                continue;
            }
            let since = Instant::now();
            if was_short_pause && self.poll(scratch, since) {
                continue;
            }
            scratch.empty_since = Some(since);
            // A request that came meanwhile caused no notification.
            if self.request_notifications(scratch, true) != Some(true) {
                return;
            }
        }
    }

    /// Polls an empty queue for a while; returns whether a request has come.
    fn poll(&self, scratch: &mut Scratch, since: Instant) -> bool {
        while since.elapsed() < POLL_TIME {
            if self.has_more(self.connection.cached_memory(&mut scratch.memory)) {
                return true;
            }
            // Another thread may need this processor, the guest's monitor first of all.
            std::thread::yield_now();
        }
        false
    }

    /// Asks the driver for notifications, or for none; returns whether requests wait. `None` if the
    /// queue is not served.
    fn request_notifications(&self, scratch: &mut Scratch, are_wanted: bool) -> Option<bool> {
        let memory = self.connection.cached_memory(&mut scratch.memory);
        let mut state = self.state.lock();
        if self.connection.is_closed() || !state.is_enabled {
            return None;
        }
        let ring = state.ring.as_ref()?;
        let asked = ring.request_notifications(memory, are_wanted);
        match asked.and_then(|()| state.available(memory)) {
            Ok(count) => Some(count > 0),
            Err(_) => {
                state.break_off();
                None
            }
        }
    }

    fn has_more(&self, memory: &Memory) -> bool {
        let state = self.state.lock();
        !self.connection.is_closed() && state.available(memory).is_ok_and(|count| count > 0)
    }

    fn notify(&self, memory: &Memory) {
        let mut state = self.state.lock();
        if state.notify(memory).is_err() {
            state.break_off();
        }
    }

    /// Handles one request; returns whether there was one.
    fn serve_one(self: &Arc<Self>, scratch: &mut Scratch) -> bool {
        let connection = &self.connection;
        if connection.is_closed() {
            return false;
        }
        let memory = connection.cached_memory(&mut scratch.memory);
        let chain = &mut scratch.chain;
        let (head, is_valid, guard) = {
            let mut state = self.state.lock();
            let head = match state.take(memory, self.in_progress.get()) {
                Ok(Some(head)) => head,
                Ok(None) => return false,
                Err(_) => {
                    state.break_off();
                    return false;
                }
            };
            // Counted while the queue cannot be stopped (V2).
            let guard = self.in_progress.begin();
            let followed = state
                .ring
                .as_ref()
                .map(|ring| ring.follow(memory, head, chain));
            (head, followed == Some(Ok(())), guard)
        };
        // A request that cannot be followed gets an empty reply.
        let mut written = 0;
        if is_valid {
            let request = Request::new(self.index, memory, chain);
            let device = &connection.device;
            written = match device.handle_at_once(&request) {
                Ok(written) => written,
                Err(wait) => {
                    if wait == Wait::Long || self.has_more(memory) {
                        self.move_request(head, chain, guard);
                        return true;
                    }
                    device.handle(&request)
                }
            };
        }
        self.finish(memory, head, written);
        drop(guard);
        true
    }

    fn finish(&self, memory: &Memory, head: u16, written: u32) {
        let mut state = self.state.lock();
        if state.finish(memory, head, written).is_err() {
            state.break_off();
        }
    }

    /// Handles a request on another thread.
    fn move_request(self: &Arc<Self>, head: u16, chain: &Chain, guard: RequestGuard) {
        let (this, chain) = (Arc::clone(self), chain.clone());
        let job = Job::new(move || {
            let _guard = guard;
            let memory = this.connection.memory();
            let request = Request::new(this.index, &memory, &chain);
            let written = this.connection.device.handle(&request);
            this.finish(&memory, head, written);
            this.notify(&memory);
            this.connection.end_if_memory_is_lost();
        });
        // The ring limits the number of jobs.
        self.connection.pool.run_or_queue(job);
    }
}
