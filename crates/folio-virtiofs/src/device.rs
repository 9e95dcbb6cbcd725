//! The device: queues, and the requests in them. Virtio 1.2, section 5.11.

use crate::guest::{GuestReply, Memory, Scratch};
use folio_fuse::{Server, Wait};
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

/// Requests in one queue; what Linux needs to read a mebibyte at once, page by page.
const QUEUE_LEN_MAX: usize = 1024;
/// The queue for forgotten nodes.
const HIGH_PRIORITY: usize = 0;
/// Requests of one queue that are handled one after the other before the thread looks at another
/// one.
const TURN: usize = 256;
/// Threads for requests that wait.
const WAITERS_MAX: usize = 8;
/// Time without a request after which such a thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request that waits on another thread; none that does needs more, and longer ones wait
/// where they are.
const MOVED_LEN_MAX: usize = 4096;
/// `VIRTIO_RING_F_INDIRECT_DESC`, `VIRTIO_RING_F_EVENT_IDX`, `VIRTIO_F_VERSION_1`, and that of
/// vhost-user: `VHOST_USER_F_PROTOCOL_FEATURES`.
const FEATURES: u64 = 1 << 28 | 1 << 29 | 1 << 32 | 1 << 30;
/// Bytes of a tag in the configuration; shorter ones are padded with zeroes.
pub(crate) const TAG_LEN: usize = 36;
/// Most bytes of a configuration in one message of vhost-user.
const CONFIG_LEN_MAX: u32 = 4096;

type GuestMemory = GuestMemoryAtomic<Memory>;
type Vring = VringMutex<GuestMemory>;

/// A virtiofs device of one guest.
pub(crate) struct Device {
    core: Arc<Core>,
    request_queues: usize,
    /// Tag and number of request queues: `struct virtio_fs_config`. `None` if the front end has its
    /// own.
    config: Option<Vec<u8>>,
    /// Runs requests that wait. Closed on drop, after the server has ended.
    pool: WorkerPool<Job>,
}

/// What requests need that are handled on other threads.
struct Core {
    server: Server,
    memory: GuestMemory,
    /// For each queue, the requests that are under way.
    under_way: Vec<UnderWay>,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct UnderWay {
    count: Mutex<usize>,
    is_none: Condvar,
}

/// One request under way; V2.
struct Pass<'a>(&'a UnderWay);

