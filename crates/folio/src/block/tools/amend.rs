//! Changes options of an image that no process has open.

use super::check::at_file;
use super::resize::{ResizeImage, resize};
use crate::base::{Error, Result};
use crate::block::file::HostFile;
use crate::block::image::{BackingPolicy, Compat, ImageFormat, detect};
use crate::block::qcow2::{self, AmendOptions};
use std::path::Path;

/// Changes options of the image at `path`, and the size of its disk if one is given. Contradicting
/// options are rejected before the first change. `policy` decides about files that the image names.
///
/// # Errors
///
/// EINVAL with the option at fault, EFBIG for refcounts that do not fit, EOPNOTSUPP for a format
/// without options, EUCLEAN for an image with errors, else those of [`super::resize()`].
///
/// qemu-img: `amend`.
pub fn amend(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    options: &AmendOptions,
    len_bytes: Option<u64>,
    policy: &BackingPolicy,
) -> Result<()> {
    let path = path.as_ref();
    let file = HostFile::open(path, false)?;
    if format.map_or_else(|| detect(&file), Ok)? == ImageFormat::Raw {
        let why = "the raw format has no options to change";
        return Err(at_file(Error::unsupported(why), &file));
    }
    qcow2::check_amend(&file, options)
        .and_then(|()| qcow2::amend(&file, options))
        .map_err(|error| at_file(error, &file))?;
    if let Some(len_bytes) = len_bytes {
        drop(file);
        let options = ResizeImage {
            format: Some(ImageFormat::Qcow2),
            may_shrink: true,
            backing: policy.clone(),
            ..ResizeImage::default()
        };
        resize(path, len_bytes, &options)?;
    } else {
        drop(file);
    }
    if options.compat != Some(Compat::V0_10) {
        return Ok(());
    }
    let file = HostFile::open(path, false)?;
    if qcow2::inspect(&file)?.compat != Compat::V0_10 {
        qcow2::expand_zeros(file, path)?;
        let file = HostFile::open(path, false)?;
        qcow2::downgrade(&file).map_err(|error| at_file(error, &file))?;
    }
    Ok(())
}
