//! The live image: requests pass to the open device.

use super::generation;
use super::slot::{DeviceSlot, LiveDevice};
use crate::base::lock::{Mutex, MutexGuard};
use crate::base::{Errno, Error, Result};
use crate::block::file::{HostFile, remote};
use crate::block::image::{ChainImage, OpenOptions};
use crate::block::tools::open::{HostImage, chain, open_host_image, open_in};
use crate::block::{Allocation, Device, MapEntry, PlaceReader};
use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An image that a server or a mount keeps open. Other threads may fork, snapshot, resize and
/// compact it meanwhile; requests wait for the moment of the switch only.
///
/// ```text
///   fork:   disk.qcow2            ->   disk.qcow2 (new)    fork.qcow2 (new)
///                                              \            /
///                                          disk.gen-1.qcow2 (frozen)
/// ```
///
/// Every other program that uses the image's file directly is excluded by its lock, as after
/// [`crate::block::open`].
pub struct LiveImage {
    pub(super) path: PathBuf,
    pub(super) options: OpenOptions,
    pub(super) slot: DeviceSlot,
    /// The image's file, held by one operation at a time; none for a remote image.
    file: Mutex<Option<Arc<HostFile>>>,
    pub(super) chain: Mutex<Vec<ChainImage>>,
    /// Held by a compaction.
    pub(super) compaction: Mutex<()>,
}

/// The file of an image that an operation changes.
pub(super) struct ChangedFile<'a>(MutexGuard<'a, Option<Arc<HostFile>>>);

impl LiveImage {
    /// Opens the image at `path`, with its backing files.
    ///
    /// # Errors
    ///
    /// Those of [`crate::block::open`].
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        let mut opened = chain(options);
        let (path, device, file) = if remote(path).is_some() {
            let device = open_in(&mut opened, path, options)?;
            (path.to_owned(), LiveDevice::Other(device), None)
        } else {
            // The program may change its working folder before a fork.
            let path = std::path::absolute(path)
                .map_err(|error| Error::io("open", error).at(path.display().to_string()))?;
            let (image, file) =
                open_host_image(&path, options.read_only, options.format, &mut opened)?;
            let device = match image {
                HostImage::Qcow2(device) => LiveDevice::Qcow2(device),
                HostImage::Raw(device) => LiveDevice::Other(device),
            };
            (path, device, Some(file))
        };
        Ok(Self {
            path,
            options: options.clone(),
            slot: DeviceSlot::new(device),
            file: Mutex::new(file),
            chain: Mutex::new(opened.images()),
            compaction: Mutex::new(()),
        })
    }

    /// Returns the image's path; it stays the same when the image is forked.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the images from the top one, which is written, down to the last backing file.
    pub fn chain(&self) -> Vec<ChainImage> {
        self.chain.lock().clone()
    }

    /// Returns how many frozen generations are directly below the image, one for each fork since
    /// the last compaction. [`LiveImage::fork`] fails at [`super::GENERATIONS_MAX`].
    pub fn generations(&self) -> usize {
        generation::count(&self.chain.lock())
    }

    /// Begins an operation: no other one runs until the result is dropped.
    ///
    /// # Errors
    ///
    /// EROFS for an image that is open read-only, EOPNOTSUPP for a remote one.
    pub(super) fn begin_change(&self) -> Result<ChangedFile<'_>> {
        let file = self.file.lock();
        if file.is_none() {
            return Err(Error::unsupported(
                "changes of a remote image while it is open",
            ));
        }
        if self.options.read_only {
            return Err(Error::new(Errno::ROFS, "the image is open read-only"));
        }
        Ok(ChangedFile(file))
    }

    /// Adds the image's path to an error.
    pub(super) fn at_image(&self, error: Error) -> Error {
        error.within(self.path.display().to_string())
    }
}

impl ChangedFile<'_> {
    pub(super) fn get(&self) -> Result<Arc<HostFile>> {
        self.0.clone().ok_or_else(|| Errno::IO.into())
    }

    pub(super) fn replace(&mut self, file: Arc<HostFile>) {
        *self.0 = Some(file);
    }
}

impl Device for LiveImage {
    fn len_bytes(&self) -> u64 {
        self.slot
            .request(|device| Ok(device.len_bytes()))
            .unwrap_or(0)
    }

    fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.slot
            .request(|device| device.read_vectored_at(bufs, offset))
    }

    fn read_in_place(&self, offset: u64, len_bytes: u64, read: PlaceReader<'_>) -> Result<bool> {
        self.slot
            .request(|device| device.read_in_place(offset, len_bytes, read))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.slot
            .request(|device| device.write_vectored_at(bufs, offset))
    }

    fn flush(&self) -> Result<()> {
        self.slot.request(|device| device.flush())
    }

    fn mark_closed(&self) -> Result<()> {
        self.slot.request(|device| device.mark_closed())
    }

    fn has_atomic_flushes(&self) -> bool {
        self.slot
            .request(|device| Ok(device.has_atomic_flushes()))
            .unwrap_or(false)
    }

    fn read_uncached_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.slot
            .request(|device| device.read_uncached_at(bufs, offset))
    }

    fn holds_changes(&self) -> bool {
        self.slot
            .request(|device| Ok(device.holds_changes()))
            .unwrap_or(true)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.slot
            .request(|device| device.discard(offset, len_bytes))
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.slot
            .request(|device| device.write_zeroes(offset, len_bytes))
    }

    fn write_allocated_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.slot
            .request(|device| device.write_allocated_zeroes(offset, len_bytes))
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.slot
            .request(|device| device.allocation(offset, len_bytes))
    }

    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        self.slot
            .request(|device| device.map_entry(offset, len_bytes))
    }

    fn version(&self) -> Option<String> {
        self.slot
            .request(|device| Ok(device.version()))
            .unwrap_or(None)
    }
}
