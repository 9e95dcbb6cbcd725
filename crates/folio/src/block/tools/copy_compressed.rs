//! Copies a device into compressed clusters of a qcow2 image: packed on all cores, written in the
//! source's order.
//!
//! ```text
//!   claim (lock)      the next batch of clusters that are not all hole, with its number
//!     v
//!   each thread       read it, pack its clusters into the batch's own buffer
//!     v
//!   in turn           whoever brings the batch that is next writes it, and those behind it that wait
//! ```
//!
//! The same source makes the same image, however many threads there are. Batches that are packed or
//! wait are few, and so is the memory.

use super::copy::{CopyOptions, on_threads, thread_count};
use super::zeros;
use crate::base::{Errno, Error, Result};
use crate::block::qcow2::{Appender, PackedCluster, Qcow2Device};
use crate::block::{Allocation, Device};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the disk in a batch, or one cluster if that is more.
const BATCH_BYTES: u64 = 1 << 20;
/// Batches beyond one for each thread.
const BATCHES_SPARE: usize = 4;

/// Copies all of `source` to the start of `target`, compressed; a cluster that does not become
/// smaller is stored as it is. Clusters of zeros are left out as [`CopyOptions::zero_run_bytes`]
/// says. Tables are written at the end.
///
/// Errors: ENOSPC if the target is smaller, EINTR if it was cancelled, else the devices'.
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
    };
    on_threads(threads, |stop| {
        let done = work.pack_all(stop);
        if done.is_err() {
            // Nobody waits for a batch that never comes.
            stop.store(true, Ordering::Relaxed);
            let _queue = work.queue.lock();
            work.progressed.notify_all();
        }
        done
    })?;
    target.finish_packed(&mut work.writer.into_inner())
}

/// A part of the source, packed.
#[derive(Default)]
struct Batch {
    offset: u64,
    len_bytes: u64,
    /// As read, padded with zeros to whole clusters.
    input: Vec<u8>,
    packed: Vec<u8>,
    items: Vec<PackedItem>,
}

/// What became of one or more clusters.
enum PackedItem {
    Packed(PackedCluster),
    /// Stored as they are: bytes of the input.
    Plain(Range<usize>),
    /// To be made zeros: bytes of the input.
    Zeros(Range<usize>),
}

/// What all threads share.
struct CompressedCopy<'a> {
    source: &'a dyn Device,
    target: &'a Qcow2Device,
    options: &'a CopyOptions<'a>,
    cluster_bytes: u64,
    batch_bytes: u64,
    batches_max: usize,
    queue: Mutex<BatchQueue>,
    /// Told when a batch was written, or all is over.
    progressed: Condvar,
    /// Held by the one that writes; taken without the queue's lock.
    writer: Mutex<Appender>,
}

/// Batches by number.
#[derive(Default)]
struct BatchQueue {
    /// Where the next one begins.
    offset: u64,
    /// How many were claimed, and how many of those are written.
    claimed: u64,
    written: u64,
    ready: BTreeMap<u64, Batch>,
    is_writing: bool,
    /// Buffers for more.
    idle: Vec<Batch>,
}

impl CompressedCopy<'_> {
    /// What one thread does.
    fn pack_all(&self, stop: &AtomicBool) -> Result<()> {
        let mut packer = self.target.packer()?;
        while let Some((number, mut batch)) = self.claim(stop)? {
            if (self.options.is_cancelled)() {
                return Err(Error::new(Errno::INTR, "cancelled"));
            }
            batch.input.clear();
            batch.input.resize(
                batch.len_bytes.next_multiple_of(self.cluster_bytes) as usize,
                0,
            );
            self.source
                .read_at(&mut batch.input[..batch.len_bytes as usize], batch.offset)?;
            batch.pack(self.cluster_bytes as usize, self.options, |cluster, out| {
                packer.pack(cluster, out)
            });
            self.submit(number, batch, stop)?;
        }
        Ok(())
    }

    /// The next batch and its number, once there is room for it; none at the end.
    fn claim(&self, stop: &AtomicBool) -> Result<Option<(u64, Batch)>> {
        let len_bytes = self.source.len_bytes();
        let mut queue = self.queue.lock();
        while queue.claimed - queue.written >= self.batches_max as u64 {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            self.progressed.wait(&mut queue);
        }
        if self.options.zero_run_bytes > 0 && self.options.is_target_zero {
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

    /// Goes on to the first cluster that is not all hole.
    fn skip_hole(&self, queue: &mut BatchQueue) -> Result<()> {
        let len_bytes = self.source.len_bytes();
        while queue.offset < len_bytes {
            let (kind, count) = self
                .source
                .allocation(queue.offset, len_bytes - queue.offset)?;
            let end = queue.offset.saturating_add(count).min(len_bytes);
            let whole = if end == len_bytes {
                end
            } else {
                end / self.cluster_bytes * self.cluster_bytes
            };
            if kind == Allocation::Data || whole <= queue.offset {
                break;
            }
            (self.options.progress)(whole - queue.offset);
            queue.offset = whole;
        }
        Ok(())
    }

    /// Hands a batch in; writes it, and others, if it is the one that all wait for.
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
            // The last cluster may go beyond the end of the disk.
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
    /// Packs cluster by cluster.
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
            if options.zero_run_bytes > 0 && zeros::is_zero(cluster) {
                if !options.is_target_zero {
                    self.items.push(PackedItem::Zeros(range));
                }
                continue;
            }
            // Smaller by a byte at least, so that all of a batch fits into a buffer of the input's
            // size.
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
