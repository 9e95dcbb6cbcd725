//! A device that takes as long as a hard disk would, for results that once needed one.

use crate::base::Result;
use crate::block::{Allocation, Device, iov};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What kind of disk a [`SlowDevice`] is.
///
/// ```text
///   a move of the head   half a turn + track_to_track .. full stroke, growing with the root of the distance
///   a short way ahead    the time in which it passes under the head, where that is less
///   bytes                at media_bytes_per_s; into the disk's own memory at interface_bytes_per_s
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskModel {
    /// From one track to the next, in microseconds.
    pub track_to_track_us: u32,
    /// From anywhere to anywhere on average, in microseconds.
    pub average_seek_us: u32,
    /// One turn of the platters, in microseconds.
    pub rotation_us: u32,
    /// What passes under the head in a second.
    pub media_bytes_per_s: u64,
    /// What the cable carries in a second.
    pub interface_bytes_per_s: u64,
    /// Written bytes that the disk's volatile memory holds; 0 is a disk without a write cache.
    pub write_cache_bytes: u64,
}

impl Default for DiskModel {
    /// A SATA disk of 7200 turns per minute.
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

/// What a [`SlowDevice`] was asked to do, and what it cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Calls that read.
    pub reads: u64,
    /// Calls that wrote or zeroed.
    pub writes: u64,
    /// Barriers.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written or zeroed.
    pub written_bytes: u64,
    /// Moves of the head to another place.
    pub seeks: u64,
    /// Modelled time, in nanoseconds: what all this takes on such a disk.
    pub busy_ns: u64,
}

/// Passes everything to the device below and counts what a hard disk would have needed for it.
///
/// Writes go into the disk's own memory at the speed of the cable. They reach the platters at a
/// flush, or when that memory is full: all at once in the order of their place, so what was written
/// twice meanwhile is written once. A real disk would begin earlier, while nobody asks for
/// anything; this one is never idle, which makes it the same in each run. Tests compare counters,
/// never the wall clock.
///
/// Where callers wait, requests that find the disk busy are taken in the order of their places, as
/// by a disk that has a queue of commands (NCQ): from the head on to the end, then from the
/// beginning again (C-LOOK).
pub struct SlowDevice {
    lower: Arc<dyn Device>,
    model: DiskModel,
    disk: Mutex<DiskState>,
    /// The disk is done with a request.
    is_done: Condvar,
    waits: bool,
}

/// The moving parts.
#[derive(Default)]
struct DiskState {
    counters: DiskCounters,
    /// Where the head stands, as the next byte to pass.
    head: u64,
    /// Written and not on the platters: end by start, apart from each other.
    cached: BTreeMap<u64, u64>,
    cached_bytes: u64,
    /// Whether a request is being served, and those that wait meanwhile: by their place, then by
    /// their turn.
    is_busy: bool,
    queue: BTreeSet<(u64, u64)>,
    turns: u64,
    /// When the disk is done with what was asked, for who waits.
    free_at: Option<Instant>,
    /// How much longer than they should callers have slept: the host's doing, not the disk's.
    late: Duration,
}

impl SlowDevice {
    /// A disk over `lower` that only counts: [`DiskCounters::busy_ns`] is its time.
    pub fn new(lower: Arc<dyn Device>, model: DiskModel) -> Self {
        Self {
            lower,
            model,
            disk: Mutex::default(),
            is_done: Condvar::new(),
            waits: false,
        }
    }

    /// A disk that also lets its callers wait as long as it is busy.
    pub fn waiting(lower: Arc<dyn Device>, model: DiskModel) -> Self {
        Self {
            waits: true,
            ..Self::new(lower, model)
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> DiskCounters {
        self.disk.lock().counters
    }

    /// Accounts for one request at `offset`, and waits for its end if this disk does.
    fn spend(&self, offset: u64, request: impl FnOnce(&mut DiskState, &DiskModel, u64)) {
        let size = self.lower.len_bytes().max(1);
        let mut disk = self.disk.lock();
        if !self.waits {
            return request(&mut disk, &self.model, size);
        }
        let asked = disk.now();
        let own = (offset, disk.turns);
        disk.turns += 1;
        disk.queue.insert(own);
        while disk.is_busy || disk.next() != Some(own) {
            self.is_done.wait(&mut disk);
        }
        disk.queue.remove(&own);
        disk.is_busy = true;
        let before_ns = disk.counters.busy_ns;
        request(&mut disk, &self.model, size);
        let cost = Duration::from_nanos(disk.counters.busy_ns - before_ns);
        let done = disk.free_at.map_or(asked, |free_at| free_at.max(asked)) + cost;
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

    fn wrote(&self, offset: u64, len_bytes: u64) {
        self.spend(offset, |disk, model, size| {
            disk.counters.writes += 1;
            disk.counters.written_bytes += len_bytes;
            disk.write(model, size, offset, len_bytes);
        });
    }
}

/// Lets time pass; returns by how much it was too long.
#[expect(
    clippy::disallowed_methods,
    reason = "letting time pass is what this device is for"
)]
fn wait(time: Duration) -> Duration {
    // The host wakes a sleeper late by a part of this; less is waited for with the next request.
    const SHORTEST: Duration = Duration::from_micros(500);
    if time < SHORTEST {
        return Duration::ZERO;
    }
    let start = Instant::now();
    std::thread::sleep(time);
    start.elapsed().saturating_sub(time)
}

/// The time in which `bytes` pass at a rate, in nanoseconds.
fn passing_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1))) as u64
}

