//! Where an image is converted to: a new file that appears whole or not at all, an image that
//! exists, a block device.

use super::shared_options::{BackingOptions, image_failure};
use crate::exit::{Failure, Outcome};
use clap::ValueEnum;
use folio::block::{self, CreateOptions, Device, ImageFormat, OpenOptions, Qcow2Device};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// When what is written is on the disk, in qemu-img's words.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Caching {
    /// When the host sees fit.
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

/// A target that is open. Dropped before [`Target::finish`], a file that was made for it is
/// removed.
pub(crate) struct Target {
    /// What is to be written.
    pub(crate) device: Arc<dyn Device>,
    /// The same, if it is qcow2.
    pub(crate) qcow2: Option<Arc<Qcow2Device>>,
    /// It reads as zeros.
    pub(crate) is_zero: bool,
    path: PathBuf,
    made: Option<MadeFile>,
}

/// A file that goes away unless it is kept.
struct MadeFile {
    path: Option<PathBuf>,
}

impl MadeFile {
    /// Gives the file its name.
    fn keep(mut self, name: &Path) -> std::io::Result<()> {
        match self.path.take() {
            Some(path) if path != name => {
                std::fs::rename(&path, name).inspect_err(|_| self.path = Some(path))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for MadeFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Ours, new and unfinished: nothing is lost with it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a target is opened or made with.
pub(crate) struct TargetOptions<'a> {
    pub(crate) path: &'a Path,
    pub(crate) format: ImageFormat,
    pub(crate) backing: &'a BackingOptions,
    pub(crate) caching: Caching,
}

impl TargetOptions<'_> {
    fn open(&self, path: &Path) -> Outcome<(Arc<dyn Device>, Option<Arc<Qcow2Device>>)> {
        let options = OpenOptions {
            format: Some(self.format),
            backing: self.backing.policy(),
            is_volatile: self.caching == Caching::Unsafe,
            ..OpenOptions::default()
        };
        let failed = |error| image_failure(error, self.path);
        if self.format == ImageFormat::Qcow2 {
            let device = Arc::new(Qcow2Device::open_at(path, &options).map_err(failed)?);
            return Ok((device.clone(), Some(device)));
        }
        Ok((block::open(path, &options).map_err(failed)?, None))
    }

    /// Opens an image that is to be written over.
    pub(crate) fn existing(&self) -> Outcome<Target> {
        let (device, qcow2) = self.open(self.path)?;
        Ok(Target {
            device,
            qcow2,
            is_zero: false,
            path: self.path.to_owned(),
            made: None,
        })
    }

    /// Makes a new image; one that exists is replaced at the end, if the user said so. A block
    /// device is opened.
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
                    "{name}: a {} image on a block device has to be there before; then use -n",
                    self.format
                );
                return Err(Failure::new(text));
            }
            return self.existing();
        }
        if found.is_ok() && !force {
            let text = format!("{name}: exists; --force makes it anew, -n writes into it");
            return Err(Failure::new(text));
        }
        let made = if found.is_ok() {
            other_name(self.path)
        } else {
            self.path.to_owned()
        };
        block::create_with(&made, self.format, len_bytes, options)
            .map_err(|error| image_failure(error, self.path))?;
        let file = MadeFile {
            path: Some(made.clone()),
        };
        let (device, qcow2) = self.open(&made)?;
        let is_zero = options.backing.is_none();
        Ok(Target {
            device,
            qcow2,
            is_zero,
            path: self.path.to_owned(),
            made: Some(file),
        })
    }
}

/// A name beside the target's, for as long as there is another of that name.
fn other_name(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".folio-{}", std::process::id()));
    path.with_file_name(name)
}

impl Target {
    /// Everything is written: the image gets its name.
    pub(crate) fn finish(self) -> Outcome {
        // Tables are in memory until now; whether this waits for the disk was said at the open.
        self.device
            .flush()
            .map_err(|error| image_failure(error, &self.path))?;
        drop((self.device, self.qcow2));
        let Some(made) = self.made else { return Ok(()) };
        made.keep(&self.path)
            .map_err(|error| Failure::new(format!("{}: {error}", self.path.display())))
    }
}
