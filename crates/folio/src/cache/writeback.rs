//! Writeback of one backing device: its dirty mappings, and the thread that writes them. Linux:
//! mm/page-writeback.c, fs/fs-writeback.c.
//!
//! ```text
//!   dirty bytes:  0 ....... background ............ limit
//!                 no writeback       |  the thread writes  |  writers write too
//! ```
//!
//! The thread also checks at an interval for mappings that have been dirty for long, and writes
//! them.

use super::page_cache::{CacheOptions, PageCache};
use super::page_owner::PageOwner;
use crate::base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex};
use crate::base::{PAGE_SIZE, Result};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The requests of writers to the thread.
#[derive(Default)]
struct ThreadSignals {
    is_stopping: bool,
    is_requested: bool,
    /// The thread checks the list of dirty mappings after a timeout, without a notification.
    is_timed: bool,
}

/// The dirty mappings of one backing device. Linux: `struct bdi_writeback`.
///
/// With `background_writeback`, a thread writes them; dropping the `Writeback` stops it. Pages that
/// are still dirty then are lost: file systems sync first.
pub struct Writeback {
    shared: Arc<WritebackState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state that mappings and the thread share.
pub(super) struct WritebackState {
    pub(super) cache: Arc<PageCache>,
    /// Mappings with dirty pages, oldest first.
    dirty: Mutex<Vec<Arc<dyn PageOwner>>>,
    /// The list's length, changed with the list locked.
    listed: AtomicUsize,
    dirty_pages: AtomicU64,
    signals: Mutex<ThreadSignals>,
    wake: Condvar,
}

impl PageCache {
    /// Creates the dirty state of a new backing device (one per mounted file system). Linux:
    /// `struct bdi_writeback`.
    pub fn writeback(self: &Arc<Self>) -> Arc<Writeback> {
        Writeback::new(self)
    }
}

impl Writeback {
    pub(super) fn new(cache: &Arc<PageCache>) -> Arc<Self> {
        let shared = Arc::new(WritebackState {
            cache: cache.clone(),
            dirty: Mutex::default(),
            listed: AtomicUsize::new(0),
            dirty_pages: AtomicU64::new(0),
            signals: Mutex::default(),
            wake: Condvar::new(),
        });
        Arc::new(Self {
            shared,
            thread: Mutex::new(None),
        })
    }

    pub(super) fn shared(&self) -> &Arc<WritebackState> {
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
            let builder = thread::Builder::new().name("folio-writeback".to_owned());
            // Without a thread, `throttle` lets the writers write back themselves.
            *thread = builder.spawn(move || run(&shared)).ok();
        }
    }

    /// Returns whether any mapping of this device has dirty pages, or pages being written.
    pub(crate) fn has_dirty_mappings(&self) -> bool {
        self.shared.listed.load(Ordering::SeqCst) > 0
    }

    /// Writes all dirty pages of all mappings of this device to their stores, data and metadata,
    /// and waits. Linux: `sync_inodes_sb`.
    ///
    /// # Errors
    /// The first error, after all pages were tried; failed pages stay dirty.
    pub fn write_back_all(&self) -> Result<()> {
        self.shared.write_back(0)
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        if !self.shared.cache.is_in_own_process() {
            // The thread is the parent's.
            let _parents = ManuallyDrop::new(self.thread.get_mut().take());
            return;
        }
        self.shared.signals.lock().is_stopping = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            // The thread itself may drop the last reference to a file system; it must not join
            // itself.
            && thread.thread().id() != thread::current().id()
        {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        // Listed mappings hold this state. Their dirty pages are lost.
        let listed = std::mem::take(&mut *self.shared.dirty.lock());
        drop(listed);
    }
}

impl WritebackState {
    fn bytes_dirty(&self) -> u64 {
        self.dirty_pages.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }

    /// Adds a mapping whose first page became dirty.
    pub(super) fn list(&self, mapping: Arc<dyn PageOwner>) {
        let mut dirty = self.dirty.lock();
        dirty.push(mapping);
        self.listed.store(dirty.len(), Ordering::SeqCst);
        let is_first = dirty.len() == 1;
        drop(dirty);
        if is_first && self.writes_by_age() && !self.signals.lock().is_timed {
            self.wake.notify_one();
        }
    }

    fn writes_by_age(&self) -> bool {
        let options = &self.cache.options;
        options.background_writeback && options.dirty_writeback_ms > 0
    }

    /// Counts pages that became dirty (positive) or clean (negative).
    pub(super) fn count_dirty(&self, change: i64) {
        self.dirty_pages.fetch_add(change as u64, Ordering::Relaxed);
    }

    /// Delays a writer while too many pages are dirty. The caller has no page and no mapping
    /// locked. Linux: `balance_dirty_pages`.
    ///
    /// # Errors
    /// The store's, if more than the limit stays dirty.
    pub(super) fn throttle(&self) -> Result<()> {
        let options = &self.cache.options;
        let dirty = self.bytes_dirty();
        // Objects leave at least a half to pages: below this, no limit is exceeded.
        if dirty <= options.dirty_background_bytes / 2 {
            return Ok(());
        }
        let (background_bytes, limit_bytes) = self.dirty_limits();
        if dirty <= background_bytes {
            return Ok(());
        }
        if !options.background_writeback {
            return if dirty > limit_bytes {
                self.make_room(background_bytes, limit_bytes)
            } else {
                Ok(())
            };
        }
        {
            let mut signals = self.signals.lock();
            if !signals.is_requested {
                signals.is_requested = true;
                self.wake.notify_one();
            }
        }
        if dirty > limit_bytes {
            // The thread is slower than the writer, so the writer writes back too.
            self.make_room(limit_bytes, limit_bytes)
        } else {
            Ok(())
        }
    }

