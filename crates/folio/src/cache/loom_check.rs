//! The lock-free lookup of pages under loom. The bytes of a frame are a [`Plain`] value here, which
//! identifies the page.

use super::folio::{Frame, GROUP, LARGE_FOLIO_PAGES};
use super::index::{Index, Word};
use super::object_memory::ObjectMemory;
use super::pool::Pool;
use super::{CacheOptions, Mapping, PageCache, Store};
use crate::base::loom_check::{Plain, check, join};
use crate::base::rcu::{self, Pin};
use crate::base::sync::thread;
use crate::base::{PAGE_SIZE, Result};
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Weak};

const PAGE: u64 = PAGE_SIZE as u64;

/// An index and the bytes of the frames.
struct Pages {
    index: Index,
    bytes: Vec<Plain>,
}

impl Pages {
    fn new(frames: Frame) -> Arc<Self> {
        Arc::new(Self {
            index: Index::new(),
            bytes: (0..frames).map(|_| Plain::new(0)).collect(),
        })
    }

    /// Fills a frame, and inserts it as the page `index`. The fence of a pin after the fill would
    /// hide a wrong order of the insertion.
    fn insert(&self, index: u64, frame: Frame, byte: u64, pin: &Pin) {
        self.bytes[frame as usize].set(byte);
        self.index.insert(index, Word::new(frame, 0), pin);
    }

    /// Reads a page as a cached read does; `None` if it is absent.
    fn read(&self, index: u64) -> Option<u64> {
        let pin = rcu::pin();
        let slot = self.index.find(index, &pin)?;
        let word = slot.word();
        let bytes = &self.bytes[word.frame()? as usize];
        slot.touch(word);
        Some(bytes.get())
    }

    /// Reads a page of a large folio; `None` if there is none.
    fn read_large(&self, index: u64) -> Option<u64> {
        let pin = rcu::pin();
        let first = self.index.find(index, &pin)?.large().frame()?;
        Some(self.bytes[(first + (index % LARGE_FOLIO_PAGES) as Frame) as usize].get())
    }
}

fn start(pages: &Arc<Pages>, part: impl FnOnce(&Pages) + 'static) -> thread::JoinHandle<()> {
    let pages = pages.clone();
    thread::spawn(move || part(&pages))
}

#[test]
fn reader_of_a_new_page_sees_its_bytes() {
    check(None, || {
        let pages = Pages::new(2);
        let reader = start(&pages, |pages| {
            assert!(matches!(pages.read(3), None | Some(7)));
            assert!(matches!(pages.read(20), None | Some(8)));
        });
        let pin = rcu::pin();
        pages.insert(3, 0, 7, &pin);
        pages.insert(20, 1, 8, &pin);
        join([reader]);
    });
}

#[test]
fn reader_of_a_large_folio_sees_all_its_bytes() {
    check(None, || {
        let pages = Pages::new(GROUP);
        let pin = rcu::pin();
        for frame in 0..GROUP - 1 {
            pages.insert(frame.into(), frame, 7, &pin);
        }
        let last = LARGE_FOLIO_PAGES - 1;
        let readers = [last, 2].map(|index| {
            start(&pages, move |pages| {
                assert!(matches!(pages.read_large(index), None | Some(7)));
            })
        });
        pages.insert(last, GROUP - 1, 7, &pin);
        pages.index.try_form_large(last, &pin);
        join(readers);
    });
}

#[test]
fn reader_walks_a_tree_that_grows_and_shrinks() {
    check(None, || {
        let pages = Pages::new(3);
        let pin = rcu::pin();
        pages.insert(20, 0, 7, &pin);
        let reader = start(&pages, |pages| {
            assert!(matches!(pages.read(20), None | Some(7 | 9)));
            assert!(matches!(pages.read(300), None | Some(8)));
        });
        pages.insert(300, 1, 8, &pin);
        pages.index.remove(20, &pin);
        pages.insert(20, 2, 9, &pin);
        join([reader]);
        assert_eq!((pages.read(20), pages.read(300)), (Some(9), Some(8)));
    });
}

#[test]
fn touch_does_not_restore_a_removed_page() {
    check(None, || {
        let pages = Pages::new(1);
        let pin = rcu::pin();
        pages.insert(3, 0, 7, &pin);
        let reader = start(&pages, |pages| {
            pages.read(3);
        });
        pages.index.take_referenced(3, &pin);
        pages.index.remove(3, &pin);
        join([reader]);
        assert_eq!(pages.index.word(3, &pin), Word::ABSENT);
    });
}

#[test]
fn frame_is_not_refilled_under_a_reader() {
    check(None, || {
        let pages = Pages::new(GROUP);
        let budget_bytes = PAGE * u64::from(GROUP);
        let pool = Pool::new(budget_bytes, ObjectMemory::new(budget_bytes));
        let frames: Vec<Frame> = (0..GROUP).map(|_| pool.take().unwrap()).collect();
        pages.insert(3, frames[0], 7, &rcu::pin());
        let reader = start(&pages, |pages| {
            assert!(matches!(pages.read(3), None | Some(7)));
        });
        let word = pages.index.remove(3, &rcu::pin());
        pool.put(word.frame());
        assert!(pool.settle(1, GROUP.into()));
        let frame = pool.take().unwrap();
        assert_eq!(Some(frame), word.frame());
        pages.insert(4, frame, 8, &rcu::pin());
        join([reader]);
    });
}

/// A store whose pages are zeros.
struct Zeros;

impl Store for Zeros {
    fn read_pages(&self, _offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        bufs.iter_mut().for_each(|buf| buf.fill(0));
        Ok(())
    }

    fn write_pages(&self, _offset: u64, _bufs: &[IoSlice<'_>]) -> Result<()> {
        Ok(())
    }
}

#[test]
fn evicted_page_has_no_handle() {
    check(None, || {
        let cache = PageCache::new(CacheOptions {
            budget_bytes: PAGE * u64::from(GROUP),
            background_writeback: false,
            ..CacheOptions::default()
        });
        let store: Weak<Zeros> = Arc::downgrade(&Arc::new(Zeros));
        let mapping = Mapping::new(&cache.writeback(), store.clone(), PAGE);
        let fresh = mapping.0.new_page(0).unwrap();
        let frame = fresh.frame();
        mapping
            .0
            .index
            .insert(0, Word::new(fresh.into_frame(), 0), &rcu::pin());
        let bytes = Arc::new(Plain::new(7));
        let holder = thread::spawn({
            let (mapping, bytes) = (mapping.clone(), bytes.clone());
            move || {
                let hold = mapping.0.hold_cached(0);
                assert!(hold.is_none_or(|hold| hold.frame() == frame && bytes.get() == 7));
            }
        });
        if mapping.0.try_evict(0, frame) && mapping.0.pool.settle(16, 16) {
            bytes.set(8);
        }
        join([holder]);
    });
}
