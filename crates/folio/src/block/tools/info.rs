//! What an image says of itself, without opening more than its own file.

use crate::base::{Error, Result};
use crate::block::file::{HostFile, ImageFile};
use crate::block::image::{ImageFormat, OpenOptions, Qcow2Info, detect};
use crate::block::qcow2;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What is known of an image.
#[derive(Debug, Clone)]
pub struct ImageInfo {
    /// Its format.
    pub format: ImageFormat,
    /// Size of the disk.
    pub len_bytes: u64,
    /// What the file takes of the host's disk.
    pub allocated_bytes: u64,
    /// What only qcow2 images have.
    pub qcow2: Option<Qcow2Info>,
    /// Where its backing file should be.
    pub backing_path: Option<PathBuf>,
}

/// Reads what the image at `path` says of itself. Backing files are named, not opened.
///
/// Errors: as [`super::open`].
pub fn info(path: impl AsRef<Path>, options: &OpenOptions) -> Result<ImageInfo> {
    let path = path.as_ref();
    let file = match options.is_shared {
        true => HostFile::open_unlocked(path)?,
        false => HostFile::open(path, true)?,
    };
    let found = std::fs::metadata(path);
    let found = found.map_err(|error| Error::io("stat", error).at(path.display().to_string()))?;
    let allocated_bytes = found.blocks().saturating_mul(512);
    let format = match options.format {
        Some(format) => format,
        None => detect(&file)?,
    };
    if format == ImageFormat::Raw {
        let len_bytes = file.len_bytes()?;
        return Ok(ImageInfo {
            format,
            len_bytes,
            allocated_bytes,
            qcow2: None,
            backing_path: None,
        });
    }
    let place = |error: Error| error.at("qcow2").at(path.display().to_string());
    let qcow2 = qcow2::inspect(&file).map_err(place)?;
    let backing_path = qcow2.backing_name.as_ref().map(|name| {
        let name = name.strip_prefix("file:").unwrap_or(name);
        path.parent().unwrap_or(Path::new("")).join(name)
    });
    Ok(ImageInfo {
        format,
        len_bytes: qcow2.len_bytes,
        allocated_bytes,
        qcow2: Some(qcow2),
        backing_path,
    })
}
