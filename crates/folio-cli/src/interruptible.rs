//! A device whose writes end with EINTR after Ctrl-C, and move a progress bar.

use folio::block::{Allocation, Device, MapEntry};
use folio::{Errno, Result};
use std::io::{IoSlice, IoSliceMut};

/// Largest range that is zeroed in one call, so that Ctrl-C takes effect soon.
const ZEROES_BYTES_MAX: u64 = 64 << 20;

/// A device during work that the user may interrupt.
pub(crate) struct InterruptibleDevice<'a> {
    device: &'a dyn Device,
    observer: &'a dyn WriteObserver,
}

/// The view of the one that shows progress and takes interrupts.
pub(crate) trait WriteObserver: Sync {
    /// Whether to stop.
    fn is_interrupted(&self) -> bool;
    /// This many bytes were written.
    fn written(&self, len_bytes: u64);
    /// All bytes are written, and become durable.
    fn flushing(&self);
}

impl<'a> InterruptibleDevice<'a> {
    pub(crate) fn new(device: &'a dyn Device, observer: &'a dyn WriteObserver) -> Self {
        Self { device, observer }
    }

    fn check(&self) -> Result<()> {
        if self.observer.is_interrupted() {
            Err(Errno::INTR.into())
        } else {
            Ok(())
        }
    }
}

impl Device for InterruptibleDevice<'_> {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.device.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.check()?;
        self.device.write_vectored_at(bufs, offset)?;
        self.observer
            .written(bufs.iter().map(|buf| buf.len() as u64).sum());
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.check()?;
        self.observer.flushing();
        self.device.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check()?;
        self.device.discard(offset, len_bytes)
    }

    fn write_zeroes(&self, mut offset: u64, mut len_bytes: u64) -> Result<()> {
        while len_bytes > 0 {
            self.check()?;
            let count = len_bytes.min(ZEROES_BYTES_MAX);
            self.device.write_zeroes(offset, count)?;
            self.observer.written(count);
            offset += count;
            len_bytes -= count;
        }
        Ok(())
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.device.allocation(offset, len_bytes)
    }

    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        self.device.map_entry(offset, len_bytes)
    }
}
