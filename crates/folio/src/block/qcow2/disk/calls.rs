//! The [`Device`] trait of an open image, and the close when it is dropped.

use super::device::Qcow2Device;
use super::read::HostCopy;
use crate::base::Result;
use crate::base::sync::atomic::Ordering;
use crate::block::qcow2::layout::l2_entry::Mapping;
use crate::block::{Allocation, Device, LowerDevice, MapEntry, PlaceReader};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

impl Qcow2Device {
    /// Returns the allocation at `offset`, and for how many of `len_bytes` bytes it holds.
    fn kind_at(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        let (mapping, count) = self.metadata.lock().map(&*self.file, offset, len_bytes)?;
        match (mapping, &self.backing) {
            (Mapping::Data { host, .. }, _) if self.data_file.is_some() => self
                .data()
                .allocation(host + (offset & (self.geometry.unit_bytes() - 1)), count),
            (Mapping::Data { .. } | Mapping::Compressed { .. }, _) => Ok((Allocation::Data, count)),
            (Mapping::ZeroAllocated { .. }, _) => Ok((Allocation::Zero, count)),
            (Mapping::Unallocated | Mapping::Reserved { .. }, Some(backing))
                if offset < backing.len_bytes() =>
            {
                backing.allocation(offset, count.min(backing.len_bytes() - offset))
            }
            (Mapping::Unallocated | Mapping::Reserved { .. } | Mapping::Zero, _) => {
                Ok((Allocation::Hole, count))
            }
        }
    }
}

impl Device for Qcow2Device {
    fn len_bytes(&self) -> u64 {
        self.geometry.len_bytes
    }

    fn is_read_only(&self) -> bool {
        self.file.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.read(bufs, offset, HostCopy::Kept)
            .map_err(|error| self.at_image(error))
    }

    fn read_uncached_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.read(bufs, offset, HostCopy::Skipped)
            .map_err(|error| self.at_image(error))
    }

    fn read_in_place(&self, offset: u64, len_bytes: u64, read: PlaceReader<'_>) -> Result<bool> {
        self.read_at_place(offset, len_bytes, read)
            .map_err(|error| self.at_image(error))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.write(bufs, offset)
            .map_err(|error| self.at_image(error))
    }

    fn version(&self) -> Option<String> {
        self.file.device()?.version()
    }

    fn lower_devices(&self) -> Vec<LowerDevice> {
        let whole = |device: Arc<dyn Device>, is_written| LowerDevice {
            range: 0..device.len_bytes(),
            device,
            is_written,
        };
        let own = self.file.device().map(|device| whole(device, true));
        let backing = self.backing.clone().map(|device| whole(device, false));
        own.into_iter().chain(backing).collect()
    }

    fn flush(&self) -> Result<()> {
        if self.file.is_read_only() {
            return Ok(());
        }
        self.write_back(self.dirty_bit.at_flush())
            .map_err(|error| self.at_image(error))
    }

    fn mark_closed(&self) -> Result<()> {
        if self.file.is_read_only() {
            return Ok(());
        }
        self.close().map_err(|error| self.at_image(error))
    }

    fn holds_changes(&self) -> bool {
        if self
            .file
            .device()
            .is_some_and(|device| device.holds_changes())
        {
            return true;
        }
        self.published.holds_mappings.load(Ordering::Acquire)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.zero(offset, len_bytes, true)
            .map_err(|error| self.at_image(error))
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.zero(offset, len_bytes, false)
            .map_err(|error| self.at_image(error))
    }

    fn write_allocated_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.zero_allocated(offset, len_bytes)
            .map_err(|error| self.at_image(error))
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        let find = || {
            self.check(offset, len_bytes)?;
            // Before `io` is held: a write-back waits for all transfers.
            self.make_room()?;
            let _io = self.io.read();
            let (kind, mut count) = self.kind_at(offset, len_bytes)?;
            while count < len_bytes {
                match self.kind_at(offset + count, len_bytes - count)? {
                    (next, more) if next == kind => count += more,
                    _ => break,
                }
            }
            Ok((kind, count))
        };
        find().map_err(|error| self.at_image(error))
    }

    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        self.map_entry_at(offset, len_bytes)
            .map_err(|error| self.at_image(error))
    }
}

impl Drop for Qcow2Device {
    fn drop(&mut self) {
        if !self.file.is_read_only() {
            // A drop cannot report errors; callers that need them call flush first.
            let _ = self.close();
        }
    }
}
