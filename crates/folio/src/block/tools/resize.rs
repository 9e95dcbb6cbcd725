//! Resizes an image, whatever its format.

use super::open::open_file;
use crate::base::{Detail, Errno, Error, ErrorKind, Result};
use crate::block::file::{HostFile, ImageFile};
use crate::block::image::{BackingPolicy, ImageFormat, OpenOptions, Preallocation, detect};
#[cfg(feature = "qcow2")]
use crate::block::qcow2::{self, Qcow2Device};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
#[cfg(feature = "qcow2")]
use std::sync::Arc;

/// Options of [`resize`].
#[derive(Debug, Clone, Default)]
pub struct ResizeImage {
    /// The format; detected by its magic number if not given.
    pub format: Option<ImageFormat>,
    /// The image may become smaller: content behind the new end is lost (`qemu-img resize
    /// --shrink`).
    pub may_shrink: bool,
    /// How much of the new part is allocated.
    pub preallocation: Preallocation,
    /// Which backing files are opened: the content of one that is longer than the image must not
    /// appear behind the old end.
    pub backing: BackingPolicy,
}

/// Resizes the image at `path`, which no process has open, to `len_bytes` bytes, rounded up to a
/// multiple of 512. The new part reads as zeros.
///
/// # Errors
///
/// EINVAL for a smaller size unless `options` allow it, and for a block device; EOPNOTSUPP for a
/// qcow2 image of version 2 with snapshots, and for shrinking one with an external data file; EFBIG
/// for a size that its clusters cannot map; else those of [`crate::block::open`].
///
/// qemu-img: `resize`.
pub fn resize(path: impl AsRef<Path>, len_bytes: u64, options: &ResizeImage) -> Result<()> {
    let path = path.as_ref();
    let open = OpenOptions {
        backing: options.backing.clone(),
        ..OpenOptions::default()
    };
    let (file, chain) = open_file(path, &open)?;
    let name = file.name().to_owned();
    let at_image = |error: Error| match error.kind() {
        ErrorKind::Io => error,
        _ => error.within(name.clone()),
    };
    let format = options.format.map_or_else(|| detect(&file), Ok)?;
    let old_bytes = match format {
        ImageFormat::Raw => file.len_bytes()?,
        #[cfg(feature = "qcow2")]
        ImageFormat::Qcow2 => qcow2::disk_bytes(&file).map_err(at_image)?,
        #[cfg(not(feature = "qcow2"))]
        ImageFormat::Qcow2 => return Err(crate::block::image::without_qcow2(path)),
    };
    let len_bytes = new_size(old_bytes, len_bytes, options.may_shrink).map_err(at_image)?;
    match format {
        #[cfg(not(feature = "qcow2"))]
        ImageFormat::Qcow2 => {
            drop(chain);
            Err(crate::block::image::without_qcow2(path))
        }
        #[cfg(feature = "qcow2")]
        ImageFormat::Qcow2 => {
            let (file, mut chain) = (Arc::new(file), chain);
            let mut open = || Qcow2Device::open(file.clone(), path, &mut chain);
            qcow2::resize(&*file, len_bytes, options.preallocation, &mut open).map_err(at_image)
        }
        ImageFormat::Raw
            if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device()) =>
        {
            Err(at_image(Error::new(
                Errno::INVAL,
                "a block device cannot be resized",
            )))
        }
        ImageFormat::Raw => {
            resize_raw(&file, old_bytes, len_bytes, options.preallocation).map_err(at_image)
        }
    }
}

/// Returns the size in bytes that an image of `old_bytes` bytes gets: a multiple of 512.
///
/// # Errors
///
/// EFBIG for a size that has no multiple of 512; EINVAL for a smaller one, unless it may shrink.
pub(in crate::block) fn new_size(old_bytes: u64, len_bytes: u64, may_shrink: bool) -> Result<u64> {
    let len_bytes = len_bytes.checked_next_multiple_of(512).ok_or(Errno::FBIG)?;
    if len_bytes < old_bytes && !may_shrink {
        let why =
            "the image is larger already: shrinking would lose the content behind its new end";
        return Err(Error::new(Errno::INVAL, why).about(Detail::WouldShrink));
    }
    Ok(len_bytes)
}

/// Resizes a raw image.
pub(in crate::block) fn resize_raw(
    file: &HostFile,
    old_bytes: u64,
    len_bytes: u64,
    preallocation: Preallocation,
) -> Result<()> {
    if len_bytes < old_bytes && preallocation != Preallocation::Off {
        return Err(Preallocation::without_growth());
    }
    let new = len_bytes.saturating_sub(old_bytes);
    match preallocation {
        Preallocation::Metadata => {
            return Err(Error::new(
                Errno::INVAL,
                "the raw format has no metadata to preallocate",
            ));
        }
        Preallocation::Falloc => file.preallocate(old_bytes, new)?,
        Preallocation::Full => file.fill_with_zeros(old_bytes, new)?,
        Preallocation::Off => {}
    }
    file.set_len(len_bytes)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{create, open};

    #[test]
    fn image_grows_and_keeps_its_content() {
        let folder = tempfile::TempDir::new().unwrap();
        for format in ImageFormat::ALL {
            let path = folder.path().join(format.name());
            let device = create(&path, format, 1 << 20).unwrap();
            device.write_at(b"kept", (1 << 20) - 4).unwrap();
            drop(device);
            // Beyond the end of the first L1 entry, which is at 512 MiB.
            for len_bytes in [(1 << 20) + 1, 3 << 30, 1 << 40] {
                resize(&path, len_bytes, &ResizeImage::default()).unwrap();
                let device = open(&path, &OpenOptions::default()).unwrap();
                assert_eq!(device.len_bytes(), len_bytes.next_multiple_of(512));
                let mut bytes = [1; 8];
                device.read_at(&mut bytes, (1 << 20) - 4).unwrap();
                assert_eq!(&bytes, b"kept\0\0\0\0");
                device.write_at(b"end", device.len_bytes() - 3).unwrap();
                device.write_zeroes(device.len_bytes() - 3, 3).unwrap();
                let busy = resize(&path, len_bytes * 2, &ResizeImage::default()).unwrap_err();
                assert_eq!(busy.errno(), Errno::BUSY);
            }
            let smaller = resize(&path, 1 << 20, &ResizeImage::default()).unwrap_err();
            assert_eq!(smaller.errno(), Errno::INVAL);
        }
        // The first L1 table maps 4 TiB.
        resize(
            folder.path().join("qcow2"),
            1 << 43,
            &ResizeImage::default(),
        )
        .unwrap();
        let error = resize(
            folder.path().join("qcow2"),
            1 << 60,
            &ResizeImage::default(),
        )
        .unwrap_err();
        assert_eq!(error.errno(), Errno::FBIG);
    }
}
