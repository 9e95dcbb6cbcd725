//! The size of a new image file, before it is created.

use crate::base::{Errno, Error, Result};
#[cfg(feature = "qcow2")]
use crate::block::Allocation;
use crate::block::Device;
#[cfg(feature = "qcow2")]
use crate::block::image::Preallocation;
use crate::block::image::{CreateOptions, ImageFormat};
#[cfg(feature = "qcow2")]
use crate::block::qcow2::{self, DirtyBitmap};

/// The size of a file that does not exist yet, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// With the content as it is.
    pub required_bytes: u64,
    /// After every byte of the disk was written.
    pub fully_allocated_bytes: u64,
}

/// The content of an image to measure.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum MeasuredContent<'a> {
    /// A disk of this many bytes that reads as zeros.
    Empty(u64),
    /// The disk of another image.
    CopyOf(&'a dyn Device),
}

impl MeasuredContent<'_> {
    fn len_bytes(&self) -> u64 {
        match self {
            Self::Empty(len_bytes) => *len_bytes,
            Self::CopyOf(device) => device.len_bytes(),
        }
    }

    /// Returns the size in bytes of the clusters that store data.
    #[cfg(feature = "qcow2")]
    fn data_bytes(&self, cluster_bytes: u64) -> Result<u64> {
        let Self::CopyOf(device) = self else {
            return Ok(0);
        };
        let (mut data, mut at) = (0, 0);
        while at < device.len_bytes() {
            let left = device.len_bytes() - at;
            let (entry, count) = device.map_entry(at, left)?;
            let mut end = at + count.clamp(1, left);
            if entry.kind == Allocation::Data && !entry.is_zero {
                end = end.next_multiple_of(cluster_bytes);
                data += end - at / cluster_bytes * cluster_bytes;
            }
            at = end;
        }
        Ok(data)
    }
}

/// Returns the sizes of the file of a new image with this content. The sizes of a copy over a
/// backing file assume that the backing file has none of the content.
///
/// # Errors
///
/// EINVAL for options that contradict each other, EFBIG for a size that the format cannot store,
/// else the device's errors.
///
/// qemu-img: `measure`.
pub fn measure(
    content: MeasuredContent<'_>,
    format: ImageFormat,
    options: &CreateOptions,
) -> Result<Measurement> {
    let len_bytes = content.len_bytes().checked_next_multiple_of(512);
    let len_bytes = len_bytes.ok_or_else(|| Error::from(Errno::FBIG))?;
    match format {
        ImageFormat::Raw => Ok(Measurement {
            required_bytes: len_bytes,
            fully_allocated_bytes: len_bytes,
        }),
        #[cfg(not(feature = "qcow2"))]
        ImageFormat::Qcow2 => {
            let _ = options;
            Err(crate::block::image::without_qcow2("".as_ref()))
        }
        #[cfg(feature = "qcow2")]
        ImageFormat::Qcow2 => {
            let full = qcow2::full_file_bytes(len_bytes, options)?;
            let cluster = u64::from(options.cluster_bytes);
            let disk = len_bytes.next_multiple_of(cluster);
            let is_copy = matches!(content, MeasuredContent::CopyOf(_));
            let data = match options.preallocation {
                Preallocation::Falloc | Preallocation::Full => disk,
                _ if is_copy && options.backing.is_some() => disk,
                _ => content.data_bytes(cluster)?,
            };
            Ok(Measurement {
                required_bytes: full - disk + data,
                fully_allocated_bytes: full,
            })
        }
    }
}

/// Returns the space in bytes that bitmaps of a disk of `len_bytes` bytes take in a new image with
/// clusters of `cluster_bytes` bytes.
#[cfg(feature = "qcow2")]
pub fn measure_bitmaps(bitmaps: &[DirtyBitmap], len_bytes: u64, cluster_bytes: u64) -> u64 {
    qcow2::bitmaps_bytes(bitmaps, len_bytes, cluster_bytes)
}
