//! Creates image files, whatever their format.

use crate::base::{Errno, Error, Result};
use crate::block::file::{HostFile, ImageFile};
use crate::block::image::{CreateOptions, ImageFormat, Preallocation};
#[cfg(feature = "qcow2")]
use crate::block::qcow2::{self, Qcow2Device};
use crate::block::{Device, RawDevice};
use std::path::Path;
use std::sync::Arc;

/// Creates an image of `len_bytes` bytes that reads as zeros, and opens it for writing.
///
/// # Errors
///
/// EEXIST if the file exists, else those of [`create_with`] and [`super::open`].
pub fn create(
    path: impl AsRef<Path>,
    format: ImageFormat,
    len_bytes: u64,
) -> Result<Arc<dyn Device>> {
    match format {
        ImageFormat::Raw => Ok(Arc::new(RawDevice::create(path, len_bytes)?)),
        #[cfg(not(feature = "qcow2"))]
        ImageFormat::Qcow2 => Err(crate::block::image::without_qcow2(path.as_ref())),
        #[cfg(feature = "qcow2")]
        ImageFormat::Qcow2 => Ok(Arc::new(Qcow2Device::create(
            path,
            len_bytes,
            &CreateOptions::default(),
        )?)),
    }
}

/// Creates an image of `len_bytes` bytes, rounded up to a multiple of 512. It reads as zeros, or as
/// its backing file, which is not opened. If the creation fails, the file is removed.
///
/// # Errors
///
/// EEXIST if the file exists, EINVAL for options that the format lacks or that contradict each
/// other, EFBIG for a size that the format cannot store, else the host's errors.
///
/// qemu-img: `create`.
pub fn create_with(
    path: impl AsRef<Path>,
    format: ImageFormat,
    len_bytes: u64,
    options: &CreateOptions,
) -> Result<()> {
    let path = path.as_ref();
    let at_path = |error: Error| error.at(path.display().to_string());
    let Some(len_bytes) = len_bytes.checked_next_multiple_of(512) else {
        return Err(at_path(Errno::FBIG.into()));
    };
    match format {
        ImageFormat::Raw => {
            check_raw(options).map_err(at_path)?;
            create_raw(path, len_bytes, options.preallocation)
        }
        #[cfg(feature = "qcow2")]
        ImageFormat::Qcow2 => qcow2::create(path, len_bytes, options),
        #[cfg(not(feature = "qcow2"))]
        ImageFormat::Qcow2 => Err(crate::block::image::without_qcow2(path)),
    }
}

fn check_raw(options: &CreateOptions) -> Result<()> {
    if options.backing.is_some() {
        return Err(Error::new(
            Errno::INVAL,
            "the raw format has no backing files",
        ));
    }
    if options.preallocation == Preallocation::Metadata {
        return Err(Error::new(
            Errno::INVAL,
            "the raw format has no metadata to preallocate",
        ));
    }
    Ok(())
}

fn create_raw(path: &Path, len_bytes: u64, preallocation: Preallocation) -> Result<()> {
    let file = HostFile::create(path)?;
    let created = file.set_len(len_bytes).and_then(|()| match preallocation {
        Preallocation::Falloc if !file.reserve(0, len_bytes)? => {
            Err(Error::unsupported("the host cannot reserve space here"))
        }
        Preallocation::Full => file.fill_with_zeros(0, len_bytes),
        Preallocation::Off | Preallocation::Metadata | Preallocation::Falloc => Ok(()),
    });
    if created.is_err() {
        // This call created the file, so its removal loses nothing.
        let _ = std::fs::remove_file(path);
    }
    created
}
