//! The target of `folio image convert`: a new file that appears only when complete, an existing
//! image, or a block device.

use crate::arguments::image_options::{
    BackingOptions, CacheMode, image_failure, new_image_failure,
};
use crate::exit::Outcome;
use crate::image_path::refuse_partition;
use folio::block::qcow2::Qcow2Device;
use folio::block::{self, CreateOptions, Device, ImageFormat, NewImage, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open target. If it is dropped before [`Target::finish`], a file created for it is removed.
pub(crate) struct Target {
    /// The device to write.
    pub(crate) device: Arc<dyn Device>,
    /// The same device, if it is qcow2.
    pub(crate) qcow2: Option<Arc<Qcow2Device>>,
    /// The device reads as zeros.
    pub(crate) is_zero: bool,
    path: PathBuf,
    new: Option<NewImage>,
}

/// The options to open or create a target.
pub(crate) struct TargetOptions<'a> {
    pub(crate) path: &'a Path,
    pub(crate) format: ImageFormat,
    pub(crate) backing: &'a BackingOptions,
    pub(crate) cache_mode: CacheMode,
}

impl TargetOptions<'_> {
    fn open(&self, path: &Path) -> Outcome<(Arc<dyn Device>, Option<Arc<Qcow2Device>>)> {
        let options = OpenOptions {
            format: Some(self.format),
            backing: self.backing.policy(),
            is_volatile: self.cache_mode == CacheMode::Unsafe,
            ..OpenOptions::default()
        };
        let failed = |error| image_failure(error, self.path);
        if self.format == ImageFormat::Qcow2 {
            let device = Arc::new(Qcow2Device::open_at(path, &options).map_err(failed)?);
            return Ok((device.clone(), Some(device)));
        }
        Ok((block::open(path, &options).map_err(failed)?, None))
    }

    /// Opens an existing image for overwriting.
    pub(crate) fn existing(&self) -> Outcome<Target> {
        let (device, qcow2) = self.open(self.path)?;
        Ok(Target {
            device,
            qcow2,
            is_zero: false,
            path: self.path.to_owned(),
            new: None,
        })
    }

    /// Creates a new image. With `force` an existing one is replaced; a block device is written in
    /// any case.
    pub(crate) fn create(
        &self,
        len_bytes: u64,
        options: &CreateOptions,
        force: bool,
    ) -> Outcome<Target> {
        refuse_partition(self.path)?;
        let is_device =
            std::fs::metadata(self.path).is_ok_and(|found| found.file_type().is_block_device());
        let replaces = force || is_device;
        let new = NewImage::create(self.path, self.format, len_bytes, options, replaces)
            .map_err(|error| new_image_failure(error, self.path))?;
        let (device, qcow2) = self.open(new.path())?;
        Ok(Target {
            device,
            qcow2,
            is_zero: new.is_zero(),
            path: self.path.to_owned(),
            new: Some(new),
        })
    }
}

impl Target {
    /// Completes the image, calls `after` with the path of its closed file, and renames it to its
    /// final name.
    pub(crate) fn finish(self, after: &dyn Fn(&Path) -> Outcome) -> Outcome {
        // Until now tables are in memory. The open decided whether this flush waits for the disk.
        self.device
            .flush()
            .map_err(|error| image_failure(error, &self.path))?;
        drop((self.device, self.qcow2));
        after(self.new.as_ref().map_or(&self.path, NewImage::path))?;
        self.new
            .map_or(Ok(()), NewImage::finish)
            .map_err(|error| image_failure(error, &self.path))
    }
}
