//! The remote seam: image files with a URL for a name, which are not files of the host. They are
//! read only.

use super::device_file::DeviceFile;
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

static REMOTE_IMAGES: OnceLock<Box<dyn RemoteImages>> = OnceLock::new();

/// A source of image files that have URLs for names, such as object storage. QEMU: `BlockDriver`
/// with a `protocol_name`.
pub trait RemoteImages: Send + Sync {
    /// Whether a name is one of theirs: `s3://bucket/disk.qcow2`.
    fn has_name(&self, name: &str) -> bool;

    /// Opens the file for reading.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    fn open(&self, name: &str) -> Result<Arc<dyn Device>>;

    /// Returns the URL of the file that the image `image` names `name`. Only one of both need be a
    /// URL.
    ///
    /// # Errors
    ///
    /// EINVAL for an invalid URL, EPERM for one that leaves the bucket.
    fn resolve(&self, image: &str, name: &str) -> Result<String>;

    /// Whether the image `image` may name the file at the URL `url` under
    /// [`crate::block::BackingPolicy::Beside`]: both are in one folder, or the user allows it.
    fn is_allowed(&self, image: &str, url: &str) -> bool;
}

/// Makes images with URLs readable in this process. Returns whether this call did it: only the
/// first one does.
pub fn provide_remote_images(images: Box<dyn RemoteImages>) -> bool {
    REMOTE_IMAGES.set(images).is_ok()
}

/// Returns the source of a remote file and its name; none for a file of the host.
pub(crate) fn remote(path: &Path) -> Option<(&'static dyn RemoteImages, &str)> {
    let images = &**REMOTE_IMAGES.get()?;
    let name = path.to_str().filter(|name| images.has_name(name))?;
    Some((images, name))
}

/// Resolves the name of a backing file if the image or the name is a URL.
pub(crate) fn resolve_remote(image: &Path, name: &str) -> Option<Result<PathBuf>> {
    let (images, _) = remote(Path::new(name)).or_else(|| remote(image))?;
    let image = image.to_str()?;
    Some(images.resolve(image, name).map(PathBuf::from))
}

/// Opens a remote file.
///
/// # Errors
///
/// EROFS to write, else those of [`RemoteImages::open`].
pub(crate) fn open_remote(
    (images, name): (&dyn RemoteImages, &str),
    read_only: bool,
) -> Result<DeviceFile> {
    if !read_only {
        return Err(not_writable(name));
    }
    Ok(DeviceFile::open_named(images.open(name)?, name.to_owned()))
}

/// Refuses a remote file where one of the host is written.
///
/// # Errors
///
/// EROFS for a remote file.
pub(crate) fn refuse_remote(path: &Path) -> Result<()> {
    remote(path).map_or(Ok(()), |(_, name)| Err(not_writable(name)))
}

fn not_writable(name: &str) -> Error {
    let why = "an object cannot be written in place: write into a local overlay (folio image create \
               -f qcow2 -b URL -F qcow2 --backing allow overlay.qcow2) with --backing-url URL, then \
               folio push overlay.qcow2 URL; or make a local image, then folio cp IMAGE URL";
    Error::new(Errno::ROFS, why).at(name.to_owned())
}
