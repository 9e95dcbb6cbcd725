//! The name of the backing file of an image that no device has open.

use crate::base::Result;
use crate::block::Device;
use crate::block::file::ImageFile;
use crate::block::image::{BackingName, Chain, ImageFormat};
use crate::block::qcow2::disk::backing;
use crate::block::qcow2::layout::backing_name;
use crate::block::qcow2::layout::header::Header;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Resolves a backing file's name in the image at `image`, if `chain` allows it.
pub(crate) fn backing_path(image: &Path, name: &str, chain: &Chain) -> Result<PathBuf> {
    backing::resolve(image, "backing file", name, chain)
}

/// Returns name and format of the backing file that the header in `file` names.
pub(crate) fn backing_of(file: &dyn ImageFile) -> Result<Option<(String, Option<ImageFormat>)>> {
    let header = Header::read(file)?;
    let Some(name) = header.backing_name else {
        return Ok(None);
    };
    let format = header
        .backing_format
        .as_deref()
        .map(str::parse)
        .transpose()?;
    Ok(Some((name, format)))
}

/// Returns the version of the backing file that the header in `file` records.
pub(crate) fn backing_version_of(file: &dyn ImageFile) -> Result<Option<String>> {
    Ok(Header::read(file)?.backing_version)
}

/// Opens the future backing file of the image at `image`, for reading.
pub(crate) fn open_backing(
    image: &Path,
    name: &BackingName,
    chain: &mut Chain,
) -> Result<Arc<dyn Device>> {
    let path = backing_path(image, &name.name, chain)?;
    chain
        .open_image(&path, true, name.format)
        .map_err(|error| error.at("new backing file"))
}

/// Records the version of the backing file in the header in `file`, or none.
///
/// # Errors
///
/// EINVAL for a version that does not fit, EUCLEAN for a corrupt header.
pub(crate) fn record_version(file: &dyn ImageFile, version: Option<&str>) -> Result<()> {
    Header::read(file)?.check_writable()?;
    backing_name::set_version(file, version)
}

/// Changes the name in the header in `file`, and nothing else.
///
/// # Errors
///
/// EINVAL for a name that does not fit, EUCLEAN for a corrupt header.
pub(crate) fn rename_backing(file: &dyn ImageFile, name: Option<&BackingName>) -> Result<()> {
    // An image that cannot be read is not written.
    Header::read(file)?.check_writable()?;
    backing_name::set(file, name)
}
