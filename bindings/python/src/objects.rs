//! Images with URLs: objects and volumes in object storage, in builds with the feature.

use folio::{Errno, Error, Result};
use std::path::Path;

#[cfg(feature = "object-store")]
pub(crate) use with_feature::*;
#[cfg(not(feature = "object-store"))]
pub(crate) use without_feature::*;

/// The schemes of URLs of object stores.
const SCHEMES: [&str; 7] = ["s3", "gs", "az", "http", "https", "file", "memory"];

/// Whether a name is a URL of an object store.
#[pyo3::pyfunction]
pub(crate) fn is_url(name: &str) -> bool {
    let scheme = name.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| SCHEMES.contains(&scheme))
}

/// Refuses a URL that this process cannot open.
///
/// # Errors
///
/// EPROTONOSUPPORT in a build without object storage, EINVAL in a child of fork(2) whose parent has
/// used object storage.
pub(crate) fn check(path: &Path) -> Result<()> {
    if path.to_str().is_some_and(is_url) {
        check_usable().map_err(|error| error.at(path.display().to_string()))
    } else {
        Ok(())
    }
}

#[cfg(feature = "object-store")]
mod with_feature {
    use super::{Errno, Error, Result};
    use crate::fork::forks;
    use folio::block::provide_remote_images;
    use folio_object_store::{ImageOptions, ObjectImages};
    use folio_volume::{StoredImages, Takeover};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(crate) const IS_BUILT: bool = true;

    static IMAGES: OnceLock<StoredImages> = OnceLock::new();
    /// The process whose threads serve object storage, by its number of forks; `UNUSED` for none.
    static SERVED: AtomicU64 = AtomicU64::new(UNUSED);
    const UNUSED: u64 = u64::MAX;

    /// Makes images with URLs readable. Python imports the module in one thread.
    pub(crate) fn provide() {
        IMAGES.get_or_init(|| {
            let objects = ObjectImages::new(ImageOptions::default());
            let images = StoredImages::new(objects, Takeover::Refuse);
            provide_remote_images(Box::new(images.clone()));
            images
        });
    }

    pub(super) fn check_usable() -> Result<()> {
        let here = forks();
        let served = SERVED.compare_exchange(UNUSED, here, Ordering::Relaxed, Ordering::Relaxed);
        if served.is_ok() || served == Err(here) {
            return Ok(());
        }
        let text = "the parent used object storage before fork(): start this process by spawn or \
                    forkserver";
        Err(Error::new(Errno::INVAL, text))
    }

    /// Closes the volumes that no file system uses any more.
    pub(crate) fn close_unused() -> Result<()> {
        IMAGES.get().map_or(Ok(()), StoredImages::close_unused)
    }
}

#[cfg(not(feature = "object-store"))]
mod without_feature {
    use super::{Errno, Error, Result};

    pub(crate) const IS_BUILT: bool = false;

    pub(crate) fn provide() {}

    pub(super) fn check_usable() -> Result<()> {
        let text = "built without object storage: build the wheel with build-wheel --features \
                    object-store";
        Err(Error::new(Errno::PROTONOSUPPORT, text))
    }

    pub(crate) fn close_unused() -> Result<()> {
        Ok(())
    }
}
