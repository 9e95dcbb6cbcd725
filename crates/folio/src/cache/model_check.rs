//! The races of the cache under a model checker, which tries thousands of orders of steps
//! (base/sync).
//!
//! Each page is filled with one byte, which identifies the file, the page and the version.

use super::index::Word;
use super::mapping::AddressSpace;
use super::{CacheOptions, Mapping, PageCache, Store, Writeback};
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::schedules::{check, together};
use crate::base::sync::{self, thread};
use crate::base::{Errno, PAGE_SIZE, Result};
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, OnceLock, Weak};

const PAGE: u64 = PAGE_SIZE as u64;
/// The byte of another file.
const FOREIGN: u8 = 99;

/// A store in memory, one byte for each page.
struct Disk {
    pages: Mutex<Vec<u8>>,
    reads: AtomicU64,
    is_failing: AtomicBool,
    /// The first page that may not be written: the file was truncated there.
    end: AtomicU64,
    /// The byte of a block that was freed and belongs to another file.
    freed: AtomicU64,
    /// The mapping, for the size of the file.
    mapping: OnceLock<Weak<AddressSpace>>,
}

impl Disk {
    fn new(pages: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            pages: Mutex::new(pages.to_vec()),
            reads: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            end: AtomicU64::new(u64::MAX),
            freed: AtomicU64::new(u64::MAX),
            mapping: OnceLock::new(),
        })
    }

    fn page(&self, index: u64) -> u8 {
        self.pages
            .lock()
            .unwrap()
            .get(index as usize)
            .copied()
            .unwrap_or(0)
    }

    fn set(&self, index: u64, byte: u8) {
        let mut pages = self.pages.lock().unwrap();
        if pages.len() <= index as usize {
            pages.resize(index as usize + 1, 0);
        }
        pages[index as usize] = byte;
    }
}

impl Store for Disk {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.is_failing.load(Ordering::Relaxed) {
            return Err(Errno::IO.into());
        }
        // First, as in file systems: blocks past the end may belong to another file at any time.
        let inner = self.mapping.get().and_then(Weak::upgrade);
        let size =
            inner.map_or(u64::MAX, |inner| inner.size_bytes.load(Ordering::Acquire)) as usize;
        let pages = bufs
            .iter_mut()
            .flat_map(|buf| buf.chunks_exact_mut(PAGE_SIZE));
        for (index, page) in (offset / PAGE..).zip(pages) {
            // First the location, then the contents.
            let byte = self.page(index);
            let is_freed = self.freed.load(Ordering::SeqCst) == byte.into();
            page.fill(if is_freed { FOREIGN } else { byte });
            let len = size
                .saturating_sub(index as usize * PAGE_SIZE)
                .min(PAGE_SIZE);
            page[len..].fill(0);
        }
        Ok(())
    }

    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        if self.is_failing.load(Ordering::Relaxed) {
            return Err(Errno::IO.into());
        }
        let pages = bufs.iter().flat_map(|buf| buf.chunks_exact(PAGE_SIZE));
        for (index, page) in (offset / PAGE..).zip(pages) {
            sync::step();
            let before = page.to_vec();
            sync::step();
            assert_eq!(before, page, "stable while it is written");
            assert!(
                index < self.end.load(Ordering::SeqCst),
                "page {index} written after it was cut off"
            );
            self.set(index, page[0]);
        }
        Ok(())
    }
}

struct Fixture {
    cache: Arc<PageCache>,
    writeback: Arc<Writeback>,
}

fn fixture(budget_pages: u64) -> Fixture {
    let budget_bytes = budget_pages * PAGE;
    let cache = PageCache::new(CacheOptions {
        budget_bytes,
        dirty_background_bytes: 1 << 30,
        dirty_bytes: 1 << 30,
        background_writeback: false,
        ..CacheOptions::default()
    });
    let writeback = cache.writeback();
    Fixture { cache, writeback }
}

impl Fixture {
    /// Creates a file with these pages.
    fn file(&self, pages: &[u8]) -> (Arc<Disk>, Mapping) {
        let disk = Disk::new(pages);
        let mapping = self.mapping(&disk, pages.len() as u64);
        (disk, mapping)
    }

