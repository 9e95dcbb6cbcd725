//! A device with the time and the write cache of a modeled hard disk, for measurements without one.

use crate::base::Result;
use crate::base::condvar::Condvar;
use crate::base::lock::Mutex;
use crate::block::{Allocation, Device, LowerDevice, iov};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The disk that a [`SlowDevice`] models.
///
/// ```text
///   seek            half a turn + track_to_track .. full stroke, by the root of the distance
///   short skip      the time in which the bytes pass under the head, where that is less
///   bytes           at media_bytes_per_s; into the write cache at interface_bytes_per_s
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskModel {
    /// Seek time from one track to the next, in microseconds.
    pub track_to_track_us: u32,
    /// Average seek time between random places, in microseconds.
    pub average_seek_us: u32,
    /// Time of one turn of the platters, in microseconds.
    pub rotation_us: u32,
    /// Transfer rate under the head, in bytes per second.
    pub media_bytes_per_s: u64,
    /// Transfer rate of the cable, in bytes per second.
    pub interface_bytes_per_s: u64,
    /// Size of the volatile write cache in bytes; 0 for a disk without one.
    pub write_cache_bytes: u64,
}

impl Default for DiskModel {
    /// Returns a SATA disk of 7200 turns per minute.
    fn default() -> Self {
        Self {
            track_to_track_us: 1_000,
            average_seek_us: 8_000,
            rotation_us: 8_333,
            media_bytes_per_s: 128 << 20,
            interface_bytes_per_s: 512 << 20,
            write_cache_bytes: 32 << 20,
        }
    }
}

/// The requests to a [`SlowDevice`], and their cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Read calls.
    pub reads: u64,
    /// Calls that write or zero.
    pub writes: u64,
    /// Flush calls.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written or zeroed.
    pub written_bytes: u64,
    /// Seeks of the head.
    pub seeks: u64,
    /// Modeled time of all requests on such a disk, in nanoseconds.
    pub busy_ns: u64,
}

/// Passes all calls to the lower device and counts the time that a hard disk would need for them.
///
/// Writes go into the write cache at the speed of the cable. They reach the platters at a flush, or
/// when the cache is full: all at once in the order of their offsets, so blocks written twice
/// meanwhile are written once. A real disk would start earlier, when it is idle; this one is never
/// idle, so that each run is the same. Tests compare counters, never the wall clock.
///
/// If callers wait, requests that find the disk busy are served in the order of their offsets, as
/// by a disk with a command queue (NCQ): from the head to the end, then from the start again
/// (C-LOOK).
pub struct SlowDevice {
    lower: Arc<dyn Device>,
    model: DiskModel,
    disk: Mutex<DiskState>,
    /// Notified when the disk has finished a request.
    is_done: Condvar,
    waits: bool,
}

/// The state of the modeled disk.
#[derive(Default)]
struct DiskState {
    counters: DiskCounters,
    /// Position of the head: the offset of the next byte to pass.
    head: u64,
    /// Ranges in the write cache: end by start, disjoint and not adjacent.
    cached: BTreeMap<u64, u64>,
    cached_bytes: u64,
    /// Whether a request is being served.
    is_busy: bool,
    /// The requests that wait, by offset, then by arrival.
    queue: BTreeSet<(u64, u64)>,
    arrivals: u64,
    /// When the disk will have finished all requests, if callers wait.
    free_at: Option<Instant>,
    /// By how much the host woke callers too late, in sum.
    late: Duration,
}

impl SlowDevice {
    /// Returns a disk over `lower` that only counts: [`DiskCounters::busy_ns`] is its time.
    pub fn new(lower: Arc<dyn Device>, model: DiskModel) -> Self {
        Self {
            lower,
            model,
            disk: Mutex::default(),
            is_done: Condvar::new(),
            waits: false,
        }
    }

