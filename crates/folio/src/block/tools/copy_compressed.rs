//! Copies a device into compressed clusters of a qcow2 image: compressed on all cores, written in
//! the source's order.
//!
//! ```text
//!   claim (lock)      the next batch of clusters that are not all hole, with its number
//!     v
//!   each thread       reads it, compresses its clusters into the batch's own buffer
//!     v
//!   in turn           the thread with the next batch writes it, and the ready ones after it
//! ```
//!
//! The same source gives the same image for any number of threads. The number of batches, and so
//! the memory, is limited.

use super::backed::TargetBacking;
use super::copy::{CopyOptions, on_threads, thread_count};
use super::throttle::Throttle;
use super::zeros;
use crate::base::condvar::Condvar;
use crate::base::lock::Mutex;
use crate::base::{Errno, Error, Result};
use crate::block::qcow2::{Appender, PackedCluster, Qcow2Device};
use crate::block::{Allocation, Device};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Size of a batch in bytes of the disk, or one cluster if that is more.
const BATCH_BYTES: u64 = 1 << 20;
/// Number of batches beyond one for each thread.
const BATCHES_SPARE: usize = 4;

/// Copies all of `source` to the start of `target`, compressed. An incompressible cluster is stored
/// uncompressed. Clusters of zeros are omitted unless [`CopyOptions::zero_run_bytes`] is 0. Tables
/// are written at the end.
///
/// # Errors
///
/// ENOSPC if the target is smaller, EINTR if the copy was canceled, EOPNOTSUPP for a target with an
/// external data file, else the devices' errors.
///
/// qemu-img: `convert -c`.
pub fn copy_compressed(
    source: &dyn Device,
    target: &Qcow2Device,
    options: &CopyOptions<'_>,
) -> Result<()> {
    let len_bytes = source.len_bytes();
    if target.len_bytes() < len_bytes {
        let why = format!(
            "the target has {} bytes, the source {len_bytes}",
            target.len_bytes()
        );
        return Err(Error::new(Errno::NOSPC, why));
    }
    let threads = thread_count(options.threads);
    let work = CompressedCopy {
        source,
        target,
        options,
        cluster_bytes: target.cluster_bytes(),
        batch_bytes: BATCH_BYTES.max(target.cluster_bytes()),
        batches_max: threads + BATCHES_SPARE,
        queue: Mutex::default(),
        progressed: Condvar::new(),
        writer: Mutex::default(),
        throttle: Throttle::new(options.bytes_per_sec),
    };
    on_threads(threads, |stop| {
        let done = work.pack_all(stop);
        if done.is_err() {
            // Wakes the threads that wait for a batch which will not come.
            stop.store(true, Ordering::Relaxed);
            let _queue = work.queue.lock();
            work.progressed.notify_all();
        }
        done
    })?;
    target.finish_packed(&mut work.writer.into_inner())
}

/// A part of the source, and its compressed clusters.
#[derive(Default)]
struct Batch {
    offset: u64,
    len_bytes: u64,
    /// As read, padded with zeros to whole clusters.
    input: Vec<u8>,
    /// The content of the target's backing file, if it has one.
    below: Vec<u8>,
    packed: Vec<u8>,
    items: Vec<PackedItem>,
}

/// The result of compressing one or more clusters.
enum PackedItem {
    Packed(PackedCluster),
    /// Incompressible: a range of the input.
    Plain(Range<usize>),
    /// To be zeroed: a range of the input.
    Zeros(Range<usize>),
}

/// The state that all threads share.
struct CompressedCopy<'a> {
    source: &'a dyn Device,
    target: &'a Qcow2Device,
    options: &'a CopyOptions<'a>,
    cluster_bytes: u64,
    batch_bytes: u64,
    batches_max: usize,
    queue: Mutex<BatchQueue>,
    /// Notified when a batch was written, or the copy ends.
    progressed: Condvar,
    /// Held by the thread that writes; taken without the queue's lock.
    writer: Mutex<Appender>,
    throttle: Throttle,
}

/// Batches by number.
#[derive(Default)]
struct BatchQueue {
    /// Offset of the next batch in the source.
    offset: u64,
    /// Number of batches claimed, and of those written.
    claimed: u64,
    written: u64,
    ready: BTreeMap<u64, Batch>,
    is_writing: bool,
    /// Written batches, whose buffers are reused.
    idle: Vec<Batch>,
}