    fn mapping(&self, disk: &Arc<Disk>, page_count: u64) -> Mapping {
        let weak: Weak<Disk> = Arc::downgrade(disk);
        let mapping = Mapping::new(&self.writeback, weak, page_count * PAGE);
        disk.mapping.set(Arc::downgrade(&mapping.0)).unwrap();
        mapping
    }
}

/// Reads the bytes of a page up to the end of the file; `None` past it.
fn read(mapping: &Mapping, index: u64) -> Option<Vec<u8>> {
    let mut page = vec![0xee; PAGE_SIZE];
    let count = mapping.read(index * PAGE, &mut page).unwrap();
    page.truncate(count);
    page.dedup();
    (count > 0).then_some(page)
}

fn write(mapping: &Mapping, index: u64, byte: u8) {
    assert_eq!(
        mapping.write(index * PAGE, &[byte; PAGE_SIZE]).unwrap(),
        PAGE_SIZE
    );
}

#[track_caller]
fn assert_among(bytes: Option<Vec<u8>>, allowed: &[u8]) {
    let bytes = bytes.unwrap_or_default();
    assert!(
        bytes.iter().all(|byte| allowed.contains(byte)),
        "{bytes:?}, allowed are {allowed:?}"
    );
}

#[test]
fn reader_beside_truncate_sees_old_or_new_pages() {
    check(1500, || {
        let fixture = fixture(3);
        let (disk, mapping) = fixture.file(&[1, 2]);
        let parts: [Box<dyn FnOnce() + Send>; 2] = [
            Box::new({
                let mapping = mapping.clone();
                move || {
                    for _ in 0..2 {
                        assert_among(read(&mapping, 0), &[1]);
                        assert_among(read(&mapping, 1), &[2, 0, 3]);
                    }
                }
            }),
            Box::new({
                let (mapping, disk) = (mapping.clone(), disk.clone());
                move || {
                    mapping.truncate(PAGE);
                    disk.set(1, 0);
                    // Half of the page: the rest must be zeros.
                    mapping.write(PAGE + 2048, &[3; 2048]).unwrap();
                    assert_eq!(read(&mapping, 1), Some(vec![0, 3]));
                    mapping.truncate(PAGE);
                    write(&mapping, 1, 3);
                    assert_eq!(read(&mapping, 1), Some(vec![3]));
                }
            }),
        ];
        together(parts);
        assert_eq!(read(&mapping, 0), Some(vec![1]));
        assert_eq!(read(&mapping, 1), Some(vec![3]));
        fixture.writeback.write_back_all().unwrap();
        assert_eq!((disk.page(0), disk.page(1)), (1, 3));
    });
}

#[test]
fn truncate_within_a_page_zeroes_its_tail() {
    check(1000, || {
        let fixture = fixture(3);
        let (_disk, mapping) = fixture.file(&[1]);
        let reader = thread::spawn({
            let mapping = mapping.clone();
            move || assert_among(read(&mapping, 0), &[1, 0, 3])
        });
        // A store reads zeros past the end of the file; this one does not know the end.
        read(&mapping, 0);
        mapping.truncate(1000);
        mapping.write(3000, &[3; 1096]).unwrap();
        let mut page = [9; PAGE_SIZE];
        assert_eq!(mapping.read(0, &mut page).unwrap(), PAGE_SIZE);
        assert!(page[..1000].iter().all(|byte| *byte == 1));
        assert!(page[1000..3000].iter().all(|byte| *byte == 0));
        assert!(page[3000..].iter().all(|byte| *byte == 3));
        reader.join().unwrap();
        mapping.punch(0..u64::MAX);
    });
}

#[test]
fn reader_never_sees_the_next_page_of_a_frame() {
    check(1500, || {
        let fixture = fixture(2);
        let (_, one) = fixture.file(&[]);
        drop(one);
        let (_disk, one) = fixture.file(&[1, 2]);
        let (_other_disk, two) = fixture.file(&[11, 12, 13]);
        let readers = [(one, [1, 2]), (two.clone(), [11, 12])].map(|(mapping, bytes)| {
            Box::new(move || {
                for index in [0, 1, 0] {
                    assert_eq!(read(&mapping, index), Some(vec![bytes[index as usize]]));
                }
            }) as Box<dyn FnOnce() + Send>
        });
        let writer: Box<dyn FnOnce() + Send> = Box::new(move || {
            assert_eq!(two.page(2).unwrap().read()[..], [13; PAGE_SIZE]);
            two.invalidate(0..3 * PAGE);
        });
        together(readers.into_iter().chain([writer]));
        assert!(
            fixture.cache.counters().file_pages <= 2 + 3,
            "one more for each thread at most"
        );
    });
}