impl DiskModel {
    /// A move of the head over `distance` bytes of a disk of `size` bytes, and half a turn, in
    /// nanoseconds.
    fn move_ns(&self, distance: u64, size: u64) -> u64 {
        // Of two places at random, the root of the distance is 8/15 on average.
        let least = f64::from(self.track_to_track_us);
        let range = (f64::from(self.average_seek_us) - least).max(0.0) * 15.0 / 8.0;
        let seek_us = least + range * (distance as f64 / size as f64).min(1.0).sqrt();
        ((seek_us + f64::from(self.rotation_us) / 2.0) * 1_000.0) as u64
    }
}

impl DiskState {
    /// The time as it would be if nobody had slept too long.
    fn now(&self) -> Instant {
        let now = Instant::now();
        now.checked_sub(self.late).unwrap_or(now)
    }

    /// The request to serve next.
    fn next(&self) -> Option<(u64, u64)> {
        self.queue
            .range((self.head, 0)..)
            .next()
            .or_else(|| self.queue.first())
            .copied()
    }

    /// Brings the head to `offset` and lets `len_bytes` pass.
    fn pass(&mut self, model: &DiskModel, size: u64, offset: u64, len_bytes: u64) {
        if offset != self.head {
            let seek_ns = model.move_ns(offset.abs_diff(self.head), size);
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
        let held = self.cached.range(..=offset).next_back();
        if held.is_some_and(|(_, held_end)| *held_end >= end) {
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
        self.hold(offset, offset + len_bytes);
        if self.cached_bytes > model.write_cache_bytes {
            self.destage(model, size);
        }
    }

    /// Adds a range to what is held, as one with those it touches.
    fn hold(&mut self, mut start: u64, mut end: u64) {
        self.release(start, end);
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

    /// Takes a range out of what is held.
    fn release(&mut self, start: u64, end: u64) {
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

    /// Brings everything held to the platters, in one sweep.
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
        let len_bytes = iov::len_mut(bufs);
        self.spend(offset, |disk, model, size| {
            disk.counters.reads += 1;
            disk.counters.read_bytes += len_bytes;
            disk.read(model, size, offset, len_bytes);
        });
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.lower.write_vectored_at(bufs, offset)?;
        self.wrote(offset, iov::len(bufs));
        Ok(())
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
        self.spend(offset, |disk, _, _| {
            disk.release(offset, offset + len_bytes)
        });
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

    /// Numbers that are easy to add up: 1 ms and 9 ms, no turn to wait for, a byte each 10 ns.
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
    fn one_after_the_other_needs_no_seek() {
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
    fn the_average_of_all_moves_is_the_average() {
        let model = DiskModel::default();
        let mut total_ns = 0;
        for from in 0..200 {
            for to in 0..200 {
                total_ns += model.move_ns(u64::abs_diff(from, to), 200);
            }
        }
        let average_us = total_ns / 200 / 200 / 1000;
        // Half a turn comes on top.
        assert!(
            (8_000 + 4_166 - 100..8_000 + 4_166 + 100).contains(&average_us),
            "{average_us}"
        );
    }

    #[test]
    fn what_is_written_twice_before_a_flush_reaches_the_platters_once() {
        let disk = disk(model());
        disk.write_at(&[0; 1000], 0).unwrap();
        disk.write_at(&[1; 1000], 500).unwrap();
        disk.write_at(&[2; 100], 100).unwrap();
        assert_eq!(disk.counters().busy_ns, 2100);
        disk.read_at(&mut [0; 1500], 0).unwrap();
        assert_eq!(
            disk.counters().busy_ns,
            2100 + 1500,
            "answered from the disk's memory"
        );
        disk.flush().unwrap();
        assert_eq!(disk.counters().busy_ns, 3600 + 15_000);
        disk.flush().unwrap();
        assert_eq!(
            disk.counters().busy_ns,
            3600 + 15_000,
            "nothing is left to write"
        );
        assert_eq!((disk.counters().flushes, disk.counters().seeks), (2, 0));
    }

    #[test]
    fn a_flush_sweeps_in_the_order_of_places() {
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
    fn a_full_cache_is_written_out_and_a_discard_forgets() {
        let disk = disk(model());
        disk.write_at(&vec![1; MIB as usize], 0).unwrap();
        let before = disk.counters().busy_ns;
        disk.write_at(&[1; 1000], MIB).unwrap();
        assert!(disk.counters().busy_ns - before > 10 * MIB);
        disk.write_zeroes(10_000, 4000).unwrap();
        disk.discard(11_000, 1000).unwrap();
        let held: Vec<_> = disk.disk.lock().cached.clone().into_iter().collect();
        assert_eq!(held, [(10_000, 11_000), (12_000, 14_000)]);
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
    fn who_waits_gets_the_same_counters() {
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
    fn who_waits_is_served_in_the_order_of_places() {
        let model = DiskModel {
            write_cache_bytes: 0,
            ..model()
        };
        let slow = SlowDevice::waiting(Arc::new(MemoryDevice::new(1 << 20)), model);
        let places = [9, 3, 7, 1, 5];
        slow.disk.lock().is_busy = true;
        std::thread::scope(|scope| {
            for (count, place) in places.into_iter().enumerate() {
                let slow = &slow;
                scope.spawn(move || slow.read_at(&mut [0; 100], place * 1000).unwrap());
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
        for place in [7, 9, 1, 3, 5] {
            in_order.read_at(&mut [0; 100], place * 1000).unwrap();
        }
        assert_eq!(slow.counters(), in_order.counters());
    }
}
