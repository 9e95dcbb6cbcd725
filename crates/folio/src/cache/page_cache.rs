//! The page cache of a kernel: one budget of memory, shared by all mappings.

use super::counters::{self, Counters, Tally};
use super::folio::FRAMES_MAX;
use super::object_memory::ObjectMemory;
use super::policy::ReclaimPolicy;
use super::pool::Pool;
use super::readahead_threads::ReadaheadThreads;
use crate::base::Result;
use crate::base::owner_process::OwnerProcess;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::AtomicU64;
use crate::base::unwind::catch_panic;
use std::sync::Arc;

/// Limits of a [`PageCache`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CacheOptions {
    /// Memory for pages, inodes and names, in bytes; exceeded only by what is in use at this
    /// instant. At most 512 GiB.
    pub budget_bytes: u64,
    /// Dirty bytes from which background writeback starts (`dirty_background_bytes`).
    pub dirty_background_bytes: u64,
    /// Dirty bytes from which a writer must wait, or write back itself, before it continues
    /// (`dirty_bytes`).
    pub dirty_bytes: u64,
    /// Whether threads write in the background (one per [`super::Writeback`]) and read ahead.
    pub background_writeback: bool,
    /// Age in milliseconds from which dirty pages are written, however few they are
    /// (`dirty_expire_centisecs`).
    pub dirty_expire_ms: u64,
    /// Interval in milliseconds at which the writeback thread looks for such pages; 0 is never
    /// (`dirty_writeback_centisecs`).
    pub dirty_writeback_ms: u64,
}

impl Default for CacheOptions {
    /// A budget of 256 MiB; background writeback from an eighth, throttled writers from a half;
    /// ages as in Linux.
    fn default() -> Self {
        let budget_bytes = 256 << 20;
        Self {
            budget_bytes,
            dirty_background_bytes: budget_bytes / 8,
            dirty_bytes: budget_bytes / 2,
            background_writeback: true,
            dirty_expire_ms: 30_000,
            dirty_writeback_ms: 5_000,
        }
    }
}

/// One budget of memory for pages, inodes and names, shared by all mappings of a kernel.
pub struct PageCache {
    pub(super) options: CacheOptions,
    pub(super) pool: Arc<Pool>,
    pub(super) tally: Tally,
    pub(super) readahead_threads: ReadaheadThreads,
    pub(super) policy: Mutex<ReclaimPolicy>,
    objects: Arc<ObjectMemory>,
    /// The process whose threads and stores these are.
    owner: OwnerProcess,
    /// Frames reserved for the next pages of growing files.
    pub(super) reserved: AtomicU64,
}

impl PageCache {
    /// Creates a cache with the given limits.
    pub fn new(options: CacheOptions) -> Arc<Self> {
        let objects = ObjectMemory::new(options.budget_bytes);
        let pool = Pool::new(options.budget_bytes, objects.clone());
        let policy = Mutex::new(ReclaimPolicy::new(pool.budget().min(FRAMES_MAX)));
        let readahead_threads = ReadaheadThreads::new(options.background_writeback);
        Arc::new(Self {
            options,
            pool,
            tally: Tally::default(),
            readahead_threads,
            policy,
            objects,
            owner: OwnerProcess::current(),
            reserved: AtomicU64::new(0),
        })
    }

    /// Returns the memory for pages, inodes and names, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.options.budget_bytes
    }

    /// Returns the memory of inodes and names, to which a file system charges its inodes.
    pub fn objects(&self) -> &Arc<ObjectMemory> {
        &self.objects
    }

    /// Returns whether there are background threads.
    pub fn has_threads(&self) -> bool {
        self.options.background_writeback
    }

    /// Returns false in a child of fork(2), where the threads of the cache do not run.
    pub(super) fn is_in_own_process(&self) -> bool {
        self.owner.is_current()
    }

    /// Calls a store. A panic there becomes EIO, so that counts of I/O in flight stay true; a child
    /// of fork(2) gets EIO.
    pub(super) fn call_store<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.owner.check()?;
        catch_panic("the store of the file", call)
    }

    /// Returns the counters of the cache.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters {
            file_pages: self.pool.in_use(),
            ..Counters::default()
        };
        self.tally.add_to(&mut counters);
        counters.hits += counters::hits_of_cache(&self.tally);
        counters
    }
}
