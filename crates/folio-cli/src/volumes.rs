//! Volumes in object storage as images: which URL is one, and how it is opened.

use crate::exit::{Exit, Failure, Outcome};
use folio::block::Device;
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "object-store")]
pub(crate) use with_feature::*;

#[cfg(feature = "object-store")]
mod with_feature {
    use super::{Arc, Device, Exit, Failure, Outcome, Path};
    use crate::exit::explain;
    use crate::objects::is_url;
    use clap::Args;
    use folio::block::provide_remote_images;
    use folio::{Errno, Error};
    use folio_object_store::{ObjectImages, ObjectUrl};
    use folio_volume::{
        StorePlace, StoredImages, Takeover, Volume, VolumeReader, check_vacant, info, volume_around,
    };
    use std::sync::OnceLock;

    static IMAGES: OnceLock<StoredImages> = OnceLock::new();

    /// Options of volumes.
    #[derive(Args)]
    #[command(next_help_heading = "Object storage")]
    pub(crate) struct VolumeOptions {
        /// Open a volume that its last writer has not closed; that writer then fails
        #[arg(long, global = true, hide_short_help = true)]
        takeover: bool,
    }

    impl VolumeOptions {
        /// Makes the options those of this process, and what has a URL usable as an image.
        pub(crate) fn provide(&self, images: &ObjectImages) {
            let takeover = if self.takeover {
                Takeover::Fence
            } else {
                Takeover::Refuse
            };
            let stored = IMAGES.get_or_init(|| StoredImages::new(images.clone(), takeover));
            provide_remote_images(Box::new(stored.clone()));
        }
    }

    /// Returns the images of this process.
    fn images() -> Outcome<&'static StoredImages> {
        IMAGES
            .get()
            .ok_or_else(|| Failure::new("object storage is not set up"))
    }

    /// Returns the handling of a volume that its last writer has not closed.
    pub(crate) fn takeover() -> Takeover {
        IMAGES
            .get()
            .map_or(Takeover::Refuse, StoredImages::takeover)
    }

    /// Returns the place of a volume's URL.
    ///
    /// # Errors
    ///
    /// A usage error for any other name than the URL of a store that can hold volumes.
    pub(crate) fn place(name: &Path) -> Outcome<StorePlace> {
        let text = name.to_string_lossy();
        let url: ObjectUrl = text
            .parse()
            .map_err(|e| Failure::usage(format!("{text}: {e}")))?;
        let place = images()?.place(&url).map_err(Failure::image)?;
        place.ok_or_else(|| {
            Failure::usage(format!(
                "{text}: a web server holds no volume: give s3, gs, az or file"
            ))
        })
    }

    /// Refuses the URL of a volume, and one inside of it, as the place of an object.
    ///
    /// # Errors
    ///
    /// EEXIST if there is a volume, and the store's errors.
    pub(crate) fn refuse_object(url: &ObjectUrl) -> Outcome {
        let name = url.to_string();
        let place = images()?.place(url);
        let Some(place) = place.map_err(Failure::image)? else {
            return Ok(());
        };
        match volume_around(&place) {
            Ok(None) => Ok(()),
            Ok(Some(root)) => Err(Failure::new(format!(
                "{name}: a volume is there ({root}): give another URL, or copy into the volume's \
                 disk with folio image convert -n"
            ))),
            Err(error) => Err(Failure::image(error)),
        }
    }

    /// Creates a volume of `len_bytes` bytes, or opens one that holds nothing yet.
    pub(crate) fn create(name: &Path, len_bytes: u64) -> Outcome<Arc<dyn Device>> {
        let place = place(name)?;
        let failed = |error: Error| Failure::image(error);
        let volume = match Volume::open(&place, takeover()) {
            Ok(volume) => volume,
            Err(error) if error.errno() == Errno::NOENT => {
                return Ok(images()?.keep(create_checked(&place, len_bytes)?));
            }
            Err(error) => return Err(failed(error)),
        };
        if info(&place).map_err(failed)?.logical_bytes > 0 {
            let text = name.display();
            return Err(Failure::new(format!(
                "{text}: the volume holds data; omit --create to write into it"
            )));
        }
        Ok(images()?.keep(volume))
    }

    /// Closes the volumes that this process wrote, and reports what fails.
    pub(crate) fn close_all(exit: Exit) -> Exit {
        let open = IMAGES.get().map_or(Vec::new(), StoredImages::take_open);
        let mut exit = exit;
        for volume in open {
            // A failure that a flush or a write has returned is reported already.
            let is_reported = volume.has_failed() && !matches!(exit, Exit::Done);
            match volume.close() {
                Err(error) if !is_reported => {
                    eprintln!("folio: {}", explain(&error));
                    if matches!(exit, Exit::Done) {
                        exit = Exit::Image;
                    }
                }
                _ => {}
            }
        }
        exit
    }

    /// Closes the volumes that this process wrote and no device uses any more.
    pub(crate) fn close_unused() -> Outcome {
        let closed = images()?.close_unused();
        closed.map_err(Failure::image)
    }

    /// Returns the size of the volume at a URL; none if there is no volume.
    pub(crate) fn len_bytes(name: &Path) -> Outcome<Option<u64>> {
        if !is_url(name.as_os_str()) {
            return Ok(None);
        }
        match VolumeReader::open(&place(name)?, None) {
            Ok(volume) => Ok(Some(volume.len_bytes())),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(Failure::image(error)),
        }
    }

    /// Creates a volume after the required tests of the store.
    pub(crate) fn create_checked(place: &StorePlace, len_bytes: u64) -> Outcome<Volume> {
        let failed = |error: Error| Failure::image(error);
        // The tests leave objects in the store for a moment.
        check_vacant(place).map_err(failed)?;
        let tests = folio_volume::check_store(place, folio_volume::StoreTests::Required);
        if let Some(reason) = folio_volume::refusal(&tests.map_err(failed)?) {
            return Err(Failure::new(format!(
                "the store is refused: {reason}: a volume on it would lose data, or could not be read"
            )));
        }
        Volume::create(place, len_bytes).map_err(failed)
    }
}

#[cfg(not(feature = "object-store"))]
mod without_feature {
    use super::{Arc, Device, Exit, Failure, Outcome, Path};

    pub(crate) fn close_unused() -> Outcome {
        Ok(())
    }

    pub(crate) fn close_all(exit: Exit) -> Exit {
        exit
    }

    pub(crate) fn len_bytes(_: &Path) -> Outcome<Option<u64>> {
        Ok(None)
    }

    pub(crate) fn create(name: &Path, _: u64) -> Outcome<Arc<dyn Device>> {
        crate::objects::check_built(name).map_err(Failure::usage)?;
        Err(Failure::usage(format!("{}: not a volume", name.display())))
    }
}

#[cfg(not(feature = "object-store"))]
pub(crate) use without_feature::*;