    /// Returns the dirty bytes from which on the thread writes, and those from which on a writer
    /// waits: the limits of the options, less in proportion to the memory that objects take from
    /// pages. Otherwise all pages that are left could be dirty, and reclaim would look for clean
    /// ones in vain. Linux: `global_dirtyable_memory`.
    fn dirty_limits(&self) -> (u64, u64) {
        let CacheOptions {
            dirty_background_bytes,
            dirty_bytes,
            ..
        } = self.cache.options;
        let pool = &self.cache.pool;
        let (pages, all) = (pool.page_budget(), pool.budget());
        // In pages, so that the product has 64 bits.
        let share = |bytes: u64| bytes / PAGE_SIZE as u64 * pages / all * PAGE_SIZE as u64;
        (share(dirty_background_bytes), share(dirty_bytes))
    }

    /// Writes until at most `keep_bytes` are dirty. An error is kept by the mapping that it belongs
    /// to. The caller gets it only if more than `limit_bytes` stay dirty: then no further page may
    /// become dirty.
    fn make_room(&self, keep_bytes: u64, limit_bytes: u64) -> Result<()> {
        match self.write_back(keep_bytes) {
            Err(error) if self.bytes_dirty() > limit_bytes => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes mappings, oldest first, until at most `keep_bytes` are dirty; with 0, all, and waits
    /// for other threads' writeback.
    fn write_back(&self, keep_bytes: u64) -> Result<()> {
        // A copy: the stores below may dirty metadata pages, which list their mapping.
        let listed: Vec<Arc<dyn PageOwner>> = self.dirty.lock().clone();
        let mut result = Ok(());
        for mapping in &listed {
            let written = match keep_bytes {
                0 => mapping.clone().write_back(0..u64::MAX),
                // Several threads may do this: each writes pages that no other thread is writing.
                _ if self.bytes_dirty() > keep_bytes => mapping.clone().write_dirty(0..u64::MAX),
                _ => break,
            };
            result = result.and(written);
        }
        self.tidy();
        result
    }

    /// Writes the mappings that have been dirty for long. Pages that fail count as dirty from now.
    fn write_expired(&self) {
        let age = Duration::from_millis(self.cache.options.dirty_expire_ms);
        let now = Instant::now();
        let mut expired: Vec<Arc<dyn PageOwner>> = self.dirty.lock().clone();
        expired.retain(|mapping| mapping.is_dirty_since(now, age));
        for mapping in &expired {
            // The mapping keeps the error, and reports it at the next sync.
            let _ = mapping.clone().write_dirty(0..u64::MAX);
        }
        if !expired.is_empty() {
            self.tidy();
        }
    }

    /// Removes a mapping from the list if it is clean. A device may have no mapping but one that is
    /// always written by itself (metadata), and each holds the other while it is listed.
    pub(super) fn unlist(&self, number: u64) {
        let mut dirty = self.dirty.lock();
        let place = dirty.iter().position(|listed| listed.number() == number);
        let clean = place
            .filter(|place| !dirty[*place].stays_listed())
            .map(|place| dirty.remove(place));
        self.listed.store(dirty.len(), Ordering::SeqCst);
        drop(dirty);
        // Dropped with no lock held, as in `tidy`.
        drop(clean);
    }

    /// Removes clean mappings from the list.
    fn tidy(&self) {
        let mut clean = Vec::new();
        let mut dirty = self.dirty.lock();
        dirty.retain(|mapping| {
            let stays = mapping.stays_listed();
            if !stays {
                clean.push(mapping.clone());
            }
            stays
        });
        self.listed.store(dirty.len(), Ordering::SeqCst);
        drop(dirty);
        // Dropped with no lock held: these may be the last references to files.
        drop(clean);
    }

    /// Waits until there may be pages to write; returns whether a writer has requested writeback,
    /// and `None` to end the thread.
    fn wait_for_work(&self) -> Option<bool> {
        let mut signals = self.signals.lock();
        if !signals.is_requested && !signals.is_stopping {
            // Not by locking the list: a thread that has it locked may wait for a mapping's state,
            // and the thread that has the state may wait for `signals`.
            signals.is_timed = self.writes_by_age() && self.listed.load(Ordering::SeqCst) > 0;
            if signals.is_timed {
                let pause = Duration::from_millis(self.cache.options.dirty_writeback_ms);
                self.wake.wait_for(&mut signals, pause);
            } else {
                self.wake.wait(&mut signals);
            }
        }
        (!signals.is_stopping).then_some(signals.is_requested)
    }
}

/// Runs the background thread: on request it writes down to half the background limit; at an
/// interval it writes pages that have been dirty for long. Linux: `wb_workfn`.
fn run(shared: &Weak<WritebackState>) {
    while let Some(shared) = shared.upgrade() {
        let Some(is_requested) = shared.wait_for_work() else {
            return;
        };
        if is_requested {
            // The mapping keeps the error, and reports it at the next sync.
            let (background_bytes, _) = shared.dirty_limits();
            let _ = shared.write_back((background_bytes / 2).max(1));
            shared.signals.lock().is_requested = false;
        }
        if shared.writes_by_age() {
            shared.write_expired();
        }
    }
}
