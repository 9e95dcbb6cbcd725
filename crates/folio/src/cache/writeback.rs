//! Dirty mappings of one backing device, and the thread that writes them. Linux: mm/page-writeback.c.
//!
//! ```text
//!   dirty bytes:  0 ....... background ............ limit
//!                 writers run free   |  the thread writes  |  writers wait, or write themselves
//! ```

use super::mapping::Inner;
use super::reclaim::PageCache;
use crate::base::{PAGE_SIZE, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a writer waits for the thread before it looks again.
const THROTTLE_WAIT: Duration = Duration::from_millis(20);

/// What the thread and the writers share.
#[derive(Default)]
struct Signals {
    is_stopping: bool,
    is_wanted: bool,
}

/// The dirty mappings of one backing device. Linux: `struct bdi_writeback`.
///
/// With `background_writeback`, a thread of its own writes them; dropping the `Writeback` stops it. Dirty pages
/// that nobody wrote back by then stay unwritten: file systems sync first.
pub struct Writeback {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The part that mappings and the thread hold.
pub(super) struct Shared {
    pub(super) cache: Arc<PageCache>,
    /// Mappings with dirty folios, first dirtied first.
    dirty: Mutex<Vec<Arc<Inner>>>,
    dirty_pages: AtomicU64,
    signals: Mutex<Signals>,
    wake: Condvar,
    progress: Condvar,
}

impl Writeback {
    pub(super) fn new(cache: &Arc<PageCache>) -> Arc<Self> {
        let shared = Arc::new(Shared {
            cache: cache.clone(),
            dirty: Mutex::default(),
            dirty_pages: AtomicU64::new(0),
            signals: Mutex::default(),
            wake: Condvar::new(),
            progress: Condvar::new(),
        });
        Arc::new(Self { shared, thread: Mutex::new(None) })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        self.start_thread();
        &self.shared
    }

    fn start_thread(&self) {
        if !self.shared.cache.options.background_writeback {
            return;
        }
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::downgrade(&self.shared);
            let builder = std::thread::Builder::new().name("folio-writeback".to_owned());
            // Without a thread writers write back themselves, which `throttle` sees to.
            *thread = builder.spawn(move || run(&shared)).ok();
        }
    }

    /// Writes every dirty page of every mapping of this device to its store, data and metadata alike, and waits.
    /// The first error is returned after everything was tried; failed pages stay dirty.
    pub fn write_back_all(&self) -> Result<()> {
        self.shared.write_back(0)
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.shared.signals.lock().is_stopping = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            // The thread itself may drop the last reference to a file system; it cannot wait for itself.
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn bytes_dirty(&self) -> u64 {
        self.dirty_pages.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }

    /// Notes that a mapping's first folio became dirty.
    pub(super) fn list(&self, mapping: Arc<Inner>) {
        self.dirty.lock().push(mapping);
    }

    /// Notes that folios became dirty (positive) or clean (negative).
    pub(super) fn count_dirty(&self, change: i64) {
        let add = |counter: &AtomicU64| counter.fetch_add(change as u64, Ordering::Relaxed);
        add(&self.dirty_pages);
        add(&self.cache.tally.dirty);
    }

    /// Holds a writer back while too much is dirty. Nobody may call this with a folio or table locked.
    pub(super) fn throttle(&self) -> Result<()> {
        let options = &self.cache.options;
        let dirty = self.bytes_dirty();
        if dirty <= options.dirty_background_bytes {
            return Ok(());
        }
        if !options.background_writeback {
            return match dirty > options.dirty_bytes {
                true => self.write_back(options.dirty_background_bytes),
                false => Ok(()),
            };
        }
        let mut signals = self.signals.lock();
        if !signals.is_wanted {
            signals.is_wanted = true;
            self.wake.notify_one();
        }
        if dirty > options.dirty_bytes {
            self.progress.wait_for(&mut signals, THROTTLE_WAIT);
            drop(signals);
            if self.bytes_dirty() > options.dirty_bytes {
                // The thread is slow, failing, or was never started: the writer lends a hand.
                return self.write_back(options.dirty_bytes);
            }
        }
        Ok(())
    }

    /// Writes mappings, first dirtied first, until at most `keep_bytes` are dirty.
    fn write_back(&self, keep_bytes: u64) -> Result<()> {
        let listed: Vec<Arc<Inner>> = self.dirty.lock().clone();
        let mut result = Ok(());
        for mapping in &listed {
            if keep_bytes > 0 && self.bytes_dirty() <= keep_bytes {
                break;
            }
            result = result.and(mapping.write_back(0..u64::MAX));
            self.progress.notify_all();
        }
        let mut clean = Vec::new();
        self.dirty.lock().retain(|mapping| {
            let stays = mapping.stays_listed();
            if !stays {
                clean.push(mapping.clone());
            }
            stays
        });
        drop(listed);
        // Dropped with no lock held: the last reference to a file may go here.
        drop(clean);
        result
    }
}

/// The background thread: writes when asked to, down to half the background limit.
fn run(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        {
            let mut signals = shared.signals.lock();
            if !signals.is_wanted && !signals.is_stopping {
                shared.wake.wait(&mut signals);
            }
            if signals.is_stopping {
                return;
            }
        }
        // An error is remembered by the mapping it belongs to and told to whoever syncs it.
        let _ = shared.write_back((shared.cache.options.dirty_background_bytes / 2).max(1));
        shared.signals.lock().is_wanted = false;
        shared.progress.notify_all();
    }
}
