//! Forks: a consistent copy of an open image in the time of a flush, whatever its size.
//!
//! Where the host can, it clones the file. Else the image becomes a frozen generation below two
//! overlays:
//!
//! ```text
//!   flush; the generation's name, by link(2); the new top beside, under a temporary name
//!     -> fdatasync, fsync of the folder -> [requests held back] flush
//!     -> rename the new top over the image -> fsync of the folder -> [requests go on]
//!     -> the fork, fdatasync, fsync of its folder
//! ```
//!
//! Before the rename the path names the old image, after it a complete overlay over a durable name
//! of the same file. The rename is durable before a request changes the overlay.

use super::generation;
use super::image::{ChangedFile, LiveImage};
use super::new_file::{NewFile, NewName};
use super::slot::LiveDevice;
use crate::base::{Detail, Errno, Error, Result};
use crate::block::Device;
use crate::block::file::{HostFile, ImageFile, remote};
use crate::block::image::{BackingName, ChainImage, CreateOptions, ImageFormat, Qcow2Info};
use crate::block::qcow2::{self, Qcow2Device, Qcow2Parts};
use crate::block::tools::open::chain;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Largest number of generations below an image: each read of old data searches all of them.
pub const GENERATIONS_MAX: usize = 16;

/// The result of [`LiveImage::fork`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fork {
    /// The frozen file that the image and its fork share from now on; none if the host cloned the
    /// image's file.
    pub generation: Option<PathBuf>,
    /// Number of generations below the image now. A caller compacts the image before there are
    /// [`GENERATIONS_MAX`].
    pub generations: usize,
}

impl LiveImage {
    /// Makes a copy of the image at `new`, with all writes that returned before the call. Requests
    /// go on, except for the moment of the switch, which takes a flush and a few milliseconds.
    ///
    /// Where the host clones files (btrfs, xfs), `new` is a clone. Else the image is qcow2, its
    /// file becomes a generation (`disk.gen-1.qcow2` beside `disk.qcow2`), and image and fork are
    /// new overlays on it. The generation must stay, unchanged, as long as one of them uses it: it
    /// is locked as a backing file. Internal snapshots and bitmaps stay in the generation.
    ///
    /// A power cut leaves the image complete, at its path. `new` is complete once the call returns,
    /// and no image to use before.
    ///
    /// # Errors
    ///
    /// - EEXIST if `new` exists; nothing has changed then.
    /// - EOPNOTSUPP for a raw image that the host cannot clone, for an image with an external data
    ///   file, and for a remote one.
    /// - EMLINK, with [`Detail::TooManyGenerations`], at [`GENERATIONS_MAX`] generations, or 64
    ///   images in the chain.
    /// - EROFS for an image that is open read-only.
    /// - EPERM if the image's backing policy refuses the generation.
    /// - EINVAL if the image was opened by a symbolic link, ESTALE if its file was replaced.
    /// - Else the host's errors.
    pub fn fork(&self, new: impl AsRef<Path>) -> Result<Fork> {
        let mut file = self.begin_change().map_err(|error| self.at_image(error))?;
        let old = file.get()?;
        let new = NewFile::create(new.as_ref(), &old)?;
        let format = self.chain.lock().first().map(|image| image.format);
        let info = match format {
            Some(ImageFormat::Qcow2) => Some(qcow2::inspect(&*old)),
            _ => None,
        };
        let fork = || {
            let info = info.transpose()?;
            if info.as_ref().is_some_and(|info| info.data_file.is_some()) {
                return Err(Error::unsupported(
                    "forks of an image with an external data file",
                ));
            }
            if self.clone_file(&old, &new)? {
                return Ok(None);
            }
            let Some(info) = info else {
                return Err(Error::unsupported(
                    "forks of a raw image on this host file system, which cannot clone files: \
                     convert the image to qcow2, or put a qcow2 overlay on it",
                ));
            };
            let generation = self.freeze(&mut file, &info)?;
            write_overlay(&*new.file, &new.path, &generation, &info)?;
            Ok(Some(generation))
        };
        let generation = fork().map_err(|error| self.at_image(error))?;
        new.finish()?;
        Ok(Fork {
            generation,
            generations: self.generations(),
        })
    }

