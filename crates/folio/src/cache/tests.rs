//! The cache against a plain model, with a budget so small that reclaim and writeback run all the
//! time.

use super::{Borrowed, CacheOptions, Mapping, PageCache, Store, Writeback};
use crate::base::lock::Mutex;
use crate::base::{Errno, PAGE_SIZE, Result};
use proptest::prelude::*;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A store in memory that counts calls and fails on command.
#[derive(Default)]
struct MemoryStore {
    bytes: Mutex<Vec<u8>>,
    writes: AtomicU64,
    is_failing: AtomicBool,
}

impl Store for MemoryStore {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        if self.is_failing.load(Ordering::Relaxed) {
            return Err(Errno::IO.into());
        }
        let bytes = self.bytes.lock();
        let mut at = offset as usize;
        for buf in bufs {
            let stored = bytes.get(at..).unwrap_or(&[]);
            let count = stored.len().min(buf.len());
            buf[..count].copy_from_slice(&stored[..count]);
            buf[count..].fill(0);
            at += buf.len();
        }
        Ok(())
    }

    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        if self.is_failing.load(Ordering::Relaxed) {
            return Err(Errno::IO.into());
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut bytes = self.bytes.lock();
        let mut at = offset as usize;
        for buf in bufs {
            if bytes.len() < at + buf.len() {
                bytes.resize(at + buf.len(), 0);
            }
            bytes[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(())
    }
}

struct Fixture {
    cache: Arc<PageCache>,
    writeback: Arc<Writeback>,
    store: Arc<MemoryStore>,
    mapping: Mapping,
}

fn fixture(budget_pages: u64, background_writeback: bool) -> Fixture {
    let budget_bytes = budget_pages * PAGE_SIZE as u64;
    fixture_with(CacheOptions {
        budget_bytes,
        dirty_background_bytes: budget_bytes / 4,
        dirty_bytes: budget_bytes / 2,
        background_writeback,
        ..CacheOptions::default()
    })
}

fn fixture_with(options: CacheOptions) -> Fixture {
    let cache = PageCache::new(options);
    let writeback = cache.writeback();
    let store = Arc::new(MemoryStore::default());
    let weak: Weak<MemoryStore> = Arc::downgrade(&store);
    let mapping = Mapping::new(&writeback, weak, 0);
    Fixture {
        cache,
        writeback,
        store,
        mapping,
    }
}

#[derive(Debug, Clone)]
enum Op {
    Write(usize, usize, u8),
    Read(usize, usize),
    Truncate(usize),
    Zero(usize, usize),
    WriteBack,
    Invalidate,
}

fn op() -> impl Strategy<Value = Op> {
    let at = 0_usize..200_000;
    prop_oneof![
        4 => (at.clone(), 1_usize..30_000, any::<u8>()).prop_map(|(a, n, b)| Op::Write(a, n, b)),
        4 => (at.clone(), 1_usize..30_000).prop_map(|(a, n)| Op::Read(a, n)),
        1 => at.clone().prop_map(Op::Truncate),
        1 => (at, 1_usize..30_000).prop_map(|(a, n)| Op::Zero(a, n)),
        1 => Just(Op::WriteBack),
        1 => Just(Op::Invalidate),
    ]
}

/// Cuts the store as a file system does, so that what was truncated never comes back.
fn truncate(fixture: &Fixture, len: usize) {
    fixture.mapping.truncate(len as u64);
    let mut bytes = fixture.store.bytes.lock();
    let kept = len.min(bytes.len());
    bytes.truncate(kept);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn agrees_with_a_vector(ops in prop::collection::vec(op(), 1..60), background in any::<bool>()) {
        let fixture = fixture(16, background);
        let mut model: Vec<u8> = Vec::new();
        for op in ops {
            match op {
                Op::Write(at, len, byte) => {
                    let bytes = vec![byte; len];
                    prop_assert_eq!(fixture.mapping.write(at as u64, &bytes).unwrap(), len);
                    if model.len() < at + len { model.resize(at + len, 0); }
                    model[at..at + len].copy_from_slice(&bytes);
                }
                Op::Read(at, len) => {
                    let mut bytes = vec![1; len];
                    let count = fixture.mapping.read(at as u64, &mut bytes).unwrap();
                    let expected = model.get(at..).unwrap_or(&[]);
                    prop_assert_eq!(&bytes[..count], &expected[..expected.len().min(len)]);
                }
                Op::Truncate(len) => {
                    truncate(&fixture, len);
                    model.resize(len, 0);
                }
                Op::Zero(at, len) => {
                    let end = (at + len).min(model.len());
                    if at < end {
                        fixture.mapping.zero_range(at as u64..end as u64).unwrap();
                        model[at..end].fill(0);
                    }
                }
                Op::WriteBack => fixture.writeback.write_back_all().unwrap(),
                Op::Invalidate => drop(fixture.mapping.invalidate(0..u64::MAX)),
            }
            prop_assert_eq!(fixture.mapping.size_bytes(), model.len() as u64);
        }
        fixture.writeback.write_back_all().unwrap();
        prop_assert!(!fixture.mapping.is_dirty());
        prop_assert_eq!(fixture.cache.counters().dirty_pages, 0);
        let stored = fixture.store.bytes.lock();
        for (i, byte) in model.iter().enumerate() {
            prop_assert_eq!(stored.get(i).copied().unwrap_or(0), *byte, "byte {}", i);
        }
    }
}

#[test]
fn runs_are_long_and_the_budget_holds() {
    let fixture = fixture(256, false);
    fixture.mapping.write(0, &vec![7; 100 * PAGE_SIZE]).unwrap();
    fixture.writeback.write_back_all().unwrap();
    assert_eq!(fixture.store.writes.load(Ordering::Relaxed), 1);
    for chunk in 0..100 {
        fixture
            .mapping
            .write(
                chunk * 40 * PAGE_SIZE as u64,
                &vec![chunk as u8; 40 * PAGE_SIZE],
            )
            .unwrap();
        assert!(
            fixture.cache.counters().file_pages <= 256 + 64,
            "{:?}",
            fixture.cache.counters()
        );
    }
    let mut byte = [0];
    fixture
        .mapping
        .read(99 * 40 * PAGE_SIZE as u64, &mut byte)
        .unwrap();
    assert_eq!(byte, [99]);
}

#[test]
fn failed_write_keeps_data_and_is_reported_once() {
    let fixture = fixture(64, false);
    let mut early = fixture.mapping.error_cursor();
    fixture.mapping.write(0, b"precious").unwrap();
    fixture.store.is_failing.store(true, Ordering::Relaxed);
    assert_eq!(
        fixture.writeback.write_back_all().unwrap_err().errno(),
        Errno::IO
    );
    assert!(fixture.mapping.is_dirty());
    assert_eq!(
        fixture.mapping.check_error(&mut early).unwrap_err().errno(),
        Errno::IO
    );
    fixture.mapping.check_error(&mut early).unwrap();
    let mut late = fixture.mapping.error_cursor();
    fixture.mapping.check_error(&mut late).unwrap();
    fixture.store.is_failing.store(false, Ordering::Relaxed);
    fixture.writeback.write_back_all().unwrap();
    assert_eq!(&fixture.store.bytes.lock()[..8], b"precious");
}

#[test]
fn unreported_error_is_seen_by_the_next_observer() {
    let fixture = fixture(64, false);
    fixture.mapping.write(0, b"precious").unwrap();
    fixture.store.is_failing.store(true, Ordering::Relaxed);
    assert_eq!(
        fixture.writeback.write_back_all().unwrap_err().errno(),
        Errno::IO
    );
    let mut next = fixture.mapping.error_cursor();
    assert_eq!(
        fixture.mapping.check_error(&mut next).unwrap_err().errno(),
        Errno::IO
    );
    fixture.mapping.check_error(&mut next).unwrap();
    fixture
        .mapping
        .check_error(&mut fixture.mapping.error_cursor())
        .unwrap();
}

/// Waits until a background thread has made `is_true` return true.
fn wait_until(event: &str, is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < deadline, "{event}");
        std::thread::yield_now();
    }
}

