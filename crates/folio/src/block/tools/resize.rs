//! An image of another size, whatever its format.

use super::open::open_file;
use crate::base::{Errno, Error, ErrorKind, Result};
use crate::block::file::{HostFile, ImageFile};
use crate::block::image::{BackingPolicy, ImageFormat, OpenOptions, Preallocation, detect};
use crate::block::qcow2;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// How an image gets another size.
#[derive(Debug, Clone, Default)]
pub struct ResizeImage {
    /// The format; found by its magic number if not given.
    pub format: Option<ImageFormat>,
    /// It may become smaller: what lies behind the new end is lost.
    pub may_shrink: bool,
    /// How much of the new part is allocated at once.
    pub preallocation: Preallocation,
    /// Which backing files are opened: one that is longer than the image must not show behind its
    /// old end.
    pub backing: BackingPolicy,
}

/// Makes the image at `path`, which nobody may have open, `len_bytes` long; what is new reads as
/// zeros. A size that is no multiple of 512 is rounded up.
///
/// Errors: EINVAL for less than it has unless `options` allow it, and for a block device;
/// EOPNOTSUPP for what stands in the way of another size in a qcow2 image (snapshots of version 2,
/// an external data file for less); EFBIG for more than its clusters can map; else those of
/// [`super::open`].
pub fn resize(path: impl AsRef<Path>, len_bytes: u64, options: &ResizeImage) -> Result<()> {
    let path = path.as_ref();
    let open = OpenOptions {
        backing: options.backing.clone(),
        ..OpenOptions::default()
    };
    let (file, mut chain) = open_file(path, &open)?;
    let name = file.name().to_owned();
    let place = |error: Error| match error.kind() {
        ErrorKind::Io => error,
        _ if error.to_string().starts_with(&name) => error,
        _ => error.at(name.clone()),
    };
    let Some(len_bytes) = len_bytes.checked_next_multiple_of(512) else {
        return Err(place(Errno::FBIG.into()));
    };
    let format = options.format.map_or_else(|| detect(&file), Ok)?;
    let old_bytes = match format {
        ImageFormat::Raw => file.len_bytes()?,
        ImageFormat::Qcow2 => qcow2::disk_bytes(&file).map_err(place)?,
    };
    if len_bytes < old_bytes && !options.may_shrink {
        let why = "the image is larger already; what lies behind its new end would be lost";
        return Err(place(Error::new(Errno::INVAL, why)));
    }
    match format {
        ImageFormat::Qcow2 => {
            qcow2::resize(file, path, &mut chain, len_bytes, options.preallocation).map_err(place)
        }
        ImageFormat::Raw
            if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device()) =>
        {
            Err(place(Error::new(
                Errno::INVAL,
                "a block device cannot get another size from here",
            )))
        }
        ImageFormat::Raw => {
            resize_raw(&file, old_bytes, len_bytes, options.preallocation).map_err(place)
        }
    }
}

fn resize_raw(
    file: &HostFile,
    old_bytes: u64,
    len_bytes: u64,
    preallocation: Preallocation,
) -> Result<()> {
    let new = len_bytes.saturating_sub(old_bytes);
    match preallocation {
        Preallocation::Metadata => {
            return Err(Error::new(
                Errno::INVAL,
                "a raw image has no metadata to allocate",
            ));
        }
        Preallocation::Falloc if !file.reserve(old_bytes, new)? => {
            return Err(Error::unsupported("the host cannot reserve space here"));
        }
        Preallocation::Full => file.fill_with_zeros(old_bytes, new)?,
        Preallocation::Off | Preallocation::Falloc => {}
    }
    file.set_len(len_bytes)?;
    file.sync_data()
}