    /// Returns a disk whose callers also wait until it has finished their requests.
    pub fn waiting(lower: Arc<dyn Device>, model: DiskModel) -> Self {
        Self {
            waits: true,
            ..Self::new(lower, model)
        }
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> DiskCounters {
        self.disk.lock().counters
    }

    /// Accounts for a read of `len_bytes`.
    fn spend_read(&self, offset: u64, len_bytes: u64) {
        self.spend(offset, |disk, model, size| {
            disk.counters.reads += 1;
            disk.counters.read_bytes += len_bytes;
            disk.read(model, size, offset, len_bytes);
        });
    }

    /// Accounts for one request at `offset`, and waits for its end if callers wait.
    fn spend(&self, offset: u64, request: impl FnOnce(&mut DiskState, &DiskModel, u64)) {
        let size = self.lower.len_bytes().max(1);
        let mut disk = self.disk.lock();
        if !self.waits {
            return request(&mut disk, &self.model, size);
        }
        let arrived = disk.now();
        let own = (offset, disk.arrivals);
        disk.arrivals += 1;
        disk.queue.insert(own);
        while disk.is_busy || disk.next() != Some(own) {
            self.is_done.wait(&mut disk);
        }
        disk.queue.remove(&own);
        disk.is_busy = true;
        let before_ns = disk.counters.busy_ns;
        request(&mut disk, &self.model, size);
        let cost = Duration::from_nanos(disk.counters.busy_ns - before_ns);
        let done = disk.free_at.map_or(arrived, |free_at| free_at.max(arrived)) + cost;
        disk.free_at = Some(done);
        let time = done.saturating_duration_since(disk.now());
        drop(disk);
        let late = wait(time);
        let mut disk = self.disk.lock();
        disk.late += late;
        disk.is_busy = false;
        drop(disk);
        self.is_done.notify_all();
    }

    /// Accounts for one write request.
    fn wrote(&self, offset: u64, len_bytes: u64) {
        self.spend(offset, |disk, model, size| {
            disk.counters.writes += 1;
            disk.counters.written_bytes += len_bytes;
            disk.write(model, size, offset, len_bytes);
        });
    }
}

/// Sleeps for `time`; returns by how much it was too long.
#[expect(
    clippy::disallowed_methods,
    reason = "this device models time by sleeping"
)]
fn wait(time: Duration) -> Duration {
    // The host wakes a sleeper late by a part of this. Shorter waits are added to the next request.
    const SHORTEST: Duration = Duration::from_micros(500);
    if time < SHORTEST {
        return Duration::ZERO;
    }
    let start = Instant::now();
    std::thread::sleep(time);
    start.elapsed().saturating_sub(time)
}

/// Returns the time in which `bytes` pass at a rate, in nanoseconds.
fn passing_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1))) as u64
}

impl DiskModel {
    /// Returns the time of a seek over `distance` bytes of a disk of `size` bytes, and half a turn,
    /// in nanoseconds.
    fn seek_ns(&self, distance: u64, size: u64) -> u64 {
        // Between two random places, the root of the distance is 8/15 on average.
        let least = f64::from(self.track_to_track_us);
        let range = (f64::from(self.average_seek_us) - least).max(0.0) * 15.0 / 8.0;
        let seek_us = least + range * (distance as f64 / size as f64).min(1.0).sqrt();
        ((seek_us + f64::from(self.rotation_us) / 2.0) * 1_000.0) as u64
    }
}

impl DiskState {
    /// Returns the time as it would be if the host had woken no caller late.
    fn now(&self) -> Instant {
        let now = Instant::now();
        now.checked_sub(self.late).unwrap_or(now)
    }

    /// Returns the request to serve next.
    fn next(&self) -> Option<(u64, u64)> {
        self.queue
            .range((self.head, 0)..)
            .next()
            .or_else(|| self.queue.first())
            .copied()
    }

    /// Moves the head to `offset` and passes over `len_bytes`.
    fn pass(&mut self, model: &DiskModel, size: u64, offset: u64, len_bytes: u64) {
        if offset != self.head {
            let seek_ns = model.seek_ns(offset.abs_diff(self.head), size);
            let ahead = offset.checked_sub(self.head);
            let skip_ns = ahead.map_or(u64::MAX, |gap| passing_ns(gap, model.media_bytes_per_s));
            self.counters.seeks += u64::from(seek_ns < skip_ns);
            self.counters.busy_ns += seek_ns.min(skip_ns);
        }
        self.head = offset + len_bytes;
        self.counters.busy_ns += passing_ns(len_bytes, model.media_bytes_per_s);
    }

    fn read(&mut self, model: &DiskModel, size: u64, offset: u64, len_bytes: u64) {
        let end = offset + len_bytes;
        let cached = self.cached.range(..=offset).next_back();
        if cached.is_some_and(|(_, cached_end)| *cached_end >= end) {
            self.counters.busy_ns += passing_ns(len_bytes, model.interface_bytes_per_s);
        } else {
            self.pass(model, size, offset, len_bytes);
        }
    }

    fn write(&mut self, model: &DiskModel, size: u64, offset: u64, len_bytes: u64) {
        if model.write_cache_bytes == 0 {
            return self.pass(model, size, offset, len_bytes);
        }
        self.counters.busy_ns += passing_ns(len_bytes, model.interface_bytes_per_s);
        self.insert(offset, offset + len_bytes);
        if self.cached_bytes > model.write_cache_bytes {
            self.destage(model, size);
        }
    }

