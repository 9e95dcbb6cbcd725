//! The target of `folio image convert`: a new file that appears only when complete, an existing
//! image, or a block device.

use super::shared_options::{BackingOptions, image_failure};
use crate::exit::{Failure, Outcome};
use clap::ValueEnum;
use folio::block::{self, CreateOptions, Device, ImageFormat, OpenOptions, Qcow2Device};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// When written data reaches the disk, with the names of qemu-img.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheMode {
    /// Whenever the host writes it.
    Unsafe,
    /// At the end.
    Writeback,
    /// At the end.
    Writethrough,
    /// At the end.
    None,
    /// At the end.
    Directsync,
}

/// An open target. If it is dropped before [`Target::finish`], a file created for it is removed.
pub(crate) struct Target {
    /// The device to write.
    pub(crate) device: Arc<dyn Device>,
    /// The same device, if it is qcow2.
    pub(crate) qcow2: Option<Arc<Qcow2Device>>,
    /// The device reads as zeros.
    pub(crate) is_zero: bool,
    path: PathBuf,
    temporary: Option<TemporaryFile>,
}

/// A new file that is removed unless it is kept.
struct TemporaryFile {
    path: Option<PathBuf>,
}

impl TemporaryFile {
    /// Renames the file to its final name.
    fn keep(mut self, name: &Path) -> std::io::Result<()> {
        match self.path.take() {
            Some(path) if path != name => {
                std::fs::rename(&path, name).inspect_err(|_| self.path = Some(path))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The file is new and incomplete, so no data is lost.
            let _ = std::fs::remove_file(path);
        }
    }
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
            temporary: None,
        })
    }

    /// Creates a new image. With `force` an existing one is replaced at the end. A block device is
    /// opened.
    pub(crate) fn create(
        &self,
        len_bytes: u64,
        options: &CreateOptions,
        force: bool,
    ) -> Outcome<Target> {
        let name = self.path.display();
        let found = std::fs::metadata(self.path);
        if found
            .as_ref()
            .is_ok_and(|found| found.file_type().is_block_device())
        {
            if self.format != ImageFormat::Raw {
                let text = format!(
                    "{name}: cannot create a {} image on a block device; create it first, then use -n",
                    self.format
                );
                return Err(Failure::new(text));
            }
            return self.existing();
        }
        if found.is_ok() && !force {
            let text = format!(
                "{name}: already exists; use --force to replace it, or -n to write into it"
            );
            return Err(Failure::new(text));
        }
        let made = if found.is_ok() {
            other_name(self.path)
        } else {
            self.path.to_owned()
        };
        block::create_with(&made, self.format, len_bytes, options)
            .map_err(|error| image_failure(error, self.path))?;
        let file = TemporaryFile {
            path: Some(made.clone()),
        };
        let (device, qcow2) = self.open(&made)?;
        let is_zero = options.backing.is_none();
        Ok(Target {
            device,
            qcow2,
            is_zero,
            path: self.path.to_owned(),
            temporary: Some(file),
        })
    }
}

/// Returns a temporary name beside the target's, used while an older file has that name.
fn other_name(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".folio-{}", std::process::id()));
    path.with_file_name(name)
}

impl Target {
    /// Completes the image, and renames it to its final name.
    pub(crate) fn finish(self) -> Outcome {
        // Until now tables are in memory. The open decided whether this flush waits for the disk.
        self.device
            .flush()
            .map_err(|error| image_failure(error, &self.path))?;
        drop((self.device, self.qcow2));
        let Some(temporary) = self.temporary else {
            return Ok(());
        };
        temporary
            .keep(&self.path)
            .map_err(|error| Failure::new(format!("{}: {error}", self.path.display())))
    }
}