fn aging_fixture(dirty_expire_ms: u64, dirty_writeback_ms: u64) -> Fixture {
    let budget_bytes = 256 * PAGE_SIZE as u64;
    fixture_with(CacheOptions {
        budget_bytes,
        dirty_background_bytes: budget_bytes / 4,
        dirty_bytes: budget_bytes / 2,
        background_writeback: true,
        dirty_expire_ms,
        dirty_writeback_ms,
    })
}

#[test]
fn expired_dirty_page_is_written() {
    let fixture = aging_fixture(0, 1);
    for round in 0..20 {
        fixture.mapping.write(0, &[round; 10]).unwrap();
        wait_until("a single page is written", || !fixture.mapping.is_dirty());
        assert_eq!(fixture.store.bytes.lock()[..10], [round; 10]);
    }
    fixture.store.is_failing.store(true, Ordering::Relaxed);
    let mut observer = fixture.mapping.error_cursor();
    fixture.mapping.write(0, b"precious").unwrap();
    wait_until("the failure is recorded", || {
        fixture.mapping.check_error(&mut observer.clone()).is_err()
    });
    assert_eq!(
        fixture
            .mapping
            .check_error(&mut observer)
            .unwrap_err()
            .errno(),
        Errno::IO
    );
    fixture.store.is_failing.store(false, Ordering::Relaxed);
    wait_until("the write is retried", || !fixture.mapping.is_dirty());
    assert_eq!(&fixture.store.bytes.lock()[..8], b"precious");
}