    /// Makes `new` a clone of the image's file; returns false, and writes nothing, where the host
    /// cannot.
    fn clone_file(&self, file: &HostFile, new: &NewFile) -> Result<bool> {
        // While requests go on: this finds out whether the host can, and writes most data.
        if !reflink(file, &new.file)? {
            return Ok(false);
        }
        {
            let exclusive = self.slot.exclusive();
            exclusive.settle()?;
            if !reflink(file, &new.file)? {
                return Err(Error::new(Errno::IO, "the host no longer clones the file"));
            }
        }
        let chain = self.chain.lock();
        if let [_, backing, ..] = &chain[..]
            && remote(&backing.path).is_none()
        {
            // The name in the image starts at its own folder.
            let name = generation::name_for(&new.path, &backing.path)?;
            let format = Some(backing.format);
            qcow2::rename_backing(&*new.file, Some(&BackingName { name, format }))?;
        }
        Ok(true)
    }

    /// Makes the image's file a generation, below a new overlay at the image's path; returns the
    /// generation's path.
    fn freeze(&self, file: &mut ChangedFile<'_>, info: &Qcow2Info) -> Result<PathBuf> {
        // The new top must be able to open the chain again.
        if self.generations() >= GENERATIONS_MAX || self.chain.lock().len() >= qcow2::DEPTH_MAX {
            let why = "the image has the largest number of generations: compact it first";
            return Err(Error::new(Errno::MLINK, why).about(Detail::TooManyGenerations));
        }
        // While requests go on: less is left to flush when they wait.
        self.flush()?;
        let old = file.get()?;
        let generation = generation::link(&self.path, &old, &self.chain.lock())?;
        let mut generation_name = NewName::new(generation.clone());
        let mut top = NewFile::beside(&self.path, &old, self.options.is_volatile)?;
        let name = write_overlay(&*top.file, &self.path, &generation, info)?;
        qcow2::backing_path(&self.path, &name, &chain(&self.options))?;
        top.file.sync_data()?;
        generation::sync_folder(&self.path)?;
        let parts = Qcow2Parts::overlay(top.file.clone(), &self.slot.qcow2()?);
        let device = Qcow2Device::from_parts(parts)?;

        let start = Instant::now();
        let mut exclusive = self.slot.exclusive();
        exclusive.settle()?;
        generation::check_path(&self.path, &old)?;
        fs::rename(&top.path, &self.path).map_err(|error| Error::io("rename", error))?;
        top.name.keep();
        // From here on the path may need it.
        generation_name.keep();
        if let Err(error) = generation::sync_folder(&self.path) {
            // Requests go on in the old file, so the path must name it. If this fails, the path
            // names an empty overlay on the old file, which reads the same.
            restore(&generation, &top.path, &self.path);
            return Err(error);
        }
        old.freeze();
        exclusive.end_epoch();
        exclusive.put(LiveDevice::Qcow2(Arc::new(device)));
        drop(exclusive);
        tracing::info!(file = %self.path.display(), generation = %generation.display(), held = ?start.elapsed(), "image forked");
        file.replace(top.file);
        let image = ChainImage {
            path: generation.clone(),
            format: ImageFormat::Qcow2,
        };
        self.chain.lock().insert(1, image);
        Ok(generation)
    }
}

/// Gives the old image its path back.
fn restore(generation: &Path, temporary: &Path, path: &Path) {
    let restored = fs::hard_link(generation, temporary).and_then(|()| fs::rename(temporary, path));
    if let Err(error) = restored {
        tracing::warn!("{}: rename: {error}", path.display());
    }
}

/// Writes an empty overlay with the properties of the image `info` into the file of the image at
/// `image`; returns the backing file's name in it.
fn write_overlay(
    file: &dyn ImageFile,
    image: &Path,
    backing: &Path,
    info: &Qcow2Info,
) -> Result<String> {
    let name = generation::name_for(image, backing)?;
    let options = CreateOptions {
        // At most 2 MiB.
        cluster_bytes: info.cluster_bytes as u32,
        compat: info.compat,
        refcount_bits: info.refcount_bits,
        lazy_refcounts: info.lazy_refcounts,
        compression: info.compression,
        extended_l2: info.extended_l2,
        backing: Some(BackingName {
            name: name.clone(),
            format: Some(ImageFormat::Qcow2),
        }),
        ..CreateOptions::default()
    };
    qcow2::write_empty(file, info.len_bytes, &options)?;
    Ok(name)
}

/// Makes `to` share all extents of `from`; returns false where the host cannot.
fn reflink(from: &HostFile, to: &HostFile) -> Result<bool> {
    match rustix::fs::ioctl_ficlone(to.as_file(), from.as_file()) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {
            Ok(false)
        }
        Err(errno) => Err(Error::io("clone", errno.into()).at(to.name().to_owned())),
    }
}