#[test]
fn two_faults_read_a_page_once() {
    check(1500, || {
        let fixture = fixture(4);
        let (disk, mapping) = fixture.file(&[7]);
        together((0..3).map(|_| {
            let mapping = mapping.clone();
            Box::new(move || assert_eq!(read(&mapping, 0), Some(vec![7])))
                as Box<dyn FnOnce() + Send>
        }));
        assert_eq!(disk.reads.load(Ordering::Relaxed), 1);
        assert_eq!(mapping.page_count(), 1);
    });
}

#[test]
fn failed_read_leaves_no_page() {
    check(1500, || {
        let fixture = fixture(4);
        let (disk, mapping) = fixture.file(&[7]);
        disk.is_failing.store(true, Ordering::SeqCst);
        together((0..2).map(|way| {
            let mapping = mapping.clone();
            Box::new(move || {
                let error = match way {
                    0 => mapping.read(0, &mut [0; 10]).unwrap_err(),
                    _ => mapping.page(0).map(drop).unwrap_err(),
                };
                assert_eq!(error.errno(), Errno::IO);
            }) as Box<dyn FnOnce() + Send>
        }));
        assert_eq!(mapping.page_count(), 0);
        disk.is_failing.store(false, Ordering::SeqCst);
        assert_eq!(read(&mapping, 0), Some(vec![7]));
    });
}

#[test]
fn overwrite_waits_for_a_failing_read() {
    check(1000, || {
        let fixture = fixture(4);
        let (disk, mapping) = fixture.file(&[7]);
        disk.is_failing.store(true, Ordering::SeqCst);
        let reader = thread::spawn({
            let mapping = mapping.clone();
            move || drop(mapping.read(0, &mut [0; 10]))
        });
        mapping.page_for_overwrite(0).unwrap().write().fill(8);
        reader.join().unwrap();
        assert_eq!(read(&mapping, 0), Some(vec![8]));
        disk.is_failing.store(false, Ordering::SeqCst);
        fixture.writeback.write_back_all().unwrap();
        assert_eq!(disk.page(0), 8);
    });
}

#[test]
fn written_pages_reach_the_store() {
    check(1500, || {
        let fixture = fixture(3);
        let (disk, mapping) = fixture.file(&[1, 2]);
        let writer: Box<dyn FnOnce() + Send> = Box::new({
            let mapping = mapping.clone();
            move || {
                for byte in [3, 4, 5] {
                    write(&mapping, 0, byte);
                    assert_eq!(read(&mapping, 0), Some(vec![byte]));
                }
                mapping.page(1).unwrap().write().fill(6);
            }
        });
        let syncer: Box<dyn FnOnce() + Send> = Box::new({
            let (writeback, mapping) = (fixture.writeback.clone(), mapping.clone());
            move || {
                writeback.write_back_all().unwrap();
                mapping.invalidate(0..2 * PAGE);
            }
        });
        let second: Box<dyn FnOnce() + Send> = Box::new({
            let mapping = mapping.clone();
            move || mapping.write_back(0..PAGE).unwrap()
        });
        together([writer, syncer, second]);
        assert_eq!(read(&mapping, 0), Some(vec![5]));
        fixture.writeback.write_back_all().unwrap();
        assert_eq!((disk.page(0), disk.page(1)), (5, 6));
        assert!(!mapping.is_dirty());
        assert_eq!(fixture.cache.counters().dirty_pages, 0);
        assert_eq!(fixture.cache.counters().writeback_pages, 0);
        assert_eq!(
            Arc::strong_count(&disk),
            1,
            "the store is released once all pages are clean"
        );
    });
}