#[test]
fn unexpired_page_stays_dirty() {
    for fixture in [
        aging_fixture(3_600_000, 1),
        aging_fixture(0, 0),
        fixture(256, false),
    ] {
        // A second device, whose thread has work, shows that time has passed.
        let other = aging_fixture(0, 1);
        fixture.mapping.write(0, b"young").unwrap();
        for _ in 0..5 {
            other.mapping.write(0, b"old").unwrap();
            wait_until("the other is written", || !other.mapping.is_dirty());
        }
        assert!(fixture.mapping.is_dirty());
        assert_eq!(fixture.store.writes.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn objects_lower_the_dirty_limit() {
    let fixture = fixture(256, false);
    let _objects = fixture.cache.objects().charge(128 * PAGE_SIZE);
    for index in 0..256 {
        let page = [7; PAGE_SIZE];
        fixture
            .mapping
            .write(index * PAGE_SIZE as u64, &page)
            .unwrap();
        // A half of what is left to pages, and the page of this write.
        let dirty_pages = fixture.cache.counters().dirty_pages;
        assert!(dirty_pages <= 65, "{dirty_pages} after page {index}");
    }
}

#[test]
fn failing_store_stops_writers_within_the_budget() {
    for background in [false, true] {
        let fixture = fixture(64, background);
        fixture.store.is_failing.store(true, Ordering::Relaxed);
        let page = [3; PAGE_SIZE];
        let mut written = 0_u64;
        let error = loop {
            assert!(written < 1000, "no writer gets the error");
            match fixture.mapping.write(written * PAGE_SIZE as u64, &page) {
                Ok(count) => written += (count / PAGE_SIZE) as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Errno::IO);
        let counters = fixture.cache.counters();
        assert!(
            counters.file_pages <= 64 && counters.dirty_pages >= 32,
            "{counters:?}"
        );
        // No written byte is lost.
        fixture.store.is_failing.store(false, Ordering::Relaxed);
        fixture
            .mapping
            .write(written * PAGE_SIZE as u64, &page)
            .unwrap();
        fixture.writeback.write_back_all().unwrap();
        assert_eq!(
            *fixture.store.bytes.lock(),
            vec![3; (written as usize + 1) * PAGE_SIZE]
        );
    }
}

#[test]
fn failed_read_leaves_no_page() {
    let fixture = fixture(64, false);
    fixture.mapping.write(0, &[5; 3 * PAGE_SIZE]).unwrap();
    fixture.writeback.write_back_all().unwrap();
    assert_eq!(fixture.mapping.invalidate(0..u64::MAX), 3);
    fixture.store.is_failing.store(true, Ordering::Relaxed);
    assert_eq!(
        fixture.mapping.read(0, &mut [0; 10]).unwrap_err().errno(),
        Errno::IO
    );
    assert_eq!(fixture.mapping.page_count(), 0);
    fixture.store.is_failing.store(false, Ordering::Relaxed);
    let mut bytes = [0; 10];
    assert_eq!(fixture.mapping.read(0, &mut bytes).unwrap(), 10);
    assert_eq!(bytes, [5; 10]);
}

#[test]
fn write_without_store_beyond_budget_is_enospc() {
    let fixture = fixture(8, false);
    let mapping = Mapping::without_store(&fixture.writeback, 0, None);
    assert_eq!(
        mapping.write(0, &[1; 20 * PAGE_SIZE]).unwrap(),
        8 * PAGE_SIZE
    );
    assert_eq!(
        mapping
            .write(20 * PAGE_SIZE as u64, &[1])
            .unwrap_err()
            .errno(),
        Errno::NOSPC
    );
    mapping.truncate(0);
    assert_eq!(mapping.write(0, &[1; 4]).unwrap(), 4);
}

/// The contents of a page in the stress test: stamps of 8 bytes, with the page's index and the
/// round of the write. A reader may find stamps of rounds between the start and the end of its
/// read.
fn stamp(index: u64, round: u64) -> [u8; 8] {
    (index << 48 | round).to_le_bytes()
}

/// Reads random pages, and checks each byte against the rounds of writes that have ended before the
/// read, and begun before its end.
fn check_reads(
    fixture: &Fixture,
    seed: u64,
    is_done: &AtomicBool,
    ended: &[AtomicU64],
    begun: &[AtomicU64],
) {
    let mut random = seed;
    let mut page = vec![0; PAGE_SIZE];
    while !is_done.load(Ordering::Relaxed) {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let index = (random >> 33) % ended.len() as u64;
        let oldest = ended[index as usize].load(Ordering::SeqCst);
        let count = fixture
            .mapping
            .read(index * PAGE_SIZE as u64, &mut page)
            .unwrap();
        let newest = begun[index as usize].load(Ordering::SeqCst);
        for word in page[..count].as_chunks::<8>().0 {
            let number = u64::from_le_bytes(*word);
            let (owner, round) = (number >> 48, number & 0xffff_ffff);
            // A hole that truncation made reads as zeros until the page is written again.
            let is_hole = number == 0 && oldest != newest;
            assert!(
                is_hole || owner == index && (oldest..=newest).contains(&round),
                "page {index} has page {owner}, round {round}; allowed are {oldest} to {newest}"
            );
        }
    }
}

/// Readers check every byte while pages are written, written back, evicted, punched and truncated.
#[test]
fn readers_never_see_stale_or_foreign_bytes() {
    const PAGES: u64 = 64;
    const ROUNDS: u64 = 4000;
    let fixture = fixture(24, true);
    let fill = |index: u64, round: u64| stamp(index, round).repeat(PAGE_SIZE / 8);
    for index in 0..PAGES {
        fixture
            .mapping
            .write(index * PAGE_SIZE as u64, &fill(index, 1))
            .unwrap();
    }
    // The round of the last write to each page that has ended, and of the last that has begun.
    let ended: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(1)).collect();
    let begun: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(1)).collect();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..3_u64 {
            let (fixture, is_done, ended, begun) = (&fixture, &is_done, &ended, &begun);
            scope.spawn(move || check_reads(fixture, seed, is_done, ended, begun));
        }
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                fixture.writeback.write_back_all().unwrap();
                fixture.mapping.invalidate(0..u64::MAX);
                // Lets the other threads take the locks.
                std::thread::yield_now();
            }
        });
        let mut random = 99_u64;
        for round in 2..ROUNDS {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let index = (random >> 33) % PAGES;
            let last = if round % 50 == 49 { PAGES } else { index + 1 };
            (index..last).for_each(|page| begun[page as usize].store(round, Ordering::SeqCst));
            if round % 50 == 49 {
                truncate(&fixture, index as usize * PAGE_SIZE);
            }
            for page in index..last {
                fixture
                    .mapping
                    .write(page * PAGE_SIZE as u64, &fill(page, round))
                    .unwrap();
                ended[page as usize].store(round, Ordering::SeqCst);
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    fixture.writeback.write_back_all().unwrap();
    assert_eq!(fixture.cache.counters().dirty_pages, 0);
    let stored = fixture.store.bytes.lock();
    for (index, round) in ended.iter().enumerate() {
        let expected = fill(index as u64, round.load(Ordering::SeqCst));
        assert_eq!(
            stored[index * PAGE_SIZE..][..PAGE_SIZE],
            expected,
            "page {index}"
        );
    }
}

/// Returns the bytes of a borrow.
fn borrowed_bytes(borrowed: &Borrowed) -> Vec<u8> {
    borrowed.read().slices().flatten().copied().collect()
}

#[test]
fn borrow_has_the_same_bytes_as_read() {
    let fixture = fixture(512, false);
    let with_holes = Mapping::without_store(&fixture.writeback, 0, None);
    for mapping in [&fixture.mapping, &with_holes] {
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
        mapping.write(0, &bytes).unwrap();
        mapping.write(400_000, &bytes[..100_000]).unwrap();
        for (offset, len) in [
            (0, 10),
            (4095, 2),
            (65_530, 70_000),
            (123, 1 << 20),
            (290_000, 150_000),
            (499_999, 9),
            (500_000, 1),
        ] {
            let mut expected = vec![0; len];
            let count = mapping.read(offset, &mut expected).unwrap();
            let borrowed = mapping.borrow(offset, len).unwrap();
            assert_eq!((borrowed.len(), borrowed.is_empty()), (count, count == 0));
            assert_eq!(
                borrowed_bytes(&borrowed),
                expected[..count],
                "{len} bytes at {offset}"
            );
        }
        let whole = mapping.borrow(65_536, 65_536).unwrap();
        assert_eq!(
            whole.read().slices().count(),
            1,
            "a large folio is contiguous"
        );
        assert_eq!(mapping.borrow(0, usize::MAX).unwrap().len(), 500_000);
    }
}

#[test]
fn borrowed_pages_are_not_reused() {
    let fixture = fixture(16, false);
    fixture.mapping.write(0, &[7; 2 * PAGE_SIZE]).unwrap();
    let borrowed = fixture.mapping.borrow(0, 2 * PAGE_SIZE).unwrap();
    truncate(&fixture, 0);
    for round in 0..10 {
        fixture
            .mapping
            .write(0, &vec![round; 40 * PAGE_SIZE])
            .unwrap();
        fixture.writeback.write_back_all().unwrap();
        fixture.mapping.invalidate(0..u64::MAX);
    }
    assert_eq!(borrowed_bytes(&borrowed), [7; 2 * PAGE_SIZE]);
    drop(borrowed);
    fixture.mapping.truncate(0);
    while fixture.cache.counters().file_pages > 0 {
        // Frames leave limbo at an allocation.
        fixture.cache.make_room(16);
    }
}

#[test]
fn write_from_borrowed_pages_copies_them() {
    let fixture = fixture(512, false);
    let bytes: Vec<u8> = (0..200_000_u32).map(|at| (at / 3) as u8).collect();
    fixture.mapping.write(0, &bytes).unwrap();
    let other = Mapping::without_store(&fixture.writeback, 0, None);
    for (from, to, len) in [
        (0, 0, 200_000),
        (5, 70_001, 100_000),
        (4090, 65_536, 65_536),
    ] {
        let borrowed = fixture.mapping.borrow(from, len).unwrap();
        assert_eq!(other.write_from(to, &borrowed.source()).unwrap(), len);
        let mut copied = vec![0; len];
        assert_eq!(other.read(to, &mut copied).unwrap(), len);
        assert!(
            copied == bytes[from as usize..][..len],
            "{len} from {from} to {to}"
        );
    }
    // Onto itself, within a page.
    let borrowed = fixture.mapping.borrow(10, 100).unwrap();
    fixture.mapping.write_from(50, &borrowed.source()).unwrap();
    let mut page = [0; 200];
    fixture.mapping.read(0, &mut page).unwrap();
    assert_eq!(page[50..150], bytes[10..110]);
}

#[test]
fn next_absent_is_the_end_of_cached_pages() {
    let fixture = fixture(64, false);
    fixture.mapping.write(0, &[1; 3 * PAGE_SIZE]).unwrap();
    assert_eq!(fixture.mapping.next_absent(100), 3 * PAGE_SIZE as u64);
    assert_eq!(fixture.mapping.next_cached(100), Some(100));
    assert_eq!(fixture.mapping.next_cached(3 * PAGE_SIZE as u64), None);
}

#[test]
fn written_mapping_keeps_no_reference_of_the_cache() {
    let fixture = fixture(64, false);
    fixture.mapping.write(0, b"dirty").unwrap();
    fixture.mapping.write_back(0..u64::MAX).unwrap();
    let cache = Arc::downgrade(&fixture.cache);
    drop(fixture);
    assert!(
        cache.upgrade().is_none(),
        "the cache is dropped with its last user"
    );
}

#[test]
fn dirty_mapping_keeps_no_reference_of_the_cache() {
    for truncates in [false, true] {
        let fixture = fixture(64, false);
        fixture.mapping.write(0, b"dirty").unwrap();
        if truncates {
            truncate(&fixture, 0);
        }
        let cache = Arc::downgrade(&fixture.cache);
        drop(fixture);
        assert!(
            cache.upgrade().is_none(),
            "the cache is dropped with its last user"
        );
    }
}

/// Without the removal of stale entries, each new page would scan all of them.
#[test]
fn dropped_pages_leave_no_queue_entries() {
    let pages = 20_000;
    let fixture = fixture(2 * pages, false);
    for _ in 0..3 {
        for page in 0..pages {
            fixture
                .mapping
                .write(page * PAGE_SIZE as u64, b"x")
                .unwrap();
        }
        fixture.mapping.write_back(0..u64::MAX).unwrap();
        truncate(&fixture, 0);
    }
    // Frames of dropped pages count until their grace period is over, which readers in other tests
    // may hold up.
    let mut entries = 0;
    for _ in 0..10_000 {
        for page in 0..100 {
            fixture
                .mapping
                .write(page * PAGE_SIZE as u64, b"x")
                .unwrap();
        }
        entries = fixture.cache.candidates_len();
        if entries < pages as usize {
            return;
        }
        fixture.mapping.write_back(0..u64::MAX).unwrap();
        truncate(&fixture, 0);
        std::thread::yield_now();
    }
    panic!("{entries} entries for 100 pages");
}
