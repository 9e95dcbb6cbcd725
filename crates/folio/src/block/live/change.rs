//! Snapshots and new sizes of an open image: its device closes, and another one opens the same
//! locked files.

use super::image::LiveImage;
use super::slot::{ExclusiveSlot, LiveDevice};
use crate::base::{Clock, Errno, Error, Result};
use crate::block::Device;
use crate::block::RawDevice;
use crate::block::image::Preallocation;
use crate::block::qcow2::{self, Qcow2Device, Qcow2Parts};
use crate::block::tools::resize::{new_size, resize_raw};
use std::sync::Arc;

impl LiveImage {
    /// Creates an internal snapshot of the disk's present content. Requests wait meanwhile: the
    /// tables of the whole image are read.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP for a raw image, a remote one, and one with an external data file; EROFS for an
    /// image that is open read-only; else those of [`crate::block::tools::create_snapshot`]. EIO
    /// from all later requests if the image cannot be opened again.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        let change = || {
            let _file = self.begin_change()?;
            let date = Clock::default().now();
            self.flush()?;
            let mut exclusive = self.slot.exclusive();
            // Its clusters are shared with the disk from now on.
            exclusive.end_epoch();
            reopen(&mut exclusive, &|parts| {
                qcow2::create_snapshot(&*parts.file, name, date)
            })
        };
        change().map_err(|error| self.at_image(error))
    }

    /// Resizes the disk to `len_bytes` bytes, rounded up to a multiple of 512. The new part reads
    /// as zeros. With `may_shrink` the disk may become smaller: content behind the new end is lost,
    /// and requests there fail with EIO. Requests wait meanwhile: the tables of the whole image are
    /// read.
    ///
    /// # Errors
    ///
    /// EROFS for an image that is open read-only, EOPNOTSUPP for a remote one; else those of
    /// [`crate::block::tools::resize`]. EIO from all later requests if the image cannot be opened
    /// again.
    pub fn resize(&self, len_bytes: u64, may_shrink: bool) -> Result<()> {
        let change = || {
            let file = self.begin_change()?.get()?;
            self.flush()?;
            let mut exclusive = self.slot.exclusive();
            let device = exclusive.device()?;
            let old_bytes = match &device {
                LiveDevice::Qcow2(device) => device.len_bytes(),
                LiveDevice::Other(device) => device.len_bytes(),
            };
            let len_bytes = new_size(old_bytes, len_bytes, may_shrink)?;
            if len_bytes < old_bytes {
                exclusive.end_epoch();
            }
            if let LiveDevice::Qcow2(device) = device {
                drop(device);
                return reopen(&mut exclusive, &|parts| {
                    let mut open = || Qcow2Device::from_parts(parts.clone());
                    qcow2::resize(&*parts.file, len_bytes, Preallocation::Off, &mut open)
                });
            }
            if file.is_block_device() {
                let why = "a block device cannot be resized";
                return Err(Error::new(Errno::INVAL, why));
            }
            resize_raw(&file, old_bytes, len_bytes, Preallocation::Off)?;
            let device = RawDevice::from_file(file)?;
            exclusive.put(LiveDevice::Other(Arc::new(device)));
            Ok(())
        };
        change().map_err(|error| self.at_image(error))
    }
}

/// Closes the qcow2 device, makes a change of its files, and opens them again.
pub(super) fn reopen(
    exclusive: &mut ExclusiveSlot<'_>,
    change: &dyn Fn(&mut Qcow2Parts) -> Result<()>,
) -> Result<()> {
    let device = exclusive.qcow2()?;
    exclusive.settle()?;
    let mut parts = device.parts();
    // The last references: the device is closed, its files stay open.
    drop(device);
    exclusive.clear();
    let changed = change(&mut parts);
    let device = Qcow2Device::from_parts(parts)?;
    exclusive.put(LiveDevice::Qcow2(Arc::new(device)));
    changed
}