impl CompressedCopy<'_> {
    /// The loop of one thread.
    fn pack_all(&self, stop: &AtomicBool) -> Result<()> {
        let mut packer = self.target.packer()?;
        while let Some((number, mut batch)) = self.claim(stop)? {
            if (self.options.is_canceled)() {
                return Err(Error::new(Errno::INTR, "canceled"));
            }
            self.throttle
                .wait(batch.len_bytes, self.options.is_canceled);
            batch.input.clear();
            batch.input.resize(
                batch.len_bytes.next_multiple_of(self.cluster_bytes) as usize,
                0,
            );
            self.source
                .read_at(&mut batch.input[..batch.len_bytes as usize], batch.offset)?;
            if let Some(backing) = &self.options.backing {
                batch.below.clear();
                batch.below.resize(batch.input.len(), 0);
                backing.read(&mut batch.below[..batch.len_bytes as usize], batch.offset)?;
            }
            batch.pack(self.cluster_bytes as usize, self.options, |cluster, out| {
                packer.pack(cluster, out)
            });
            self.submit(number, batch, stop)?;
        }
        Ok(())
    }

    /// Waits for room, then returns the next batch and its number; none at the end.
    fn claim(&self, stop: &AtomicBool) -> Result<Option<(u64, Batch)>> {
        let len_bytes = self.source.len_bytes();
        let mut queue = self.queue.lock();
        while queue.claimed - queue.written >= self.batches_max as u64 {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            self.progressed.wait(&mut queue);
        }
        if self.options.backing.is_some() || self.is_hole_skipped() {
            self.skip_hole(&mut queue)?;
        }
        let offset = queue.offset;
        if offset >= len_bytes || stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let end = ((offset / self.batch_bytes + 1) * self.batch_bytes).min(len_bytes);
        let number = queue.claimed;
        queue.offset = end;
        queue.claimed += 1;
        let mut batch = queue.idle.pop().unwrap_or_default();
        (batch.offset, batch.len_bytes) = (offset, end - offset);
        Ok(Some((number, batch)))
    }

    fn is_hole_skipped(&self) -> bool {
        self.options.zero_run_bytes > 0 && self.options.is_target_zero
    }

    /// Returns whether the target need not store the bytes at `offset`, and for how many that
    /// holds.
    fn is_skipped(&self, offset: u64, len_bytes: u64) -> Result<(bool, u64)> {
        match &self.options.backing {
            None => {
                let (kind, count) = self.source.allocation(offset, len_bytes)?;
                Ok((kind != Allocation::Data, count))
            }
            Some(TargetBacking {
                depth: Some(depth), ..
            }) => {
                let (entry, count) = self.source.map_entry(offset, len_bytes)?;
                Ok((entry.depth >= *depth, count))
            }
            // The batch compares the contents.
            Some(_) => Ok((false, len_bytes)),
        }
    }

    /// Skips to the first cluster that the target must store.
    fn skip_hole(&self, queue: &mut BatchQueue) -> Result<()> {
        let len_bytes = self.source.len_bytes();
        while queue.offset < len_bytes {
            let (is_skipped, count) = self.is_skipped(queue.offset, len_bytes - queue.offset)?;
            let end = queue.offset.saturating_add(count).min(len_bytes);
            let whole = if end == len_bytes {
                end
            } else {
                end / self.cluster_bytes * self.cluster_bytes
            };
            if !is_skipped || whole <= queue.offset {
                break;
            }
            (self.options.progress)(whole - queue.offset);
            queue.offset = whole;
        }
        Ok(())
    }

    /// Submits a batch. If it is next and no thread writes, writes it and the ready ones after it.
    fn submit(&self, number: u64, batch: Batch, stop: &AtomicBool) -> Result<()> {
        let mut queue = self.queue.lock();
        queue.ready.insert(number, batch);
        if queue.is_writing {
            return Ok(());
        }
        queue.is_writing = true;
        let mut result = Ok(());
        while result.is_ok() && !stop.load(Ordering::Relaxed) {
            let next = queue.written;
            let Some(mut batch) = queue.ready.remove(&next) else {
                break;
            };
            drop(queue);
            result = self.write(&batch);
            (self.options.progress)(batch.len_bytes);
            batch.items.clear();
            queue = self.queue.lock();
            queue.written += 1;
            queue.idle.push(batch);
            self.progressed.notify_all();
        }
        queue.is_writing = false;
        result
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        let mut appender = self.writer.lock();
        let mut packed = Vec::new();
        for item in &batch.items {
            let range = match item {
                PackedItem::Packed(cluster) => {
                    packed.push(cluster.clone());
                    continue;
                }
                PackedItem::Plain(range) | PackedItem::Zeros(range) => range,
            };
            self.target
                .write_packed(&mut appender, &packed, &batch.packed)?;
            packed.clear();
            // The last cluster may end beyond the end of the disk.
            let end = range.end.min(batch.len_bytes as usize);
            let at = batch.offset + range.start as u64;
            match item {
                PackedItem::Zeros(_) => self.target.write_zeroes(at, (end - range.start) as u64)?,
                _ => self.target.write_at(&batch.input[range.start..end], at)?,
            }
        }
        self.target
            .write_packed(&mut appender, &packed, &batch.packed)
    }
}

impl Batch {
    /// Compresses cluster by cluster.
    fn pack(
        &mut self,
        cluster_bytes: usize,
        options: &CopyOptions<'_>,
        mut pack: impl FnMut(&[u8], &mut [u8]) -> Option<usize>,
    ) {
        self.packed.resize(self.input.len(), 0);
        self.items.clear();
        let first = self.offset / cluster_bytes as u64;
        let mut used = 0;
        for (index, cluster) in self.input.chunks_exact(cluster_bytes).enumerate() {
            let range = index * cluster_bytes..(index + 1) * cluster_bytes;
            if self
                .below
                .get(range.clone())
                .is_some_and(|below| below == cluster)
            {
                continue;
            }
            if options.zero_run_bytes > 0 && zeros::is_zero(cluster) {
                if options.backing.is_some() || !options.is_target_zero {
                    self.items.push(PackedItem::Zeros(range));
                }
                continue;
            }
            // At least a byte smaller, so that a batch fits into a buffer of the input's size.
            match pack(cluster, &mut self.packed[used..used + cluster_bytes - 1]) {
                Some(count) => {
                    let bytes = used..used + count;
                    used += count;
                    self.items.push(PackedItem::Packed(PackedCluster {
                        cluster: first + index as u64,
                        bytes,
                    }));
                }
                None => match self.items.last_mut() {
                    Some(PackedItem::Plain(before)) if before.end == range.start => {
                        before.end = range.end
                    }
                    _ => self.items.push(PackedItem::Plain(range)),
                },
            }
        }
    }
}
