//! The device seam: what every disk, real or modelled, can do.

use crate::base::Result;
use std::io::{IoSlice, IoSliceMut};

/// What lies behind a range of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// The device stores these bytes.
    Data,
    /// The device stores nothing here; the range reads as zeros.
    Hole,
    /// The device has space reserved here, and the range reads as zeros.
    Zero,
}

/// Where a range of an image comes from, as `qemu-img map` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapEntry {
    /// In which image of the chain: 0 is the one that was opened, 1 its backing file.
    pub depth: u32,
    /// Some image of the chain says what is here; else it reads as zeros because none does.
    pub is_present: bool,
    /// What is there.
    pub kind: Allocation,
    /// Stored compressed.
    pub is_compressed: bool,
    /// Where the bytes are in that image's file; none if they are not stored, or not as they are.
    pub host_offset: Option<u64>,
}

/// A disk: bytes at offsets, all calls from any thread.
///
/// ```text
///   Device
///     |-- stores bytes     raw, qcow2, memory
///     `-- wraps a Device   partition, overlay, and for tests: record, fault, slow
/// ```
///
/// Offsets and lengths are in bytes and need no alignment, though block-aligned I/O is fastest. A
/// range that leaves the device is an error (EIO, as the kernel's block layer answers), and nothing
/// is transferred. Linux: block/blk-core.c, include/linux/blkdev.h.
pub trait Device: Send + Sync {
    /// The device's size.
    fn len_bytes(&self) -> u64;

    /// Whether writes are refused with EROFS.
    fn is_read_only(&self) -> bool;

    /// Fills all of `bufs`, one after the other, from `offset` on.
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()>;

    /// Writes all of `bufs`, one after the other, from `offset` on. Durable only after
    /// [`Device::flush`].
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()>;

    /// A barrier: every write acknowledged before this call survives a power cut after it returns.
    fn flush(&self) -> Result<()>;

    /// Tells the device that a range is no longer needed. What it reads as afterwards is undefined.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()>;

    /// Makes a range read as zeros, without storing them where the device can avoid it.
    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()>;

    /// What lies at `offset`, and for how many bytes (at least 1, at most `len_bytes`) that holds.
    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)>;

    /// Where the bytes at `offset` come from, and for how many of `len_bytes` that goes on.
    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        let (kind, count) = self.allocation(offset, len_bytes)?;
        Ok((
            MapEntry {
                depth: 0,
                is_present: true,
                kind,
                is_compressed: false,
                host_offset: None,
            },
            count,
        ))
    }

    /// Fills `buf` from `offset` on.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_vectored_at(&mut [IoSliceMut::new(buf)], offset)
    }

    /// Writes all of `buf` from `offset` on.
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.write_vectored_at(&[IoSlice::new(buf)], offset)
    }
}