impl UnderWay {
    fn begin(&self) -> Pass<'_> {
        *self.count.lock() += 1;
        Pass(self)
    }

    fn wait(&self) {
        self.is_none
            .wait_while(&mut self.count.lock(), |count| *count > 0);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.is_none.notify_all();
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// When this thread's queue was last seen to be empty.
    static EMPTY_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// How long a queue that is empty is looked at before its thread sleeps. Waking a thread takes
/// longer than most requests, and longer than a guest takes to ask again.
const LOOKING: Duration = Duration::from_micros(100);
/// Only a guest that came back so soon last time is waited for in that way.
const SOON: Duration = Duration::from_micros(250);

impl Device {
    pub(crate) fn new(
        server: Server,
        memory: GuestMemory,
        tag: Option<&str>,
        request_queues: usize,
    ) -> Self {
        let config = tag.map(|tag| {
            let mut config = tag.as_bytes().to_vec();
            config.resize(TAG_LEN, 0);
            config.extend_from_slice(&(request_queues as u32).to_le_bytes());
            config
        });
        let under_way = (0..=request_queues).map(|_| UnderWay::default()).collect();
        let core = Arc::new(Core {
            server,
            memory,
            under_way,
            is_closed: AtomicBool::new(false),
        });
        Self {
            core,
            request_queues,
            config,
            pool: WorkerPool::new(WorkerPoolOptions {
                thread_name: "virtiofs-wait",
                threads_max: WAITERS_MAX,
                idle_timeout: IDLE_TIMEOUT,
            }),
        }
    }

    /// Ends the work on all queues, however much a guest asks for, once its front end is gone.
    pub(crate) fn close(&self) {
        self.core.is_closed.store(true, Ordering::Relaxed);
    }

    /// Handles what is in a queue until it is empty and the guest has been asked to tell of more;
    /// in between what is in the `other` queue of this thread, lest it wait for ever.
    fn serve_queue(&self, vring: &Vring, queue: usize, other: Option<&Vring>) {
        let is_soon = EMPTY_SINCE
            .take()
            .is_some_and(|since| since.elapsed() < SOON);
        loop {
            // A ring outside of guest memory has nothing to tell.
            if vring.disable_notification().is_err() {
                return;
            }
            if let Some(other) = other {
                while self.serve_one(other, HIGH_PRIORITY) {}
            }
            let count = (0..TURN)
                .take_while(|_| self.serve_one(vring, queue))
                .count();
            if count == TURN {
                continue;
            }
            let since = Instant::now();
            if is_soon && self.look(vring, since) {
                continue;
            }
            EMPTY_SINCE.set(Some(since));
            // What came meanwhile was not told of; a queue that has stopped may hold requests, too.
            let has_more = vring.enable_notification().unwrap_or(false);
            if !has_more || !self.has_more(vring, &self.core.memory.memory()) {
                return;
            }
        }
    }

    /// Looks at an empty queue for a while; whether there is something in it.
    fn look(&self, vring: &Vring, since: Instant) -> bool {
        let memory = self.core.memory.memory();
        while since.elapsed() < LOOKING {
            if self.has_more(vring, &memory) {
                return true;
            }
            // Whoever has something to do may do it here, the guest's monitor first of all.
            std::thread::yield_now();
        }
        false
    }

    /// Handles one request; whether there was one.
    fn serve_one(&self, vring: &Vring, queue: usize) -> bool {
        let core = &self.core;
        let memory = core.memory.memory();
        let (chain, pass) = {
            let mut state = vring.get_mut();
            if core.is_closed.load(Ordering::Relaxed)
                || !state.is_enabled()
                || !state.get_queue().ready()
            {
                return false;
            }
            let Some(chain) = state.get_queue_mut().pop_descriptor_chain(&*memory) else {
                return false;
            };
            (chain, core.under_way[queue].begin())
        };
        let head = chain.head_index();
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.gather(&memory, chain);
            let Scratch {
                request,
                pieces,
                data,
            } = scratch;
            let mut reply = GuestReply::new(&memory, pieces, data);
            let done = core.server.handle_at_once(request, &mut reply);
            // Data come soon, and a thread that waits for them alone harms nobody; other requests
            // wait elsewhere.
            let moves = match done {
                Ok(_) => false,
                Err(Wait::Data) => self.has_more(vring, &memory),
                Err(Wait::Long) => true,
            };
            if moves && request.len() <= MOVED_LEN_MAX {
                self.move_away(vring, queue, head, scratch);
                return;
            }
            if done.is_err() {
                core.server.handle(request, &mut reply);
            }
            give_back(vring, head, reply.written());
        });
        drop(pass);
        true
    }

    /// Whether more requests wait in a queue, and may be handled.
    fn has_more(&self, vring: &Vring, memory: &Memory) -> bool {
        let state = vring.get_ref();
        let queue = state.get_queue();
        let is_open =
            state.is_enabled() && queue.ready() && !self.core.is_closed.load(Ordering::Relaxed);
        is_open
            && queue
                .avail_idx(memory, Ordering::Acquire)
                .is_ok_and(|next| next.0 != queue.next_avail())
    }

    /// Has another thread handle a request.
    fn move_away(&self, vring: &Vring, queue: usize, head: u16, scratch: &mut Scratch) {
        let (core, vring) = (Arc::clone(&self.core), vring.clone());
        let (request, pieces) = (scratch.request.clone(), scratch.pieces.clone());
        // Counted before the caller's count ends.
        *self.core.under_way[queue].count.lock() += 1;
        // The guest's queues bound how many requests wait.
        self.pool.run_or_queue(Job::new(move || {
            let _pass = Pass(&core.under_way[queue]);
            let memory = core.memory.memory();
            SCRATCH.with_borrow_mut(|scratch| {
                let mut reply = GuestReply::new(&memory, &pieces, &mut scratch.data);
                core.server.handle(&request, &mut reply);
                give_back(&vring, head, reply.written());
            });
        }));
    }
}

/// Gives the buffers of a request back to the guest, with `len` bytes of reply in them.
fn give_back(vring: &Vring, head: u16, len: u32) {
    let mut state = vring.get_mut();
    // A ring outside of guest memory takes nothing; the guest has only itself to blame.
    if state.add_used(head, len).is_ok() && state.needs_notification().unwrap_or(true) {
        // Nobody waits for what the front end has closed.
        let _ = state.signal_used_queue();
    }
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        // The first one is for requests that must not wait behind others: forgotten nodes.
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
            // QEMU warns of what it does not ask for.
            Some(_) => features | VhostUserProtocolFeatures::CONFIG,
            None => features,
        }
    }

    fn reset_device(&self) {
        for queue in &self.core.under_way {
            queue.wait();
        }
        self.core.server.end();
        self.pool.close(None);
    }

    fn set_event_idx(&self, _enabled: bool) {
        // The queues know.
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let asked = (offset as usize..).take(size.min(CONFIG_LEN_MAX) as usize);
        let config = self.config.as_deref().unwrap_or_default();
        asked
            .map(|at| config.get(at).copied().unwrap_or(0))
            .collect()
    }

    fn update_memory(&self, _memory: GuestMemory) -> io::Result<()> {
        // It is the one that the device was made with.
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        // The first request queue shares its thread with forgotten nodes.
        let others = (2..=self.request_queues).map(|queue| 1 << queue);
        std::iter::once(0b11).chain(others).collect()
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        if let Some(queue) = self.core.under_way.get(queue as usize) {
            queue.wait();
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
        self.core.server.end();
        self.pool.close(None);
    }
}
