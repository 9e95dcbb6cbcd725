//! Persistent dirty bitmaps of an image that no process has open.

use super::check::at_file;
use crate::base::{Error, Result};
use crate::block::file::{HostFile, ImageFile, open_for_facts};
use crate::block::image::{ImageFormat, OpenOptions, detect};
use crate::block::qcow2::{self, BitmapBits, BitmapChange};
use std::path::Path;

/// Changes the dirty bitmap `name` of the image at `path`, durably: after a power cut at any moment
/// the bitmap is as before or as after.
///
/// # Errors
///
/// ENOENT if there is no such bitmap, EEXIST for a second one of that name, EINVAL for an invalid
/// name or granularity and for merged bitmaps of disks of different sizes, EFBIG for too many bits
/// or bitmaps, EBUSY for a bitmap that is marked in-use, EOPNOTSUPP for a format without bitmaps,
/// EUCLEAN for an image with errors, else those of [`crate::block::tools::check`].
///
/// qemu-img: `bitmap`.
pub fn change_bitmap(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    name: &str,
    change: &BitmapChange<'_>,
) -> Result<()> {
    let file = HostFile::open(path.as_ref(), false)?;
    require_qcow2(&file, format)?;
    qcow2::change_bitmap(&file, name, change).map_err(|error| at_file(error, &file))
}

/// Reads the bits of the dirty bitmap `name` of the image at `path`, for [`BitmapChange::Merge`].
///
/// # Errors
///
/// Those of [`change_bitmap`].
pub fn read_bitmap(
    path: impl AsRef<Path>,
    options: &OpenOptions,
    name: &str,
) -> Result<BitmapBits> {
    let file = &*open_for_facts(path.as_ref(), options.is_shared)?;
    require_qcow2(file, options.format)?;
    qcow2::read_bitmap(file, name).map_err(|error| at_file(error, file))
}

fn require_qcow2(file: &dyn ImageFile, format: Option<ImageFormat>) -> Result<()> {
    match format.map_or_else(|| detect(file), Ok)? {
        ImageFormat::Qcow2 => Ok(()),
        ImageFormat::Raw => Err(at_file(
            Error::unsupported("the raw format has no bitmaps"),
            file,
        )),
    }
}
