//! The remote seam: image files and disks with a URL for a name, which are not files of the host.

use super::device_file::DeviceFile;
use crate::base::{Error, Result};
use crate::block::Device;
use std::path::Path;
use std::sync::{Arc, OnceLock};

static REMOTE_IMAGES: OnceLock<Box<dyn RemoteImages>> = OnceLock::new();

/// What is at a URL.
pub struct RemoteImage {
    /// The bytes there.
    pub device: Arc<dyn Device>,
    /// They are those of a disk, whatever format they look like: a writer of the disk must
    /// not choose how it is read. Else the first bytes decide the format.
    pub is_disk: bool,
}

/// A source of images that have URLs for names, such as object storage. QEMU: `BlockDriver` with a
/// `protocol_name`.
pub trait RemoteImages: Send + Sync {
    /// Whether a name is one of theirs: `s3://bucket/disk.qcow2`.
    fn has_name(&self, name: &str) -> bool;

    /// Opens the image.
    ///
    /// # Errors
    ///
    /// Those of open(2); EROFS to write what can only be read.
    fn open(&self, name: &str, read_only: bool) -> Result<RemoteImage>;

    /// Returns the error for a change of the file itself, as a new size is one; it says what to do
    /// instead.
    fn not_writable(&self, name: &str) -> Error;

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

/// A file that is not on the host.
pub(crate) struct RemoteFile<'a> {
    images: &'static dyn RemoteImages,
    pub(crate) name: &'a str,
}

/// Returns the remote file at `path`; none for a file of the host.
pub(crate) fn remote(path: &Path) -> Option<RemoteFile<'_>> {
    let images = &**REMOTE_IMAGES.get()?;
    let name = path.to_str().filter(|name| images.has_name(name))?;
    Some(RemoteFile { images, name })
}

/// Resolves the name of a backing file if the image or the name is a URL.
#[cfg(feature = "qcow2")]
pub(crate) fn resolve_remote(image: &Path, name: &str) -> Option<Result<std::path::PathBuf>> {
    let named = remote(Path::new(name)).or_else(|| remote(image))?;
    let image = image.to_str()?;
    Some(named.images.resolve(image, name).map(Into::into))
}

impl RemoteFile<'_> {
    /// Whether `image` may name the file, by [`RemoteImages::is_allowed`].
    #[cfg(feature = "qcow2")]
    pub(crate) fn is_allowed(&self, image: &Path) -> bool {
        image
            .to_str()
            .is_some_and(|image| self.images.is_allowed(image, self.name))
    }

    /// Opens the file.
    ///
    /// # Errors
    ///
    /// Those of [`RemoteImages::open`].
    pub(crate) fn open(&self, read_only: bool) -> Result<DeviceFile> {
        let found = self.images.open(self.name, read_only)?;
        let name = self.name.to_owned();
        Ok(DeviceFile::open_named(found.device, name, found.is_disk))
    }
}

/// Refuses a remote file where one of the host is written.
///
/// # Errors
///
/// EROFS for a remote file.
pub(crate) fn refuse_remote(path: &Path) -> Result<()> {
    remote(path).map_or(Ok(()), |file| Err(file.images.not_writable(file.name)))
}
