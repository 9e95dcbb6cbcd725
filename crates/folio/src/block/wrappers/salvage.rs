//! A device whose unreadable sectors read as zeros.

use crate::base::{Errno, Error, Result};
use crate::block::{Allocation, Device, LowerDevice, MapEntry, iov};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Unreadable data is found in pieces of this many bytes.
const SECTOR_BYTES: u64 = 512;
/// Where the allocation cannot be read, this many bytes count as data.
const UNKNOWN_BYTES: u64 = 64 << 10;

/// Called with the offset of something unreadable, and the cause.
pub type SalvageReport = Box<dyn Fn(u64, &Error) + Send + Sync>;

/// A device whose unreadable sectors read as zeros, and are reported (`qemu-img convert
/// --salvage`). Read-only.
pub struct SalvageDevice {
    lower: Arc<dyn Device>,
    report: SalvageReport,
}

impl SalvageDevice {
    /// Reads from `lower`, and calls `report` for what cannot be read.
    pub fn new(lower: Arc<dyn Device>, report: SalvageReport) -> Self {
        Self { lower, report }
    }
}

impl Device for SalvageDevice {
    fn len_bytes(&self) -> u64 {
        self.lower.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let len_bytes = iov::len_mut(bufs);
        iov::check_range(self.len_bytes(), offset, len_bytes)?;
        if self.lower.read_vectored_at(bufs, offset).is_ok() {
            return Ok(());
        }
        let mut done = 0;
        while done < len_bytes {
            let at = offset + done;
            let sector = (SECTOR_BYTES - at % SECTOR_BYTES).min(len_bytes - done);
            let mut window = iov::window_mut(bufs, done, sector);
            if let Err(error) = self.lower.read_vectored_at(&mut window, at) {
                (self.report)(at, &error);
                iov::fill_zeros(&mut window);
            }
            done += sector;
        }
        Ok(())
    }

    fn write_vectored_at(&self, _bufs: &[IoSlice<'_>], _offset: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn write_zeroes(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        // What the reads then find is reported by them.
        let unknown = (UNKNOWN_BYTES - offset % UNKNOWN_BYTES).min(len_bytes);
        let found = self.lower.allocation(offset, len_bytes);
        Ok(found.unwrap_or((Allocation::Data, unknown)))
    }

    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        if let Ok(found) = self.lower.map_entry(offset, len_bytes) {
            return Ok(found);
        }
        let (kind, count) = self.allocation(offset, len_bytes)?;
        let entry = MapEntry {
            depth: 0,
            is_present: true,
            kind,
            is_zero: kind != Allocation::Data,
            is_compressed: false,
            host_offset: None,
        };
        Ok((entry, count))
    }

    fn lower_devices(&self) -> Vec<LowerDevice> {
        vec![LowerDevice {
            device: self.lower.clone(),
            range: 0..self.lower.len_bytes(),
            is_written: false,
        }]
    }
}
