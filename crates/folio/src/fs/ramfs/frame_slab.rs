//! The frame slab: chunks of device memory, cut into frames of one page each.

use super::frame_memory::FrameMemory;
use crate::base::lock::Mutex;
use crate::base::{Limit, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Size in bytes of the chunks in which device memory is allocated.
const CHUNK_BYTES: u64 = 2 << 20;

/// One page of device memory. The memory is reused once the last reference is dropped.
pub struct Frame {
    address: u64,
    /// The address of its chunk.
    pub(super) chunk: u64,
    slab: Arc<FrameSlab>,
}

impl Frame {
    /// Returns the address of the first byte in the device's address space.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns whether both frames are in one allocation of the device. A copy or a fill that
    /// crosses allocations is an error of some devices, even where their addresses adjoin.
    pub fn shares_allocation(&self, other: &Self) -> bool {
        self.chunk == other.chunk
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.slab.release(self.address, self.chunk);
    }
}

/// The memory of one mount: frames in use are counted against the limit of the mount.
pub(super) struct FrameSlab {
    pub(super) memory: Arc<dyn FrameMemory>,
    page_bytes: u64,
    pub(super) limit: Limit,
    free: Mutex<FreeFrames>,
}

/// Free frames of allocated chunks.
#[derive(Default)]
struct FreeFrames {
    /// Addresses; the lowest is used first, so that files written in order are contiguous.
    addresses: BTreeSet<u64>,
    /// Number of frames in use of each chunk, by address.
    chunks: BTreeMap<u64, u64>,
    /// Number of chunks without frames in use.
    empty_count: u64,
}

impl FrameSlab {
    /// Creates a slab of at most `len_bytes` bytes in pages of `page_bytes`, a power of two.
    pub(super) fn new(memory: Arc<dyn FrameMemory>, page_bytes: u64, len_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            memory,
            page_bytes,
            limit: Limit::new(len_bytes / page_bytes),
            free: Mutex::default(),
        })
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Allocates a frame; its content is undefined. ENOSPC at the limit of the mount or the device.
    pub(super) fn allocate(self: &Arc<Self>) -> Result<Arc<Frame>> {
        self.limit.take(1)?;
        let mut free = self.free.lock();
        if free.addresses.is_empty() {
            let chunk = self
                .memory
                .allocate(CHUNK_BYTES)
                .inspect_err(|_| self.limit.give_back(1))?;
            let frames = (chunk..chunk + CHUNK_BYTES).step_by(self.page_bytes as usize);
            free.addresses.extend(frames);
            free.chunks.insert(chunk, 0);
            free.empty_count += 1;
        }
        let address = free.addresses.pop_first();
        let address = address.unwrap_or_else(|| unreachable!("a chunk has frames"));
        let FreeFrames {
            chunks,
            empty_count,
            ..
        } = &mut *free;
        let chunk = chunks.range_mut(..=address).next_back();
        let (chunk, used) = chunk.unwrap_or_else(|| unreachable!("a frame is in a chunk"));
        if *used == 0 {
            *empty_count -= 1;
        }
        *used += 1;
        Ok(Arc::new(Frame {
            address,
            chunk: *chunk,
            slab: self.clone(),
        }))
    }

    /// Returns a frame to its chunk, and a chunk without used frames to the device, except for one.
    fn release(&self, address: u64, chunk: u64) {
        let mut free = self.free.lock();
        free.addresses.insert(address);
        let used = free.chunks.get_mut(&chunk);
        let is_empty = used.is_some_and(|used| {
            *used -= 1;
            *used == 0
        });
        let is_released = is_empty && free.empty_count > 0;
        if is_released {
            free.chunks.remove(&chunk);
            for address in (chunk..chunk + CHUNK_BYTES).step_by(self.page_bytes as usize) {
                free.addresses.remove(&address);
            }
        } else if is_empty {
            free.empty_count += 1;
        }
        drop(free);
        if is_released {
            self.memory.release(chunk);
        }
        self.limit.give_back(1);
    }
}

impl Drop for FrameSlab {
    fn drop(&mut self) {
        for chunk in self.free.get_mut().chunks.keys() {
            self.memory.release(*chunk);
        }
    }
}
