//! The device: queues, and the requests in them. Virtio 1.2, section 5.11.

use super::guest::{GuestReply, Memory, Scratch};
use super::lost_memory::WatchedMemory;
use crate::server::{Server, Wait};
use folio_net::{Job, WorkerPool, WorkerPoolOptions};
use parking_lot::{Condvar, Mutex};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackend, VringMutex, VringT};
use virtio_queue::QueueT;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

/// Most descriptors in one queue: what Linux needs to read a mebibyte at once, page by page.
const QUEUE_LEN_MAX: usize = 1024;
/// The high-priority queue, which carries `FUSE_FORGET`.
const HIGH_PRIORITY: usize = 0;
/// Requests of one queue that are handled in sequence before the thread polls its other queue.
const BATCH_LEN: usize = 256;
/// Most threads for requests that wait for a device.
const WAITERS_MAX: usize = 8;
/// Time without a request after which such a thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest request in bytes that moves to another thread. Requests that wait are shorter; a longer
/// one waits in the queue's thread.
const MOVED_LEN_MAX: usize = 4096;
/// `VIRTIO_RING_F_INDIRECT_DESC`, `VIRTIO_RING_F_EVENT_IDX`, `VIRTIO_F_VERSION_1`, and vhost-user's
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const FEATURES: u64 = 1 << 28 | 1 << 29 | 1 << 32 | 1 << 30;
/// Bytes of a tag in the configuration; shorter tags are padded with zero bytes.
pub(crate) const TAG_LEN: usize = 36;
/// Most configuration bytes in one vhost-user message.
const CONFIG_LEN_MAX: u32 = 4096;

type GuestMemory = GuestMemoryAtomic<Memory>;
type Vring = VringMutex<GuestMemory>;

/// A virtiofs device of one guest.
pub(crate) struct Device {
    handler: Arc<RequestHandler>,
    request_queues: usize,
    /// Tag and number of request queues: `struct virtio_fs_config`. `None` if the front end has a
    /// configuration of its own.
    config: Option<Vec<u8>>,
    /// Runs requests that wait. Closed on drop, after the server has ended.
    pool: WorkerPool<Job>,
}

/// The state that all threads need to handle requests.
struct RequestHandler {
    server: Server,
    memory: GuestMemory,
    watched: WatchedMemory,
    /// Ends the connection when guest memory is lost.
    disconnect: Box<dyn Fn() + Send + Sync>,
    /// For each queue, the requests in progress.
    in_progress: Vec<RequestCount>,
    is_closed: AtomicBool,
}

/// The number of requests in progress of one queue.
#[derive(Default)]
struct RequestCount {
    count: Mutex<usize>,
    is_zero: Condvar,
}

/// Counts one request until it is dropped (V2).
struct RequestGuard<'a>(&'a RequestCount);

