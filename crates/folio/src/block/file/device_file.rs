//! A device as an image file: bounded by the device's size.

use super::image_file::ImageFile;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::{Errno, Error, Result};
use crate::block::{Allocation, Device, iov};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A device as a file, of at most the device's size.
pub(crate) struct DeviceFile {
    device: Arc<dyn Device>,
    end: AtomicU64,
    name: String,
    is_disk: bool,
}

impl DeviceFile {
    /// Returns a device that stores an image: the file is as long as the device.
    pub(crate) fn open(device: Arc<dyn Device>) -> Self {
        let end = AtomicU64::new(device.len_bytes());
        Self {
            device,
            end,
            name: "device".to_owned(),
            is_disk: false,
        }
    }

    /// Returns a device whose first `len_bytes` store an image: the file grows up to the device's
    /// size.
    #[cfg(feature = "qcow2")]
    pub(crate) fn open_growing(device: Arc<dyn Device>, len_bytes: u64) -> Self {
        let end = AtomicU64::new(len_bytes.min(device.len_bytes()));
        Self {
            end,
            ..Self::open(device)
        }
    }

    /// Returns a device with a name of its own that stores an image or, with `is_disk`, is a disk.
    pub(crate) fn open_named(device: Arc<dyn Device>, name: String, is_disk: bool) -> Self {
        Self {
            name,
            is_disk,
            ..Self::open(device)
        }
    }

    /// Returns an empty file on a device, whose bytes are made zeros.
    #[cfg(feature = "qcow2")]
    pub(crate) fn create(device: Arc<dyn Device>) -> Result<Self> {
        device.write_zeroes(0, device.len_bytes())?;
        Ok(Self {
            device,
            end: AtomicU64::new(0),
            name: "device".to_owned(),
            is_disk: false,
        })
    }
}

impl ImageFile for DeviceFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_disk(&self) -> bool {
        self.is_disk
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.end.load(Ordering::Acquire))
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        if len_bytes > self.device.len_bytes() {
            return Err(Error::new(
                Errno::NOSPC,
                "the image needs more space than the device has",
            )
            .at(self.name.clone()));
        }
        let end = self.end.load(Ordering::Acquire);
        if len_bytes < end {
            self.device.write_zeroes(len_bytes, end - len_bytes)?;
        }
        self.end.store(len_bytes, Ordering::Release);
        Ok(())
    }

    fn read_some(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<u64> {
        let available = self
            .len_bytes()?
            .saturating_sub(offset)
            .min(iov::len_mut(bufs));
        if available > 0 {
            self.device
                .read_vectored_at(&mut iov::window_mut(bufs, 0, available), offset)?;
        }
        Ok(available)
    }

    fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let end = offset + iov::len(bufs);
        if end > self.device.len_bytes() {
            return Err(Error::new(
                Errno::NOSPC,
                "the image needs more space than the device has",
            )
            .at(self.name.clone()));
        }
        self.device.write_vectored_at(bufs, offset)?;
        self.end.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    fn device(&self) -> Option<Arc<dyn Device>> {
        Some(self.device.clone())
    }

    fn sync_data(&self) -> Result<()> {
        self.device.flush()
    }

    fn punch_hole(&self, offset: u64, len_bytes: u64) -> Result<bool> {
        // A discard need not make the bytes zeros.
        self.write_zeroes(offset, len_bytes).map(|()| true)
    }

    fn reserve(&self, _offset: u64, _len_bytes: u64) -> Result<bool> {
        Ok(false)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let available = self
            .device
            .len_bytes()
            .saturating_sub(offset)
            .min(len_bytes);
        if available == 0 {
            Ok(())
        } else {
            self.device.write_zeroes(offset, available)
        }
    }

    fn write_allocated_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.fill_with_zeros(offset, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        match self.len_bytes()?.saturating_sub(offset).min(len_bytes) {
            0 => Ok((Allocation::Hole, len_bytes)),
            available => self.device.allocation(offset, available),
        }
    }
}
