//! Facts of an image, read from its own file alone.

use crate::base::{Error, ErrorKind, Result};
use crate::block::Allocation;
#[cfg(feature = "qcow2")]
use crate::block::file::resolve_remote;
use crate::block::file::{ImageFile, open_for_facts, remote};
use crate::block::image::{
    ForeignFormat, ForeignImage, ImageFormat, OpenOptions, Qcow2Info, detect, read_foreign,
};
#[cfg(feature = "qcow2")]
use crate::block::qcow2::{self, DirtyBitmap, Snapshot};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Facts of an image, as `qemu-img info` reports them.
#[derive(Debug, Clone)]
pub struct ImageInfo {
    /// Its format.
    pub format: ImageFormat,
    /// Size of the disk in bytes.
    pub len_bytes: u64,
    /// Space of the file on the host's disk, in bytes.
    pub allocated_bytes: u64,
    /// Properties of a qcow2 image.
    pub qcow2: Option<Qcow2Info>,
    /// Path of its backing file, which may not exist.
    pub backing_path: Option<PathBuf>,
    /// Its internal snapshots.
    #[cfg(feature = "qcow2")]
    pub snapshots: Vec<Snapshot>,
    /// Its persistent dirty bitmaps.
    #[cfg(feature = "qcow2")]
    pub bitmaps: Vec<DirtyBitmap>,
}

/// Reads the facts of the image at `path`. Backing files are named, not opened.
///
/// # Errors
///
/// Those of [`crate::block::open`].
///
/// qemu-img: `info`.
pub fn info(path: impl AsRef<Path>, options: &OpenOptions) -> Result<ImageInfo> {
    let path = path.as_ref();
    let file = open_for_facts(path, options.is_shared)?;
    let allocated_bytes = if remote(path).is_some() {
        stored_bytes(&*file)?
    } else {
        let found = std::fs::metadata(path);
        let found =
            found.map_err(|error| Error::io("stat", error).at(path.display().to_string()))?;
        found.blocks().saturating_mul(512)
    };
    let format = match options.format {
        Some(format) => format,
        None => detect(&*file)?,
    };
    if format == ImageFormat::Raw {
        let len_bytes = file.len_bytes()?;
        return Ok(ImageInfo {
            format,
            len_bytes,
            allocated_bytes,
            qcow2: None,
            backing_path: None,
            #[cfg(feature = "qcow2")]
            snapshots: Vec::new(),
            #[cfg(feature = "qcow2")]
            bitmaps: Vec::new(),
        });
    }
    #[cfg(not(feature = "qcow2"))]
    return Err(crate::block::image::without_qcow2(path));
    #[cfg(feature = "qcow2")]
    qcow2_info(path, &*file, allocated_bytes)
}

/// Returns the space of a remote file, of which only a disk has known holes.
fn stored_bytes(file: &dyn ImageFile) -> Result<u64> {
    let len_bytes = file.len_bytes()?;
    if !file.is_disk() {
        return Ok(len_bytes);
    }
    let (mut at, mut stored) = (0, 0);
    while at < len_bytes {
        let (kind, count) = file.allocation(at, len_bytes - at)?;
        if kind == Allocation::Data {
            stored += count;
        }
        at += count;
    }
    Ok(stored)
}

#[cfg(feature = "qcow2")]
fn qcow2_info(path: &Path, file: &dyn ImageFile, allocated_bytes: u64) -> Result<ImageInfo> {
    let at_image = |error: Error| error.at("qcow2").at(path.display().to_string());
    let qcow2 = qcow2::inspect(file).map_err(at_image)?;
    let backing_path = qcow2.backing_name.as_ref().map(|name| {
        // A name that is invalid is reported when it is opened.
        if let Some(Ok(url)) = resolve_remote(path, name) {
            return url;
        }
        let name = name.strip_prefix("file:").unwrap_or(name);
        path.parent().unwrap_or(Path::new("")).join(name)
    });
    Ok(ImageInfo {
        format: ImageFormat::Qcow2,
        len_bytes: qcow2.len_bytes,
        allocated_bytes,
        qcow2: Some(qcow2),
        backing_path,
        snapshots: qcow2::list_snapshots(file).map_err(at_image)?,
        bitmaps: qcow2::list_bitmaps(file).map_err(at_image)?,
    })
}

/// Reads the facts of the image at `path` if it has a format that Folio does not read; `None` for
/// other formats. `format` is detected if not given.
///
/// # Errors
///
/// EUCLEAN for a header that contradicts its format, EBUSY if another process's lock forbids it,
/// else the host's errors.
///
/// qemu-img: `info`.
pub fn foreign_image(
    path: impl AsRef<Path>,
    format: Option<ForeignFormat>,
    is_shared: bool,
) -> Result<Option<ForeignImage>> {
    let path = path.as_ref();
    let file = open_for_facts(path, is_shared)?;
    read_foreign(&*file, format).map_err(|error| match error.kind() {
        ErrorKind::Io => error,
        _ => error.at(path.display().to_string()),
    })
}
