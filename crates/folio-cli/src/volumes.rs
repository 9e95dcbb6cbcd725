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
    use crate::objects::{images, is_url};
    use clap::Args;
    use folio::{Errno, Error};
    use folio_object_store::{ObjectUrl, Scheme, handle};
    use folio_volume::{RetryPolicy, StorePlace, Takeover, Volume, VolumeReader, info};
    use std::sync::{Mutex, OnceLock, PoisonError};

    static TAKEOVER: OnceLock<Takeover> = OnceLock::new();
    /// The volumes that this process writes.
    static OPEN: Mutex<Vec<Arc<Volume>>> = Mutex::new(Vec::new());

    /// Options of volumes.
    #[derive(Args)]
    #[command(next_help_heading = "Object storage")]
    pub(crate) struct VolumeOptions {
        /// Open a volume that its last writer has not closed; that writer then fails
        #[arg(long, global = true, hide_short_help = true)]
        takeover: bool,
    }

    impl VolumeOptions {
        /// Makes the options those of this process.
        pub(crate) fn provide(&self) {
            let takeover = if self.takeover {
                Takeover::Fence
            } else {
                Takeover::Refuse
            };
            let _ = TAKEOVER.set(takeover);
        }
    }

    /// Returns the handling of a volume that its last writer has not closed.
    pub(crate) fn takeover() -> Takeover {
        TAKEOVER.get().copied().unwrap_or(Takeover::Refuse)
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
        if matches!(url.scheme(), Scheme::Http | Scheme::Https) {
            return Err(Failure::usage(format!(
                "{text}: a web server holds no volume: give s3, gs, az or file"
            )));
        }
        let failed = |error: Error| Failure::image(&error);
        let images = images().ok_or_else(|| Failure::new("object storage is not set up"))?;
        let store = images.connect(&url).map_err(failed)?;
        let runtime = handle().map_err(failed)?;
        let root = store.path().clone();
        let policy = RetryPolicy {
            timeout: store.options().io_timeout,
            ..RetryPolicy::default()
        };
        let place = StorePlace::new(store.explained(), root, runtime, &text).with_retries(policy);
        Ok(match url.scheme() {
            Scheme::File => place.without_updates(),
            _ => place,
        })
    }

    /// Opens the volume at a URL; none if there is no volume.
    pub(crate) fn open(name: &Path, is_read_only: bool) -> Outcome<Option<Arc<dyn Device>>> {
        let text = name.to_string_lossy();
        let is_web = text.starts_with("http://") || text.starts_with("https://");
        if !is_url(name.as_os_str()) || is_web {
            return Ok(None);
        }
        let place = place(name)?;
        let opened = if is_read_only {
            VolumeReader::open(&place, None).map(|volume| Arc::new(volume) as _)
        } else {
            Volume::open(&place, takeover()).map(keep)
        };
        match opened {
            Ok(device) => Ok(Some(device)),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(Failure::image(&error)),
        }
    }

    /// Creates a volume of `len_bytes` bytes, or opens one that holds nothing yet.
    pub(crate) fn create(name: &Path, len_bytes: u64) -> Outcome<Arc<dyn Device>> {
        let place = place(name)?;
        let failed = |error: Error| Failure::image(&error);
        let volume = match Volume::open(&place, takeover()) {
            Ok(volume) => volume,
            Err(error) if error.errno() == Errno::NOENT => {
                return Ok(keep(create_checked(&place, len_bytes)?));
            }
            Err(error) => return Err(failed(error)),
        };
        if info(&place).map_err(failed)?.logical_bytes > 0 {
            let text = name.display();
            return Err(Failure::new(format!(
                "{text}: the volume holds data; omit --create to write into it"
            )));
        }
        Ok(keep(volume))
    }

    /// Keeps a volume for [`close_all`].
    fn keep(volume: Volume) -> Arc<dyn Device> {
        let volume = Arc::new(volume);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.push(volume.clone());
        volume
    }

    /// Closes the volumes that this process wrote, and reports what fails.
    pub(crate) fn close_all(exit: Exit) -> Exit {
        let open = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
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

    /// Returns the size of the volume at a URL; none if there is no volume.
    pub(crate) fn len_bytes(name: &Path) -> Outcome<Option<u64>> {
        if !is_url(name.as_os_str()) {
            return Ok(None);
        }
        match VolumeReader::open(&place(name)?, None) {
            Ok(volume) => Ok(Some(volume.len_bytes())),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(Failure::image(&error)),
        }
    }

    /// Creates a volume after the races of the store's check.
    pub(crate) fn create_checked(place: &StorePlace, len_bytes: u64) -> Outcome<Volume> {
        let failed = |error: Error| Failure::image(&error);
        let tests = folio_volume::check_store(place, folio_volume::StoreTests::Racing);
        if let Some(reason) = folio_volume::refusal(&tests.map_err(failed)?) {
            return Err(Failure::new(format!(
                "the store is refused, because a volume on it would lose data: {reason}"
            )));
        }
        Volume::create(place, len_bytes).map_err(failed)
    }
}

#[cfg(not(feature = "object-store"))]
mod without_feature {
    use super::{Arc, Device, Exit, Failure, Outcome, Path};

    pub(crate) fn open(_: &Path, _: bool) -> Outcome<Option<Arc<dyn Device>>> {
        Ok(None)
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
