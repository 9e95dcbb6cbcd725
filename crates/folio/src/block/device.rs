//! The device seam: the operations of every disk, real or modeled.

use super::iov::{self, ZEROS};
use crate::base::{Errno, Result};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The allocation of a range of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// The device stores these bytes.
    Data,
    /// The device stores nothing here; the range reads as zeros.
    Hole,
    /// The device has space reserved here, and the range reads as zeros.
    Zero,
}

/// The source of a range of an image, as `qemu-img map` reports it (QEMU: `MapEntry`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapEntry {
    /// The image of the chain: 0 is the one that was opened, 1 its backing file.
    pub depth: u32,
    /// An image of the chain has an entry for the range; else it reads as zeros because none has.
    pub is_present: bool,
    /// The allocation in that image.
    pub kind: Allocation,
    /// Reads as zeros: also data that the host stores as a hole, if the image knows that.
    pub is_zero: bool,
    /// Stored compressed.
    pub is_compressed: bool,
    /// Offset of the bytes in that image's file; none if they have no space there, or are
    /// compressed.
    pub host_offset: Option<u64>,
}

/// A place in a file of the host.
#[derive(Debug, Clone, Copy)]
pub struct HostPlace<'a> {
    /// The file, open for reading.
    pub file: BorrowedFd<'a>,
    /// Offset in the file, in bytes.
    pub offset: u64,
}

/// Reads at a place, and returns whether it has read all bytes.
pub type PlaceReader<'a> = &'a mut dyn FnMut(HostPlace<'_>) -> bool;

/// A part of a device that another device uses.
pub struct LowerDevice {
    /// The device below.
    pub device: Arc<dyn Device>,
    /// The bytes that are used.
    pub range: Range<u64>,
    /// Writes to the upper device change these bytes.
    pub is_written: bool,
}

/// A disk: bytes at offsets. Any thread may make any call at any time.
///
/// ```text
///   Device
///     |-- stores bytes     raw, qcow2, memory
///     `-- wraps a Device   partition, overlay, and for tests: record, fault, slow
/// ```
///
/// Offsets and lengths are in bytes and need no alignment, though block-aligned I/O is fastest. A
/// device over another one passes every call on: with the defaults, holes become data and discards
/// are lost.
///
/// # Errors
///
/// - EIO for a range that leaves the device, as from the kernel's block layer; nothing is
///   transferred.
/// - EROFS for a change of a read-only device.
/// - ENOSPC if the storage below is full.
/// - EUCLEAN, from an image, for metadata that contradicts its format.
/// - Else the errors of the storage below.
///
/// Linux: block/blk-core.c, include/linux/blkdev.h.
pub trait Device: Send + Sync {
    /// Returns the device's size in bytes.
    fn len_bytes(&self) -> u64;

    /// Whether writes fail with EROFS.
    fn is_read_only(&self) -> bool;

    /// Fills all of `bufs`, one after the other, from `offset` on. Linux: `REQ_OP_READ`.
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()>;

    /// Like [`Device::read_vectored_at`], for a caller that caches the bytes itself: the host need
    /// not keep a copy. Linux: `RWF_DONTCACHE`.
    fn read_uncached_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.read_vectored_at(bufs, offset)
    }

    /// Calls `read` with the place where a range is stored as it is, if that is one file of the
    /// host: for memory that cannot be borrowed, such as a guest's. Returns what `read` returns,
    /// whether all bytes were read; false if there is no such place. The place counts until `read`
    /// returns.
    fn read_in_place(&self, offset: u64, len_bytes: u64, _read: PlaceReader<'_>) -> Result<bool> {
        iov::check_range(self.len_bytes(), offset, len_bytes).map(|()| false)
    }

    /// Writes all of `bufs`, one after the other, from `offset` on. Durable only after
    /// [`Device::flush`]. Linux: `REQ_OP_WRITE`.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()>;

    /// Makes every write that returned before this call survive a power cut after it returns.
    /// Linux: `REQ_OP_FLUSH`.
    fn flush(&self) -> Result<()>;

    /// Marks the medium as closed, for a program that ends without dropping the device. Waits for
    /// transfers in flight; a later write marks it as open again. qcow2: clears the dirty bit, so
    /// that the next writer need not correct refcounts.
    fn mark_closed(&self) -> Result<()> {
        Ok(())
    }

    /// Whether a power cut leaves all writes up to some flush, and none behind it. A journal on
    /// such a device needs no flush for the order of its writes.
    fn has_atomic_flushes(&self) -> bool {
        false
    }

    /// Whether changes that have returned are still in the memory of this process, in part: without
    /// a flush they are lost if it ends, although the machine goes on.
    fn holds_changes(&self) -> bool {
        true
    }

    /// Discards a range that is no longer needed: its content is undefined afterwards. By default
    /// it stays. Linux: `REQ_OP_DISCARD`.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        if self.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        iov::check_range(self.len_bytes(), offset, len_bytes)
    }

    /// Makes a range read as zeros, without storing them where the device can avoid it. By default
    /// it stores them. Linux: `REQ_OP_WRITE_ZEROES`.
    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.write_allocated_zeroes(offset, len_bytes)
    }

    /// Makes a range read as zeros, with space for them: later writes to it need no more. Linux:
    /// `REQ_OP_WRITE_ZEROES` with `REQ_NOUNMAP`.
    fn write_allocated_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        iov::check_range(self.len_bytes(), offset, len_bytes)?;
        let end = offset + len_bytes;
        let mut at = offset;
        while at < end {
            let count = (end - at).min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..count as usize], at)?;
            at += count;
        }
        Ok(())
    }

    /// Returns the allocation at `offset`, and the number of bytes (at least 1, at most
    /// `len_bytes`) that it holds for. By default all is data. Linux: `SEEK_DATA` and `SEEK_HOLE`.
    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        iov::check_range(self.len_bytes(), offset, len_bytes)?;
        Ok((Allocation::Data, len_bytes))
    }

    /// Returns the source of the bytes at `offset`, and the number of bytes (at least 1, at most
    /// `len_bytes`) that it holds for. qemu-img: `map`.
    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        let (kind, count) = self.allocation(offset, len_bytes)?;
        Ok((
            MapEntry {
                depth: 0,
                is_present: true,
                kind,
                is_zero: kind != Allocation::Data,
                is_compressed: false,
                host_offset: None,
            },
            count,
        ))
    }

    /// Returns what identifies the bytes of a device that external writers may replace, such as the
    /// entity tag of an object: the same version means the same bytes. None if nothing does.
    fn version(&self) -> Option<String> {
        None
    }

    /// Returns the devices that this one uses; none if it stores its bytes itself. A mount refuses
    /// a device that another mount changes below it, so a wrapper that does not implement this is
    /// not protected.
    fn lower_devices(&self) -> Vec<LowerDevice> {
        Vec::new()
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
