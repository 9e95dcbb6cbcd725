//! The disk that is served: an image or a partition, perhaps below an overlay.

use crate::arguments::image_options::{BackingOptions, image_failure};
use crate::exit::{Failure, Outcome};
use crate::image_path::ImagePath;
use crate::objects::is_url;
use crate::sandbox::Reach;
use crate::temporary_overlay::{NewOverlay, TemporaryOverlay};
use clap::Args;
use folio::Errno;
use folio::block::{self, BackingPolicy, Device, ImageFormat, LiveImage, OpenOptions};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How the image is opened.
#[derive(Args)]
pub(super) struct DiskArgs {
    /// Write changes to this qcow2 overlay (created if missing); IMAGE is not changed
    #[arg(long, value_name = "FILE", conflicts_with = "read_only")]
    overlay: Option<PathBuf>,
    /// Drop all changes at the end; IMAGE is not changed
    #[arg(long, conflicts_with_all = ["overlay", "read_only"])]
    throw_away: bool,
    /// Refuse all changes, and let other programs read the image meanwhile
    #[arg(long)]
    pub(super) read_only: bool,
    #[command(flatten)]
    backing: BackingOptions,
    /// Listen on a new Unix socket for the orders of folio ctl: flush, snapshot, fork, resize
    #[arg(long, value_name = "PATH", conflicts_with = "throw_away")]
    pub(super) control: Option<PathBuf>,
    /// Format of the image; the default is detected from its first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
}

/// An open disk.
pub(super) struct OpenDisk {
    pub(super) device: Arc<dyn Device>,
    /// The image, for orders.
    pub(super) image: Option<Arc<LiveImage>>,
}

/// Parses the name of an image or a partition.
pub(super) fn place(image: &OsStr) -> Outcome<ImagePath> {
    let place = ImagePath::parse(image)?;
    if place.path.as_os_str() != "/" {
        let text = format!(
            "{place}: an image is served as a whole: use {}",
            place.image_name()
        );
        return Err(Failure::usage(text));
    }
    Ok(place)
}

impl DiskArgs {
    /// Whether `--overlay` names an overlay, which belongs to one image.
    pub(super) fn has_overlay(&self) -> bool {
        self.overlay.is_some()
    }

    /// Creates the overlays that the options ask for, before the server is confined; returns the
    /// one of `--throw-away`, opened.
    pub(super) fn prepare(&self, place: &ImagePath) -> Outcome<Option<Arc<dyn Device>>> {
        if let Some(overlay) = &self.overlay {
            create_overlay(overlay, &place.image, self.format).map_err(Failure::image)?;
        }
        if self.throw_away {
            let overlay = TemporaryOverlay::new(&place.image, self.format)?;
            return overlay.open().map(Some);
        }
        Ok(None)
    }

    /// Returns a name of the disk's content: another one each time if it is thrown away.
    pub(super) fn content_name(&self, place: &ImagePath) -> String {
        let file = self.overlay.as_deref().unwrap_or(&place.image);
        let path = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let part = place.partition.as_ref().map(|part| format!("{part:?}"));
        let run = self.throw_away.then(uuid::Uuid::new_v4);
        format!("{} {part:?} {run:?}", path.display())
    }

    /// Returns what a server of the image opens while it serves.
    pub(super) fn reach(&self, place: &ImagePath) -> Reach {
        match self.backing.policy() {
            // A backing file may be an object.
            BackingPolicy::Anywhere => Reach::ObjectStore,
            _ => Reach::of_image(place).with_forks(self.control.is_some()),
        }
    }

    /// Opens the disk, or the selected part of the one that was opened before.
    pub(super) fn open(
        &self,
        place: &ImagePath,
        prepared: Option<Arc<dyn Device>>,
    ) -> Outcome<OpenDisk> {
        let options = OpenOptions {
            read_only: self.read_only,
            format: self.format,
            backing: self.backing.policy(),
            ..OpenOptions::default()
        };
        let (device, image) = match prepared {
            Some(device) => (device, None),
            None => {
                let (path, options) = match &self.overlay {
                    Some(overlay) => (&**overlay, self.overlay_options(overlay, place, options)?),
                    None => (&*place.image, options),
                };
                self.open_file(path, &options)?
            }
        };
        let device = match place.partition {
            None => device,
            Some(_) => place
                .select(device)
                .map_err(|error| Failure::image(error.at(place.image_name())))?,
        };
        Ok(OpenDisk { device, image })
    }

    /// Opens an image; for orders, if there is a control socket.
    fn open_file(
        &self,
        path: &Path,
        options: &OpenOptions,
    ) -> Outcome<(Arc<dyn Device>, Option<Arc<LiveImage>>)> {
        let failed = |error| image_failure(error, path);
        if self.control.is_none() {
            return Ok((block::open(path, options).map_err(failed)?, None));
        }
        let image = Arc::new(LiveImage::open(path, options).map_err(failed)?);
        Ok((image.clone(), Some(image)))
    }

    /// Returns how the overlay of an image is opened.
    fn overlay_options(
        &self,
        overlay: &Path,
        place: &ImagePath,
        options: OpenOptions,
    ) -> Outcome<OpenOptions> {
        let base = check_overlay(overlay, &place.image).map_err(Failure::image)?;
        let backing = if self.control.is_some() {
            // A fork puts generations between the two.
            BackingPolicy::Anywhere
        } else {
            // Of this image alone: the command names it.
            BackingPolicy::Within(base)
        };
        Ok(OpenOptions {
            format: Some(ImageFormat::Qcow2),
            backing,
            ..options
        })
    }
}

/// Creates the overlay of an image if it is missing.
fn create_overlay(overlay: &Path, base: &Path, format: Option<ImageFormat>) -> folio::Result<()> {
    if overlay.exists() {
        return Ok(());
    }
    let base = base_of_overlay(base)?;
    NewOverlay::of(&base, &base.display().to_string(), format)?.create(overlay)
}

/// Returns the name of an image in its overlay, which does not depend on the working directory.
fn base_of_overlay(base: &Path) -> folio::Result<PathBuf> {
    if is_url(base.as_os_str()) {
        return Ok(base.to_owned());
    }
    base.canonicalize()
        .map_err(|error| folio::Error::io("open", error).at(base.display().to_string()))
}

/// Fails unless the overlay is one of this image; returns the image's name in it.
fn check_overlay(overlay: &Path, base: &Path) -> folio::Result<PathBuf> {
    let base = base_of_overlay(base)?;
    let info = block::tools::info(overlay, &OpenOptions::default())?;
    if info.backing_path.as_deref() != Some(&*base) {
        let found = info.backing_path.unwrap_or_default();
        let why = format!("its backing file is {:?}, not {}", found, base.display());
        return Err(folio::Error::new(Errno::INVAL, why).at(overlay.display().to_string()));
    }
    Ok(base)
}
