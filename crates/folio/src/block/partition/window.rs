//! A partition as a device: a window on a disk.

use crate::base::{Errno, Error, Result};
use crate::block::{Allocation, Device, LowerDevice, MapEntry, PlaceReader, iov};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A partition: a range of bytes of a disk, as a device.
pub struct PartitionDevice {
    disk: Arc<dyn Device>,
    start_bytes: u64,
    len_bytes: u64,
}

impl PartitionDevice {
    /// Returns the `len_bytes` bytes of `disk` from `start_bytes` on.
    ///
    /// # Errors
    ///
    /// EINVAL if they leave the disk.
    pub fn new(disk: Arc<dyn Device>, start_bytes: u64, len_bytes: u64) -> Result<Self> {
        match start_bytes.checked_add(len_bytes) {
            Some(end) if end <= disk.len_bytes() => Ok(Self {
                disk,
                start_bytes,
                len_bytes,
            }),
            _ => Err(Error::new(Errno::INVAL, "the partition leaves the disk")),
        }
    }

    /// Returns the offset on the disk of a range that is inside the partition.
    fn on_disk(&self, offset: u64, len_bytes: u64) -> Result<u64> {
        iov::check_range(self.len_bytes, offset, len_bytes)
            .map_err(|error| error.at("partition"))?;
        Ok(self.start_bytes + offset)
    }
}

impl Device for PartitionDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_read_only(&self) -> bool {
        self.disk.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let offset = self.on_disk(offset, iov::len_mut(bufs))?;
        self.disk.read_vectored_at(bufs, offset)
    }

    fn read_uncached_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let offset = self.on_disk(offset, iov::len_mut(bufs))?;
        self.disk.read_uncached_at(bufs, offset)
    }

    fn read_in_place(&self, offset: u64, len_bytes: u64, read: PlaceReader<'_>) -> Result<bool> {
        let offset = self.on_disk(offset, len_bytes)?;
        self.disk.read_in_place(offset, len_bytes, read)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.disk
            .write_vectored_at(bufs, self.on_disk(offset, iov::len(bufs))?)
    }

    fn lower_devices(&self) -> Vec<LowerDevice> {
        vec![LowerDevice {
            device: self.disk.clone(),
            range: self.start_bytes..self.start_bytes + self.len_bytes,
            is_written: true,
        }]
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn mark_closed(&self) -> Result<()> {
        self.disk.mark_closed()
    }

    fn has_atomic_flushes(&self) -> bool {
        self.disk.has_atomic_flushes()
    }

    fn holds_changes(&self) -> bool {
        self.disk.holds_changes()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.disk
            .discard(self.on_disk(offset, len_bytes)?, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.disk
            .write_zeroes(self.on_disk(offset, len_bytes)?, len_bytes)
    }

    fn write_allocated_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.disk
            .write_allocated_zeroes(self.on_disk(offset, len_bytes)?, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.disk
            .allocation(self.on_disk(offset, len_bytes)?, len_bytes)
    }

    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        self.disk
            .map_entry(self.on_disk(offset, len_bytes)?, len_bytes)
    }
}
