//! Creates image files, whatever their format.

use crate::base::{Errno, Error, Result};
use crate::block::file::{HostFile, ImageFile};
use crate::block::image::{CreateOptions, ImageFormat, Preallocation};
#[cfg(feature = "qcow2")]
use crate::block::qcow2::{self, OldDataFile, Qcow2Device};
use crate::block::{Device, RawDevice};
use std::path::Path;
use std::sync::Arc;

/// The size of an image is a multiple of this many bytes.
const SECTOR_BYTES: u64 = 512;

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
    let len_bytes = whole_sectors(path, len_bytes)?;
    match format {
        ImageFormat::Raw => {
            check_raw(path, options)?;
            create_raw(path, len_bytes, options.preallocation)
        }
        #[cfg(feature = "qcow2")]
        ImageFormat::Qcow2 => qcow2::create(path, len_bytes, options, OldDataFile::Refuse),
        #[cfg(not(feature = "qcow2"))]
        ImageFormat::Qcow2 => Err(crate::block::image::without_qcow2(path)),
    }
}

/// Creates an image in an open file or block device, whose content is lost, as [`create_with`]
/// does. On a block device a raw image keeps what the device holds, except for the first bytes,
/// which could be those of another format.
///
/// # Errors
///
/// Those of [`create_with`]; ENOSPC for a block device that is too small.
pub(super) fn create_in(
    file: HostFile,
    path: &Path,
    format: ImageFormat,
    len_bytes: u64,
    options: &CreateOptions,
) -> Result<()> {
    let len_bytes = whole_sectors(path, len_bytes)?;
    match format {
        ImageFormat::Raw => {
            check_raw(path, options)?;
            if file.is_block_device() {
                file.set_len(len_bytes)?;
                file.write_zeroes(0, file.len_bytes()?.min(SECTOR_BYTES))?;
            } else {
                file.set_len(0)?;
            }
            fill_raw(&file, len_bytes, options.preallocation)
        }
        #[cfg(feature = "qcow2")]
        ImageFormat::Qcow2 => {
            qcow2::create_in(file, path, len_bytes, options, OldDataFile::Replace)
        }
        #[cfg(not(feature = "qcow2"))]
        ImageFormat::Qcow2 => Err(crate::block::image::without_qcow2(path)),
    }
}

fn whole_sectors(path: &Path, len_bytes: u64) -> Result<u64> {
    len_bytes
        .checked_next_multiple_of(SECTOR_BYTES)
        .ok_or_else(|| Error::from(Errno::FBIG).at(path.display().to_string()))
}

fn check_raw(path: &Path, options: &CreateOptions) -> Result<()> {
    let why = if options.backing.is_some() {
        "the raw format has no backing files"
    } else if options.preallocation == Preallocation::Metadata {
        "the raw format has no metadata to preallocate"
    } else {
        return Ok(());
    };
    Err(Error::new(Errno::INVAL, why).at(path.display().to_string()))
}

fn create_raw(path: &Path, len_bytes: u64, preallocation: Preallocation) -> Result<()> {
    let created = fill_raw(&HostFile::create(path)?, len_bytes, preallocation);
    if created.is_err() {
        // This call created the file, so its removal loses nothing.
        let _ = std::fs::remove_file(path);
    }
    created
}

fn fill_raw(file: &HostFile, len_bytes: u64, preallocation: Preallocation) -> Result<()> {
    file.set_len(len_bytes)?;
    match preallocation {
        Preallocation::Falloc => file.preallocate(0, len_bytes),
        Preallocation::Full => file.fill_with_zeros(0, len_bytes),
        Preallocation::Off | Preallocation::Metadata => Ok(()),
    }
}
