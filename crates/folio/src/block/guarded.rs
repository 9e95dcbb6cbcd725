//! The device that a file system calls: one of the embedding program may panic, and a child of
//! fork(2) must not use its parent's.

use crate::base::Result;
use crate::base::owner_process::OwnerProcess;
use crate::base::unwind::catch_panic;
use crate::block::{Allocation, Device, MapEntry, PlaceReader};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Passes all calls to the lower device; a panic there becomes EIO, and so does each call in a
/// child of the process.
struct GuardedDevice {
    lower: Arc<dyn Device>,
    owner: OwnerProcess,
}

/// Returns `lower` with panics and forks turned into EIO.
pub(crate) fn guard(lower: Arc<dyn Device>) -> Arc<dyn Device> {
    Arc::new(GuardedDevice {
        lower,
        owner: OwnerProcess::current(),
    })
}

impl GuardedDevice {
    fn call<T>(&self, call: impl FnOnce(&dyn Device) -> Result<T>) -> Result<T> {
        self.owner.check()?;
        catch_panic("the device", || call(&*self.lower))
    }
}

impl Device for GuardedDevice {
    fn len_bytes(&self) -> u64 {
        self.call(|lower| Ok(lower.len_bytes())).unwrap_or(0)
    }

    fn is_read_only(&self) -> bool {
        self.call(|lower| Ok(lower.is_read_only())).unwrap_or(true)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.call(|lower| lower.read_vectored_at(bufs, offset))
    }

    fn read_uncached_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.call(|lower| lower.read_uncached_at(bufs, offset))
    }

    fn read_in_place(&self, offset: u64, len_bytes: u64, read: PlaceReader<'_>) -> Result<bool> {
        self.call(|lower| lower.read_in_place(offset, len_bytes, read))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.call(|lower| lower.write_vectored_at(bufs, offset))
    }

    fn flush(&self) -> Result<()> {
        self.call(|lower| lower.flush())
    }

    fn mark_closed(&self) -> Result<()> {
        self.call(|lower| lower.mark_closed())
    }

    fn has_atomic_flushes(&self) -> bool {
        self.call(|lower| Ok(lower.has_atomic_flushes()))
            .unwrap_or(false)
    }

    fn holds_changes(&self) -> bool {
        self.call(|lower| Ok(lower.holds_changes())).unwrap_or(true)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.call(|lower| lower.discard(offset, len_bytes))
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.call(|lower| lower.write_zeroes(offset, len_bytes))
    }

    fn write_allocated_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.call(|lower| lower.write_allocated_zeroes(offset, len_bytes))
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.call(|lower| lower.allocation(offset, len_bytes))
    }

    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        self.call(|lower| lower.map_entry(offset, len_bytes))
    }
}
