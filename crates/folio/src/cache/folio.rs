//! A folio: one page of a file in memory, and the handles that pin it. Linux: `struct folio`.

use super::mapping::Inner;
use super::pool::Frame;
use crate::base::PAGE_SIZE;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// One page in memory. Whoever holds an `Arc` of it beside the mapping's own pins it.
pub(super) struct Folio {
    pub(super) index: u64,
    pub(super) owner: Weak<Inner>,
    pub(super) bytes: RwLock<Frame>,
    /// Whether the bytes are the file's; false while they are being read, and for ever if that failed.
    pub(super) is_uptodate: AtomicBool,
    /// Whether the mapping's dirty set has the folio; changed with the table locked.
    pub(super) is_dirty: AtomicBool,
    /// Set by use, cleared by reclaim: a second chance.
    pub(super) is_referenced: AtomicBool,
}

impl Folio {
    pub(super) fn new(owner: &Arc<Inner>, index: u64, frame: Frame, is_uptodate: bool) -> Arc<Self> {
        Arc::new(Self {
            index,
            owner: Arc::downgrade(owner),
            bytes: RwLock::new(frame),
            is_uptodate: AtomicBool::new(is_uptodate),
            is_dirty: AtomicBool::new(false),
            is_referenced: AtomicBool::new(false),
        })
    }

    /// Notes a use, without writing to shared memory when it is noted already.
    pub(super) fn touch(&self) {
        if !self.is_referenced.load(Ordering::Relaxed) {
            self.is_referenced.store(true, Ordering::Relaxed);
        }
    }
}

/// A pinned page: stays in memory while this handle lives. Cheap to clone.
#[derive(Clone)]
pub struct Page {
    pub(super) folio: Arc<Folio>,
}

impl Page {
    /// The bytes, shared with other readers.
    pub fn read(&self) -> PageReadGuard<'_> {
        PageReadGuard { bytes: self.folio.bytes.read() }
    }

    /// The bytes, exclusively; the page is dirty from now on. Waits while the page is being written to its store.
    pub fn write(&self) -> PageWriteGuard<'_> {
        let bytes = self.folio.bytes.write();
        if !self.folio.is_dirty.load(Ordering::Acquire)
            && let Some(owner) = self.folio.owner.upgrade()
        {
            owner.mark_dirty(&self.folio);
        }
        PageWriteGuard { bytes }
    }
}

/// Shared access to a page's bytes.
pub struct PageReadGuard<'a> {
    bytes: RwLockReadGuard<'a, Frame>,
}

impl Deref for PageReadGuard<'_> {
    type Target = [u8; PAGE_SIZE];

    fn deref(&self) -> &Self::Target {
        &self.bytes
    }
}

/// Exclusive access to a page's bytes.
pub struct PageWriteGuard<'a> {
    bytes: RwLockWriteGuard<'a, Frame>,
}

impl Deref for PageWriteGuard<'_> {
    type Target = [u8; PAGE_SIZE];

    fn deref(&self) -> &Self::Target {
        &self.bytes
    }
}

impl DerefMut for PageWriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.bytes
    }
}