    /// Adds a range to the write cache, merged with those it touches.
    fn insert(&mut self, mut start: u64, mut end: u64) {
        self.remove(start, end);
        if start == end {
            return;
        }
        self.cached_bytes += end - start;
        if let Some((before, before_end)) = self
            .cached
            .range(..start)
            .next_back()
            .map(|(s, e)| (*s, *e))
            && before_end == start
        {
            self.cached.remove(&before);
            start = before;
        }
        if let Some(after_end) = self.cached.remove(&end) {
            end = after_end;
        }
        self.cached.insert(start, end);
    }

    /// Removes a range from the write cache.
    fn remove(&mut self, start: u64, end: u64) {
        while let Some((from, to)) = self.cached.range(..end).next_back().map(|(s, e)| (*s, *e)) {
            if to <= start {
                break;
            }
            self.cached.remove(&from);
            self.cached_bytes -= to.min(end) - from.max(start);
            if from < start {
                self.cached.insert(from, start);
            }
            if to > end {
                self.cached.insert(end, to);
            }
        }
    }

    /// Writes the whole cache to the platters, in one sweep.
    fn destage(&mut self, model: &DiskModel, size: u64) {
        for (start, end) in std::mem::take(&mut self.cached) {
            self.pass(model, size, start, end - start);
        }
        self.cached_bytes = 0;
    }
}

impl Device for SlowDevice {
    fn len_bytes(&self) -> u64 {
        self.lower.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.lower.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.lower.read_vectored_at(bufs, offset)?;
        self.spend_read(offset, iov::len_mut(bufs));
        Ok(())
    }

