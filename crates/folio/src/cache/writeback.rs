//! Dirty mappings of one backing device, and the thread that writes them. Linux:
//! mm/page-writeback.c.
//!
//! ```text
//!   dirty bytes:  0 ....... background ............ limit
//!                 writers run free   |  the thread writes  |  writers write too
//! ```
//!
//! Whatever is dirty, the thread looks now and then which mappings have been so for long, and
//! writes them.

use super::mapping::Inner;
use super::reclaim::PageCache;
use crate::base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex};
use crate::base::{PAGE_SIZE, Result};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What the thread and the writers share.
#[derive(Default)]
struct Signals {
    is_stopping: bool,
    is_wanted: bool,
    /// The thread will look at the list of dirty mappings without being told.
    is_timed: bool,
}

/// The dirty mappings of one backing device. Linux: `struct bdi_writeback`.
///
/// With `background_writeback`, a thread of its own writes them; dropping the `Writeback` stops it.
/// Dirty pages that nobody wrote back by then stay unwritten: file systems sync first.
pub struct Writeback {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The part that mappings and the thread hold.
pub(super) struct Shared {
    pub(super) cache: Arc<PageCache>,
    /// Mappings with dirty folios, first dirtied first.
    dirty: Mutex<Vec<Arc<Inner>>>,
    /// The list's length, changed with the list locked.
    listed: AtomicUsize,
    dirty_pages: AtomicU64,
    signals: Mutex<Signals>,
    wake: Condvar,
}

impl Writeback {
    pub(super) fn new(cache: &Arc<PageCache>) -> Arc<Self> {
        let shared = Arc::new(Shared {
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
            let builder = thread::Builder::new().name("folio-writeback".to_owned());
            // Without a thread writers write back themselves, which `throttle` sees to.
            *thread = builder.spawn(move || run(&shared)).ok();
        }
    }

    /// Writes every dirty page of every mapping of this device to its store, data and metadata
    /// alike, and waits. The first error is returned after everything was tried; failed pages stay
    /// dirty.
    pub fn write_back_all(&self) -> Result<()> {
        self.shared.write_back(0)
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.shared.signals.lock().is_stopping = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            // The thread itself may drop the last reference to a file system; it cannot wait for
            // itself.
            && thread.thread().id() != thread::current().id()
        {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
        // Mappings on the list hold it. What they have dirty goes nowhere any more.
        let listed = std::mem::take(&mut *self.shared.dirty.lock());
        drop(listed);
    }
}

impl Shared {
    fn bytes_dirty(&self) -> u64 {
        self.dirty_pages.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }

    /// Notes that a mapping's first folio became dirty.
    pub(super) fn list(&self, mapping: Arc<Inner>) {
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

    /// Notes that folios became dirty (positive) or clean (negative).
    pub(super) fn count_dirty(&self, change: i64) {
        self.dirty_pages.fetch_add(change as u64, Ordering::Relaxed);
    }

    /// Holds a writer back while too much is dirty. Nobody may call this with a folio or table
    /// locked.
    pub(super) fn throttle(&self) -> Result<()> {
        let options = &self.cache.options;
        let dirty = self.bytes_dirty();
        if dirty <= options.dirty_background_bytes {
            return Ok(());
        }
        if !options.background_writeback {
            return match dirty > options.dirty_bytes {
                true => self.make_room(options.dirty_background_bytes, options.dirty_bytes),
                false => Ok(()),
            };
        }
        {
            let mut signals = self.signals.lock();
            if !signals.is_wanted {
                signals.is_wanted = true;
                self.wake.notify_one();
            }
        }
        match dirty > options.dirty_bytes {
            // The thread is slower than the writer, who lends a hand.
            true => self.make_room(options.dirty_bytes, options.dirty_bytes),
            false => Ok(()),
        }
    }

    /// Writes until at most `keep_bytes` are dirty. A failure belongs to the file it hit, which
    /// remembers it; the caller is told only if more than `limit_bytes` stay dirty, for then
    /// nothing more can be taken.
    fn make_room(&self, keep_bytes: u64, limit_bytes: u64) -> Result<()> {
        match self.write_back(keep_bytes) {
            Err(error) if self.bytes_dirty() > limit_bytes => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes mappings, first dirtied first, until at most `keep_bytes` are dirty; with 0,
    /// everything, and waits for what others are writing.
    fn write_back(&self, keep_bytes: u64) -> Result<()> {
        let listed: Vec<Arc<Inner>> = self.dirty.lock().clone();
        let mut result = Ok(());
        for mapping in &listed {
            let written = match keep_bytes {
                0 => mapping.write_back(0..u64::MAX),
                // Several may be at it: each takes what nobody else is writing.
                _ if self.bytes_dirty() > keep_bytes => mapping.write_dirty(0..u64::MAX),
                _ => break,
            };
            result = result.and(written);
        }
        self.tidy();
        result
    }

    /// Writes the mappings that have been dirty for long. What fails is as if it had become dirty
    /// now.
    fn write_expired(&self) {
        let age = Duration::from_millis(self.cache.options.dirty_expire_ms);
        let now = Instant::now();
        let mut expired: Vec<Arc<Inner>> = self.dirty.lock().clone();
        expired.retain(|mapping| mapping.is_dirty_since(now, age));
        for mapping in &expired {
            // An error is remembered by the mapping it belongs to and told to whoever syncs it.
            let _ = mapping.write_dirty(0..u64::MAX);
        }
        if !expired.is_empty() {
            self.tidy();
        }
    }

    /// Takes a mapping off the list if it is clean now. A device may have no other than one that is
    /// always written by itself (metadata), and each holds the other while it is listed.
    pub(super) fn unlist(&self, mapping: &Arc<Inner>) {
        let mut dirty = self.dirty.lock();
        let place = dirty.iter().position(|listed| Arc::ptr_eq(listed, mapping));
        let clean = place
            .filter(|_| !mapping.stays_listed())
            .map(|place| dirty.remove(place));
        self.listed.store(dirty.len(), Ordering::SeqCst);
        drop(dirty);
        // With no lock held, as for all.
        drop(clean);
    }

    /// Takes mappings that are clean now off the list.
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
        // Dropped with no lock held: the last reference to a file may go here.
        drop(clean);
    }

    /// Waits until there may be something to write; says whether a writer asked for it. `None` to
    /// end.
    fn wait_for_work(&self) -> Option<bool> {
        let mut signals = self.signals.lock();
        if !signals.is_wanted && !signals.is_stopping {
            // Not by a look at the list: whoever has it locked may wait for a table, and the
            // table's owner for us.
            signals.is_timed = self.writes_by_age() && self.listed.load(Ordering::SeqCst) > 0;
            match signals.is_timed {
                true => {
                    let pause = Duration::from_millis(self.cache.options.dirty_writeback_ms);
                    self.wake.wait_for(&mut signals, pause);
                }
                false => self.wake.wait(&mut signals),
            }
        }
        (!signals.is_stopping).then_some(signals.is_wanted)
    }
}

/// The background thread: writes when asked to, down to half the background limit, and what has
/// been dirty for long.
fn run(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let Some(is_wanted) = shared.wait_for_work() else {
            return;
        };
        if is_wanted {
            // An error is remembered by the mapping it belongs to and told to whoever syncs it.
            let _ = shared.write_back((shared.cache.options.dirty_background_bytes / 2).max(1));
            shared.signals.lock().is_wanted = false;
        }
        if shared.writes_by_age() {
            shared.write_expired();
        }
    }
}
