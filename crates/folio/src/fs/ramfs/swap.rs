//! Swap: a device to which the page cache evicts pages of tmpfs.

use crate::base::{Errno, Error, Result};
use crate::block::Device;
use crate::cache::{PageCache, Store, Swap};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Page slots on a device.
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

/// Makes the cache evict pages of tmpfs to `device`. EROFS if the device is read-only, EBUSY if the
/// cache has a swap device already.
pub(crate) fn swap_on(cache: &PageCache, device: Arc<dyn Device>) -> Result<()> {
    if device.is_read_only() {
        return Err(Error::new(Errno::ROFS, "the swap device is read-only").at("swap"));
    }
    let len_bytes = device.len_bytes();
    cache.swap_on(Swap::new(Arc::new(SwapDevice(device)), len_bytes))
}