#[test]
fn failed_write_leaves_the_page_dirty() {
    check(1000, || {
        let fixture = fixture(3);
        let (disk, mapping) = fixture.file(&[1]);
        write(&mapping, 0, 2);
        disk.is_failing.store(true, Ordering::SeqCst);
        let syncers: Vec<_> = (0..2)
            .map(|_| {
                let mapping = mapping.clone();
                thread::spawn(move || mapping.write_back(0..PAGE).is_err())
            })
            .collect();
        write(&mapping, 0, 3);
        let failed = syncers
            .into_iter()
            .map(|syncer| syncer.join().unwrap())
            .filter(|failed| *failed)
            .count();
        assert!(failed > 0 && mapping.check_error(&mut 0).is_err());
        assert!(mapping.is_dirty());
        disk.is_failing.store(false, Ordering::SeqCst);
        fixture.writeback.write_back_all().unwrap();
        assert_eq!(disk.page(0), 3);
    });
}

#[test]
fn no_page_is_written_past_a_truncation() {
    check(1500, || {
        let fixture = fixture(4);
        let (disk, mapping) = fixture.file(&[1, 2, 3]);
        (0..3).for_each(|index| write(&mapping, index, 10 + index as u8));
        let syncer = thread::spawn({
            let writeback = fixture.writeback.clone();
            move || writeback.write_back_all().unwrap()
        });
        let page = mapping.page(1).unwrap();
        // A handle of a truncated page refers to no file any more.
        let holder = thread::spawn(move || page.write().fill(20));
        mapping.truncate(PAGE);
        disk.end.store(1, Ordering::SeqCst);
        disk.set(1, 0);
        syncer.join().unwrap();
        holder.join().unwrap();
        assert_eq!(mapping.page_count(), 1);
        fixture.writeback.write_back_all().unwrap();
        assert_eq!((disk.page(0), disk.page(1)), (10, 0));
        assert!(!mapping.is_dirty());
        assert_eq!(fixture.cache.counters().dirty_pages, 0);
    });
}

#[test]
fn reader_beside_punch_sees_old_or_new_pages() {
    check(1500, || {
        let fixture = fixture(3);
        let (disk, mapping) = fixture.file(&[1, 2, 3]);
        write(&mapping, 1, 4);
        let reader: Box<dyn FnOnce() + Send> = Box::new({
            let mapping = mapping.clone();
            move || {
                assert_among(read(&mapping, 1), &[4, 2, 5]);
                assert_eq!(read(&mapping, 0), Some(vec![1]));
                assert_among(read(&mapping, 1), &[4, 2, 5]);
            }
        });
        let puncher: Box<dyn FnOnce() + Send> = Box::new({
            let mapping = mapping.clone();
            move || {
                mapping.punch(PAGE..2 * PAGE);
                assert_eq!(read(&mapping, 1), Some(vec![2]), "as the store has it");
                write(&mapping, 1, 5);
            }
        });
        let invalidator: Box<dyn FnOnce() + Send> = Box::new({
            let mapping = mapping.clone();
            move || {
                mapping.invalidate(0..u64::MAX);
            }
        });
        together([reader, puncher, invalidator]);
        assert_eq!(read(&mapping, 1), Some(vec![5]), "what is dirty stays");
        fixture.writeback.write_back_all().unwrap();
        assert_eq!(disk.page(1), 5);
    });
}

#[test]
fn reader_never_sees_a_freed_block() {
    check(1500, || {
        let fixture = fixture(4);
        let (disk, mapping) = fixture.file(&[1, 2, 3]);
        let reader = thread::spawn({
            let mapping = mapping.clone();
            move || {
                assert_among(read(&mapping, 1), &[2, 0]);
                assert_among(read(&mapping, 2), &[3, 0]);
                assert_among(read(&mapping, 1), &[2, 0]);
            }
        });
        // As file systems punch: pages may be read again until the block is freed.
        mapping.punch(PAGE..2 * PAGE);
        disk.set(1, 0);
        mapping.punch(PAGE..2 * PAGE);
        disk.freed.store(2, Ordering::SeqCst);
        assert_eq!(read(&mapping, 1), Some(vec![0]));
        // And as they truncate: a store reads zeros past the end of the file.
        mapping.truncate(2 * PAGE);
        disk.set(2, 0);
        disk.freed.store(3, Ordering::SeqCst);
        mapping.set_size_bytes(3 * PAGE);
        assert_eq!(read(&mapping, 2), Some(vec![0]));
        reader.join().unwrap();
        assert_eq!(
            (read(&mapping, 1), read(&mapping, 2)),
            (Some(vec![0]), Some(vec![0]))
        );
    });
}

