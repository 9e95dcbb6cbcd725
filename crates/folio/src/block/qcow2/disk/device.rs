//! The state of an open image.

use super::autoclear::Autoclear;
use super::compressed::Decompressor;
use super::data_file::DataFile;
use super::lazy::DirtyBit;
use super::reserve::SpaceReserve;
use crate::base::sync::{Condvar, Mutex, RwLock};
use crate::base::{Error, ErrorKind, Result};
use crate::block::file::ImageFile;
use crate::block::image::Compression;
use crate::block::qcow2::layout::l2_entry::Geometry;
use crate::block::qcow2::metadata::{Metadata, Published};
use crate::block::{Device, iov};
use std::sync::{Arc, OnceLock};

/// A qcow2 image as a disk. Its calls come from any thread.
///
/// Dropping it writes the tables back without reporting errors; call [`Device::flush`] first to get
/// them.
pub struct Qcow2Device {
    pub(in crate::block::qcow2) file: Arc<dyn ImageFile>,
    pub(in crate::block::qcow2) geometry: Geometry,
    pub(super) l1_offset: u64,
    pub(in crate::block::qcow2) data_file: Option<DataFile>,
    pub(super) backing: Option<Arc<dyn Device>>,
    pub(super) compression: Compression,
    pub(super) decompressor: Decompressor,
    pub(in crate::block::qcow2) metadata: Mutex<Metadata>,
    /// That of `metadata`.
    pub(super) published: Arc<Published>,
    /// Notified when a write in flight has ended.
    pub(super) write_done: Condvar,
    pub(super) io: RwLock<()>,
    pub(super) flushing: Mutex<()>,
    pub(super) reserve: SpaceReserve,
    pub(super) dirty_bit: DirtyBit,
    pub(super) autoclear: Autoclear,
    /// Found by the first map of data.
    pub(super) is_preallocated: OnceLock<bool>,
}

impl Qcow2Device {
    /// Adds the image's name to an error; the host's own errors have it already.
    pub(super) fn at_image(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Io => error,
            _ => error.at("qcow2").at(self.file.name().to_owned()),
        }
    }

    /// Returns the file that stores the data clusters.
    pub(super) fn data(&self) -> &dyn ImageFile {
        self.data_file
            .as_ref()
            .map_or(&*self.file, |data| &*data.file)
    }

    /// Returns the backing file, if the image has one.
    pub fn backing(&self) -> Option<&dyn Device> {
        self.backing.as_deref()
    }

    /// Returns the size in bytes of the file that stores the image. While the image is open for
    /// writing, its file does not shrink.
    ///
    /// # Errors
    ///
    /// Those of the file.
    pub fn file_bytes(&self) -> Result<u64> {
        self.file.len_bytes()
    }

    /// Rejects a range of guest bytes that leaves the disk, with EIO.
    pub(super) fn check(&self, offset: u64, len_bytes: u64) -> Result<()> {
        iov::check_range(self.geometry.len_bytes, offset, len_bytes)
    }
}
