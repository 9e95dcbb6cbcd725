//! The state that the threads of one front end share: its device, its memory, and its end.

use super::device::Device;
use super::guest_memory::Memory;
use super::lost_memory::WatchedMemory;
use crate::{Job, WorkerPool, WorkerPoolOptions};
use parking_lot::Mutex;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Most threads for requests that wait, of all queues.
const WAITERS_MAX: usize = 64;
/// Time without a request after which such a thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connected front end.
pub(super) struct Connection<D> {
    pub(super) device: Arc<D>,
    stream: UnixStream,
    memory: Mutex<Arc<Memory>>,
    /// Counts the changes of `memory`.
    memory_changes: AtomicUsize,
    watched: WatchedMemory,
    is_closed: AtomicBool,
    /// Runs requests that wait.
    pub(super) pool: WorkerPool<Job>,
}

/// A thread's copy of the reference to guest memory, which changes rarely.
pub(super) struct MemoryCache {
    changes: usize,
    memory: Arc<Memory>,
}

impl<D: Device> Connection<D> {
    pub(super) fn new(device: Arc<D>, stream: UnixStream) -> Self {
        Self {
            device,
            stream,
            memory: Mutex::default(),
            memory_changes: AtomicUsize::new(0),
            watched: WatchedMemory::default(),
            is_closed: AtomicBool::new(false),
            pool: WorkerPool::new(WorkerPoolOptions {
                thread_name: "virtio-wait",
                threads_max: WAITERS_MAX,
                idle_timeout: IDLE_TIMEOUT,
            }),
        }
    }

    /// Returns guest memory as of now.
    pub(super) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory.lock())
    }

    /// Returns guest memory, for a thread that asks before each request.
    pub(super) fn cached_memory<'a>(&self, cache: &'a mut Option<MemoryCache>) -> &'a Arc<Memory> {
        let changes = self.memory_changes.load(Ordering::Acquire);
        if cache.as_ref().is_none_or(|cache| cache.changes != changes) {
            *cache = None;
        }
        let cache = cache.get_or_insert_with(|| MemoryCache {
            changes,
            memory: self.memory(),
        });
        &cache.memory
    }

    /// Sets guest memory. Requests in progress keep the one that they began with.
    pub(super) fn set_memory(&self, memory: Memory) -> io::Result<()> {
        let memory = Arc::new(memory);
        self.watched.watch(&memory)?;
        *self.memory.lock() = memory;
        self.memory_changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Watches memory that is not the guest's.
    pub(super) fn watch(&self, memory: &Memory) -> io::Result<()> {
        self.watched.watch(memory)
    }

    /// Whether memory of the front end was lost.
    pub(super) fn has_lost_memory(&self) -> bool {
        self.watched.is_lost()
    }

    /// Stops serving, and disconnects the front end, if memory was lost (V3).
    pub(super) fn end_if_memory_is_lost(&self) {
        if self.watched.is_lost() && !self.is_closed.swap(true, Ordering::Relaxed) {
            // Fails if the front end has disconnected itself.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }

    /// Whether no more requests are to be served.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}