    fn read_uncached_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.lower.read_uncached_at(bufs, offset)?;
        self.spend_read(offset, iov::len_mut(bufs));
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.lower.write_vectored_at(bufs, offset)?;
        self.wrote(offset, iov::len(bufs));
        Ok(())
    }

    fn lower_devices(&self) -> Vec<LowerDevice> {
        vec![LowerDevice {
            device: self.lower.clone(),
            range: 0..self.lower.len_bytes(),
            is_written: true,
        }]
    }

    fn flush(&self) -> Result<()> {
        self.lower.flush()?;
        self.spend(0, |disk, model, size| {
            disk.counters.flushes += 1;
            disk.destage(model, size);
        });
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.lower.discard(offset, len_bytes)?;
        self.spend(offset, |disk, _, _| disk.remove(offset, offset + len_bytes));
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.lower.write_zeroes(offset, len_bytes)?;
        self.wrote(offset, len_bytes);
        Ok(())
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.lower.allocation(offset, len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;

    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 1 << 40;

    /// Numbers that are easy to add: seeks of 1 ms and 9 ms, no rotation, 10 ns for each byte.
    fn model() -> DiskModel {
        DiskModel {
            track_to_track_us: 1_000,
            average_seek_us: 9_000,
            rotation_us: 0,
            media_bytes_per_s: 100_000_000,
            interface_bytes_per_s: 1_000_000_000,
            write_cache_bytes: MIB,
        }
    }

    fn disk(model: DiskModel) -> SlowDevice {
        SlowDevice::new(Arc::new(MemoryDevice::new(SIZE)), model)
    }

    #[test]
    fn sequential_writes_need_no_seek() {
        let disk = disk(DiskModel {
            write_cache_bytes: 0,
            ..model()
        });
        for part in 0..10 {
            disk.write_at(&[1; 1000], part * 1000).unwrap();
        }
        let all = disk.counters();
        assert_eq!(
            (all.writes, all.written_bytes, all.seeks, all.busy_ns),
            (10, 10_000, 0, 100_000)
        );
        // Across the whole disk: 1 ms + 15/8 of 8 ms.
        disk.read_at(&mut [0], SIZE - 1).unwrap();
        let far_ns = disk.counters().busy_ns - all.busy_ns;
        assert!((15_999_000..16_001_000).contains(&far_ns), "{far_ns}");
        assert_eq!(disk.counters().seeks, 1);
    }

    #[test]
    fn average_seek_matches_the_model() {
        let model = DiskModel::default();
        let mut total_ns = 0;
        for from in 0..200 {
            for to in 0..200 {
                total_ns += model.seek_ns(u64::abs_diff(from, to), 200);
            }
        }
        let average_us = total_ns / 200 / 200 / 1000;
        // Plus half a turn.
        assert!(
            (8_000 + 4_166 - 100..8_000 + 4_166 + 100).contains(&average_us),
            "{average_us}"
        );
    }

    #[test]
    fn overwritten_blocks_reach_the_platters_once() {
        let disk = disk(model());
        disk.write_at(&[0; 1000], 0).unwrap();
        disk.write_at(&[1; 1000], 500).unwrap();
        disk.write_at(&[2; 100], 100).unwrap();
        assert_eq!(disk.counters().busy_ns, 2100);
        disk.read_at(&mut [0; 1500], 0).unwrap();
        assert_eq!(
            disk.counters().busy_ns,
            2100 + 1500,
            "a read from the write cache"
        );
        disk.flush().unwrap();
        assert_eq!(disk.counters().busy_ns, 3600 + 15_000);
        disk.flush().unwrap();
        assert_eq!(
            disk.counters().busy_ns,
            3600 + 15_000,
            "the write cache is empty"
        );
        assert_eq!((disk.counters().flushes, disk.counters().seeks), (2, 0));
    }

    #[test]
    fn flush_writes_in_order_of_offsets() {
        let disk = disk(model());
        for block in [9, 3, 7, 1, 5] {
            disk.write_at(&[1; 100], block * (SIZE / 10)).unwrap();
        }
        disk.flush().unwrap();
        let swept = disk.counters();
        assert_eq!(swept.seeks, 5);
        let unsorted = self::disk(DiskModel {
            write_cache_bytes: 0,
            ..model()
        });
        for block in [9, 3, 7, 1, 5] {
            unsorted.write_at(&[1; 100], block * (SIZE / 10)).unwrap();
        }
        assert!(swept.busy_ns < unsorted.counters().busy_ns);
    }

    #[test]
    fn full_cache_is_written_and_discard_drops() {
        let disk = disk(model());
        disk.write_at(&vec![1; MIB as usize], 0).unwrap();
        let before = disk.counters().busy_ns;
        disk.write_at(&[1; 1000], MIB).unwrap();
        assert!(disk.counters().busy_ns - before > 10 * MIB);
        disk.write_zeroes(10_000, 4000).unwrap();
        disk.discard(11_000, 1000).unwrap();
        let cached: Vec<_> = disk.disk.lock().cached.clone().into_iter().collect();
        assert_eq!(cached, [(10_000, 11_000), (12_000, 14_000)]);
        assert_eq!(disk.disk.lock().cached_bytes, 3000);
        disk.write_at(&[1; 1000], 11_000).unwrap();
        assert_eq!(
            disk.disk
                .lock()
                .cached
                .clone()
                .into_iter()
                .collect::<Vec<_>>(),
            [(10_000, 14_000)]
        );
    }

    #[test]
    fn waiting_disk_has_the_same_counters() {
        let model = DiskModel {
            write_cache_bytes: 0,
            ..model()
        };
        let (counts, waits) = (
            disk(model),
            SlowDevice::waiting(Arc::new(MemoryDevice::new(SIZE)), model),
        );
        for device in [&counts, &waits] {
            device.write_at(&[1; 4096], 1 << 20).unwrap();
            device.read_at(&mut [0; 512], 0).unwrap();
            device.flush().unwrap();
        }
        assert_eq!(counts.counters(), waits.counters());
    }

    #[test]
    fn waiting_requests_are_served_by_offset() {
        let model = DiskModel {
            write_cache_bytes: 0,
            ..model()
        };
        let slow = SlowDevice::waiting(Arc::new(MemoryDevice::new(1 << 20)), model);
        let offsets = [9, 3, 7, 1, 5];
        slow.disk.lock().is_busy = true;
        std::thread::scope(|scope| {
            for (count, offset) in offsets.into_iter().enumerate() {
                let slow = &slow;
                scope.spawn(move || slow.read_at(&mut [0; 100], offset * 1000).unwrap());
                while slow.disk.lock().queue.len() <= count {
                    std::thread::yield_now();
                }
            }
            let mut disk = slow.disk.lock();
            disk.is_busy = false;
            disk.head = 6000;
            drop(disk);
            slow.is_done.notify_all();
        });
        let in_order = disk(model);
        let in_order = SlowDevice {
            lower: slow.lower.clone(),
            ..in_order
        };
        in_order.disk.lock().head = 6000;
        for offset in [7, 9, 1, 3, 5] {
            in_order.read_at(&mut [0; 100], offset * 1000).unwrap();
        }
        assert_eq!(slow.counters(), in_order.counters());
    }
}
