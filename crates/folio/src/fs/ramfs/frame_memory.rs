//! The frame memory trait: memory of a device, where a ramfs may keep the pages of its files.

use crate::base::lock::RwLock;
use crate::base::{Errno, Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// One part of a gather: bytes at a device address, and the buffer that receives them.
#[derive(Debug)]
pub struct FrameRead<'a> {
    /// Address in the device's address space.
    pub address: u64,
    /// Receives the bytes.
    pub buf: &'a mut [u8],
}

/// One part of a scatter: bytes for a device address.
#[derive(Debug, Clone, Copy)]
pub struct FrameWrite<'a> {
    /// Address in the device's address space.
    pub address: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Memory of a device. Calls take effect in the order in which one thread makes them; each part of
/// a call is inside one allocation.
///
/// A byte that is written while it is read has its old or its new value, as in the page cache.
pub trait FrameMemory: Send + Sync {
    /// Returns how many bytes can be allocated at most.
    ///
    /// # Errors
    /// EIO if the device fails.
    fn len_bytes(&self) -> Result<u64>;

    /// Allocates `len_bytes` and returns the address, a multiple of 256. The content is undefined.
    ///
    /// # Errors
    /// ENOSPC if the device has no free memory.
    fn allocate(&self, len_bytes: u64) -> Result<u64>;

    /// Releases the memory at an address that [`FrameMemory::allocate`] returned, after the calls
    /// that were made before.
    fn release(&self, address: u64);

    /// Fills all buffers; the bytes are there when the call returns.
    ///
    /// # Errors
    /// EIO if the device fails.
    fn read(&self, parts: &mut [FrameRead<'_>]) -> Result<()>;

    /// Writes all parts. The call may return before the device has them, but keeps no reference.
    ///
    /// # Errors
    /// EIO if the device fails.
    fn write(&self, parts: &[FrameWrite<'_>]) -> Result<()>;

    /// Sets the bytes of each run (address, length) to zero.
    ///
    /// # Errors
    /// EIO if the device fails.
    fn zero(&self, runs: &[(u64, u64)]) -> Result<()>;
}

/// Alignment of what [`HostFrames`] allocates.
const ALIGN: usize = 256;

/// One allocation of [`HostFrames`]: bytes that one thread may read while another writes them.
struct HostChunk {
    cells: Box<[AtomicU8]>,
    /// Place of the first byte, whose address is a multiple of [`ALIGN`].
    start: usize,
}

impl HostChunk {
    fn new(len_bytes: usize) -> Self {
        // The content is undefined: readers of bytes that were never written see these.
        let cells = (0..len_bytes + ALIGN).map(|_| AtomicU8::new(0xa5));
        let cells: Box<[AtomicU8]> = cells.collect();
        let start = cells.as_ptr().align_offset(ALIGN);
        Self { cells, start }
    }

    fn cells(&self) -> &[AtomicU8] {
        &self.cells[self.start..][..self.cells.len() - ALIGN]
    }
}

/// Frame memory in the host's memory: for tests, and for programs that run without a device.
pub struct HostFrames {
    len_bytes: u64,
    used_bytes: AtomicU64,
    /// Allocations by address: that of their first byte in this process.
    chunks: RwLock<BTreeMap<u64, HostChunk>>,
}

impl HostFrames {
    /// Returns frame memory of at most `len_bytes` bytes; none is allocated yet.
    pub fn new(len_bytes: u64) -> Self {
        Self {
            len_bytes,
            used_bytes: AtomicU64::new(0),
            chunks: RwLock::default(),
        }
    }

    /// Returns how many bytes are allocated.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Calls `visit` with the pieces of the bytes `address..address + len`, and the offset of each.
    fn visit(
        &self,
        address: u64,
        len: usize,
        mut visit: impl FnMut(usize, &[AtomicU8]),
    ) -> Result<()> {
        let chunks = self.chunks.read();
        let mut done = 0;
        while done < len {
            let at = address + done as u64;
            let chunk = chunks.range(..=at).next_back();
            let (piece, start) = chunk
                .map(|(first, chunk)| (chunk.cells(), (at - first) as usize))
                .filter(|(chunk, start)| *start < chunk.len())
                .ok_or_else(|| {
                    Error::new(Errno::IO, format!("address {at:#x} is not allocated"))
                        .at("frame memory")
                })?;
            let count = (piece.len() - start).min(len - done);
            visit(done, &piece[start..start + count]);
            done += count;
        }
        Ok(())
    }
}

impl FrameMemory for HostFrames {
    fn len_bytes(&self) -> Result<u64> {
        Ok(self.len_bytes)
    }

    fn allocate(&self, len_bytes: u64) -> Result<u64> {
        let add = |used: u64| {
            let used = used.checked_add(len_bytes)?;
            (used <= self.len_bytes).then_some(used)
        };
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .map_err(|_| Errno::NOSPC)?;
        let chunk = HostChunk::new(len_bytes as usize);
        let address = chunk.cells().as_ptr().expose_provenance() as u64;
        self.chunks.write().insert(address, chunk);
        Ok(address)
    }

    fn release(&self, address: u64) {
        if let Some(chunk) = self.chunks.write().remove(&address) {
            let len_bytes = chunk.cells().len() as u64;
            self.used_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
        }
    }

    fn read(&self, parts: &mut [FrameRead<'_>]) -> Result<()> {
        for FrameRead { address, buf } in parts {
            self.visit(*address, buf.len(), |at, piece| {
                for (byte, cell) in buf[at..].iter_mut().zip(piece) {
                    *byte = cell.load(Ordering::Relaxed);
                }
            })?;
        }
        Ok(())
    }

    fn write(&self, parts: &[FrameWrite<'_>]) -> Result<()> {
        for FrameWrite { address, bytes } in parts {
            self.visit(*address, bytes.len(), |at, piece| {
                for (byte, cell) in bytes[at..].iter().zip(piece) {
                    cell.store(*byte, Ordering::Relaxed);
                }
            })?;
        }
        Ok(())
    }

    fn zero(&self, runs: &[(u64, u64)]) -> Result<()> {
        for &(address, len) in runs {
            self.visit(address, len as usize, |_, piece| {
                piece
                    .iter()
                    .for_each(|cell| cell.store(0, Ordering::Relaxed));
            })?;
        }
        Ok(())
    }
}