impl RequestCount {
    fn begin(&self) -> RequestGuard<'_> {
        *self.count.lock() += 1;
        RequestGuard(self)
    }

    fn wait_for_zero(&self) {
        self.is_zero
            .wait_while(&mut self.count.lock(), |count| *count > 0);
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.is_zero.notify_all();
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// When this thread found its queue empty.
    static EMPTY_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Time for which a thread polls an empty queue before it sleeps. Waking a thread takes longer than
/// most requests, and longer than a guest takes to send the next one.
const POLL_TIME: Duration = Duration::from_micros(100);
/// A queue is polled only if the guest's last pause was shorter than this.
const SHORT_PAUSE: Duration = Duration::from_micros(250);

impl Device {
    pub(crate) fn new(
        server: Server,
        memory: GuestMemory,
        tag: Option<&str>,
        request_queues: usize,
        disconnect: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let config = tag.map(|tag| {
            let mut config = tag.as_bytes().to_vec();
            config.resize(TAG_LEN, 0);
            config.extend_from_slice(&(request_queues as u32).to_le_bytes());
            config
        });
        let in_progress = (0..=request_queues)
            .map(|_| RequestCount::default())
            .collect();
        let handler = Arc::new(RequestHandler {
            server,
            memory,
            watched: WatchedMemory::default(),
            disconnect: Box::new(disconnect),
            in_progress,
            is_closed: AtomicBool::new(false),
        });
        Self {
            handler,
            request_queues,
            config,
            pool: WorkerPool::new(WorkerPoolOptions {
                thread_name: "virtiofs-wait",
                threads_max: WAITERS_MAX,
                idle_timeout: IDLE_TIMEOUT,
            }),
        }
    }

    /// Whether guest memory was lost.
    pub(crate) fn has_lost_memory(&self) -> bool {
        self.handler.watched.is_lost()
    }

    /// Stops serving all queues, requests left or not, once the front end has disconnected.
    pub(crate) fn close(&self) {
        self.handler.is_closed.store(true, Ordering::Relaxed);
    }

    /// Handles the requests of a queue until it is empty and the guest is to notify of more. In
    /// between handles those of the `other` queue of this thread, which would else starve.
    fn serve_queue(&self, vring: &Vring, queue: usize, other: Option<&Vring>) {
        let was_short_pause = EMPTY_SINCE
            .take()
            .is_some_and(|since| since.elapsed() < SHORT_PAUSE);
        loop {
            // A ring outside of guest memory has no requests.
            if vring.disable_notification().is_err() {
                return;
            }
            if let Some(other) = other {
                while self.serve_one(other, HIGH_PRIORITY) {}
            }
            let count = (0..BATCH_LEN)
                .take_while(|_| self.serve_one(vring, queue))
                .count();
            self.handler.end_if_memory_is_lost();
            if count == BATCH_LEN {
                continue;
            }
            let since = Instant::now();
            if was_short_pause && self.poll(vring, since) {
                continue;
            }
            EMPTY_SINCE.set(Some(since));
            // A request that came meanwhile caused no notification. A stopped queue may hold
            // requests, too.
            let has_more = vring.enable_notification().unwrap_or(false);
            if !has_more || !self.has_more(vring, &self.handler.memory.memory()) {
                return;
            }
        }
    }

    /// Polls an empty queue for a while; returns whether a request has come.
    fn poll(&self, vring: &Vring, since: Instant) -> bool {
        let memory = self.handler.memory.memory();
        while since.elapsed() < POLL_TIME {
            if self.has_more(vring, &memory) {
                return true;
            }
            // Another thread may need this processor, the guest's monitor first of all.
            std::thread::yield_now();
        }
        false
    }

    /// Handles one request; returns whether there was one.
    fn serve_one(&self, vring: &Vring, queue: usize) -> bool {
        let handler = &self.handler;
        let memory = handler.memory.memory();
        let (chain, guard) = {
            let mut state = vring.get_mut();
            if handler.is_closed.load(Ordering::Relaxed)
                || !state.is_enabled()
                || !state.get_queue().ready()
            {
                return false;
            }
            let Some(chain) = state.get_queue_mut().pop_descriptor_chain(&*memory) else {
                return false;
            };
            (chain, handler.in_progress[queue].begin())
        };
        let head = chain.head_index();
        let moved = SCRATCH.with_borrow_mut(|scratch| {
            scratch.gather(&memory, chain);
            let Scratch {
                request,
                buffers,
                data,
            } = scratch;
            let mut reply = GuestReply::new(&memory, buffers, data);
            let done = handler.server.handle_at_once(request, &mut reply);
            // Data comes soon: if no other request waits, this thread can wait for it.
            let moves = match done {
                Ok(_) => false,
                Err(Wait::Data) => self.has_more(vring, &memory),
                Err(Wait::Long) => true,
            };
            if moves && request.len() <= MOVED_LEN_MAX {
                return Some(self.moved_request(vring, queue, head, scratch));
            }
            if done.is_err() {
                handler.server.handle(request, &mut reply);
            }
            add_used(vring, head, reply.written());
            None
        });
        if let Some(job) = moved {
            // The guest's queues limit the number of jobs. Submitted here, without the scratch
            // buffers, since the pool may run the job in this thread.
            self.pool.run_or_queue(job);
        }
        drop(guard);
        true
    }

    /// Returns whether a queue holds more requests, and may be served.
    fn has_more(&self, vring: &Vring, memory: &Memory) -> bool {
        let state = vring.get_ref();
        let queue = state.get_queue();
        let is_open =
            state.is_enabled() && queue.ready() && !self.handler.is_closed.load(Ordering::Relaxed);
        is_open
            && queue
                .avail_idx(memory, Ordering::Acquire)
                .is_ok_and(|next| next.0 != queue.next_avail())
    }

    /// Returns a job that handles a request on another thread.
    fn moved_request(&self, vring: &Vring, queue: usize, head: u16, scratch: &Scratch) -> Job {
        let (handler, vring) = (Arc::clone(&self.handler), vring.clone());
        let (request, buffers) = (scratch.request.clone(), scratch.buffers.clone());
        // Counted before the caller's guard is dropped.
        *handler.in_progress[queue].count.lock() += 1;
        Job::new(move || {
            let _guard = RequestGuard(&handler.in_progress[queue]);
            let memory = handler.memory.memory();
            SCRATCH.with_borrow_mut(|scratch| {
                let mut reply = GuestReply::new(&memory, &buffers, &mut scratch.data);
                handler.server.handle(&request, &mut reply);
                add_used(&vring, head, reply.written());
            });
            handler.end_if_memory_is_lost();
        })
    }
}

impl RequestHandler {
    /// Stops serving, and disconnects the front end, if guest memory was lost (V3).
    fn end_if_memory_is_lost(&self) {
        if self.watched.is_lost() && !self.is_closed.swap(true, Ordering::Relaxed) {
            (self.disconnect)();
        }
    }
}

/// Returns the buffers of a request to the guest, with `len` bytes of reply in them.
fn add_used(vring: &Vring, head: u16, len: u32) {
    let mut state = vring.get_mut();
    // A ring outside of guest memory is the guest's fault and gets no reply.
    if state.add_used(head, len).is_ok() && state.needs_notification().unwrap_or(true) {
        // An error means that the front end has closed the queue.
        let _ = state.signal_used_queue();
    }
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        // The first is the high-priority queue.
        1 + self.request_queues
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_LEN_MAX
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        let features = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE;
        match self.config {
            // Not offered else: QEMU warns of a feature that it does not use.
            Some(_) => features | VhostUserProtocolFeatures::CONFIG,
            None => features,
        }
    }

    fn reset_device(&self) {
        for queue in &self.handler.in_progress {
            queue.wait_for_zero();
        }
        self.handler.server.end();
    }

    fn set_event_idx(&self, _enabled: bool) {
        // The queues keep this state.
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let asked = (offset as usize..).take(size.min(CONFIG_LEN_MAX) as usize);
        let config = self.config.as_deref().unwrap_or_default();
        asked
            .map(|at| config.get(at).copied().unwrap_or(0))
            .collect()
    }

    fn update_memory(&self, memory: GuestMemory) -> io::Result<()> {
        // The device was created with it.
        self.handler.watched.watch(&memory.memory())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        // The first request queue shares its thread with the high-priority queue.
        let more = (2..=self.request_queues).map(|queue| 1 << queue);
        std::iter::once(0b11).chain(more).collect()
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        if let Some(queue) = self.handler.in_progress.get(queue as usize) {
            queue.wait_for_zero();
        }
        Ok(())
    }

    fn handle_event(
        &self,
        index: u16,
        _events: EventSet,
        vrings: &[Vring],
        thread: usize,
    ) -> io::Result<()> {
        let queue = if thread == 0 {
            usize::from(index)
        } else {
            thread + 1
        };
        if let Some(vring) = vrings.get(usize::from(index)) {
            let other = vrings
                .first()
                .filter(|_| thread == 0 && queue != HIGH_PRIORITY);
            self.serve_queue(vring, queue, other);
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.handler.server.end();
        self.pool.close(None);
    }
}
