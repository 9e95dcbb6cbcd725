//! A device as the place where the page cache puts pages of tmpfs away.

use crate::base::{Errno, Error, Result};
use crate::block::Device;
use crate::cache::{PageCache, Store, Swap};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Slots for pages, on a device.
struct SwapDevice(Arc<dyn Device>);

impl Store for SwapDevice {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.0
            .read_vectored_at(bufs, offset)
            .map_err(|error| error.at("swap"))
    }

    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.0
            .write_vectored_at(bufs, offset)
            .map_err(|error| error.at("swap"))
    }
}

/// Has the cache put pages of tmpfs on `device`; EROFS if that cannot be written, EBUSY if the
/// cache has one already.
pub(crate) fn swap_on(cache: &PageCache, device: Arc<dyn Device>) -> Result<()> {
    if device.is_read_only() {
        return Err(Error::new(Errno::ROFS, "swap is written").at("swap"));
    }
    let len_bytes = device.len_bytes();
    cache.swap_on(Swap::new(Arc::new(SwapDevice(device)), len_bytes))
}