#[test]
fn page_with_a_handle_is_not_evicted() {
    check(1500, || {
        let fixture = fixture(2);
        let (_disk, mapping) = fixture.file(&[1, 2, 3]);
        read(&mapping, 0);
        let holder: Box<dyn FnOnce() + Send> = Box::new({
            let mapping = mapping.clone();
            move || {
                let page = mapping.page(0).unwrap();
                let copy = page.clone();
                drop(page);
                assert_eq!(copy.read()[..], [1; PAGE_SIZE]);
                sync::step();
                assert_eq!(copy.read()[..], [1; PAGE_SIZE]);
            }
        });
        let others = [1, 2].map(|index| {
            let mapping = mapping.clone();
            Box::new(move || {
                mapping.invalidate(0..PAGE);
                assert_eq!(read(&mapping, index), Some(vec![index as u8 + 1]));
            }) as Box<dyn FnOnce() + Send>
        });
        together([holder].into_iter().chain(others));
    });
}

#[test]
fn write_by_handle_survives_eviction() {
    check(3000, || {
        let fixture = fixture(3);
        let (disk, mapping) = fixture.file(&[1]);
        read(&mapping, 0);
        let writer = thread::spawn({
            let mapping = mapping.clone();
            move || mapping.page(0).unwrap().write().fill(2)
        });
        mapping.invalidate(0..PAGE);
        writer.join().unwrap();
        assert_eq!(read(&mapping, 0), Some(vec![2]));
        fixture.writeback.write_back_all().unwrap();
        assert_eq!(disk.page(0), 2);
    });
}

#[test]
fn access_of_a_removed_page_has_no_effect() {
    check(1500, || {
        let fixture = fixture(4);
        let (_disk, mapping) = fixture.file(&[1]);
        read(&mapping, 0);
        mapping.0.index.take_referenced(0, &crate::base::rcu::pin());
        let user = thread::spawn({
            let mapping = mapping.clone();
            move || assert_eq!(read(&mapping, 0), Some(vec![1]))
        });
        let writer = thread::spawn({
            let mapping = mapping.clone();
            move || mapping.write(0, &[1; 10]).unwrap()
        });
        mapping.punch(0..PAGE);
        let check = |mapping: &Mapping| {
            let word = mapping.0.index.word(0, &crate::base::rcu::pin());
            assert!(
                word.frame().is_some() || word == Word::ABSENT,
                "flags of no page: {word:?}"
            );
        };
        check(&mapping);
        user.join().unwrap();
        writer.join().unwrap();
        check(&mapping);
        mapping.punch(0..PAGE);
        assert_eq!(mapping.page_count(), 0);
        assert_eq!(mapping.next_cached(0), None);
        check(&mapping);
    });
}

#[test]
fn reader_walks_a_changing_tree() {
    check(750, || {
        let fixture = fixture(4);
        let disk = Disk::new(&[]);
        disk.set(20, 1);
        disk.set(300, 2);
        let mapping = fixture.mapping(&disk, 301);
        let readers = [(20, 1), (300, 2)].map(|(index, byte)| {
            let mapping = mapping.clone();
            Box::new(move || {
                assert_eq!(read(&mapping, index), Some(vec![byte]));
                assert_eq!(read(&mapping, index), Some(vec![byte]));
            }) as Box<dyn FnOnce() + Send>
        });
        let puncher: Box<dyn FnOnce() + Send> = Box::new({
            let mapping = mapping.clone();
            move || {
                mapping.punch(0..301 * PAGE);
                mapping.invalidate(0..301 * PAGE);
            }
        });
        together(readers.into_iter().chain([puncher]));
        mapping.punch(0..301 * PAGE);
        assert_eq!(mapping.page_count(), 0);
    });
}
