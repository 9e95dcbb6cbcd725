//! Writes the content of overlays into a backing file below them.

use super::open::{self, open_file};
use super::rebase::{OverlayOptions, record_backing_version, reject_raw};
use super::resize::{ResizeImage, resize};
use super::throttle::Throttle;
use crate::base::{AlignedBuffer, Errno, Error, Result};
use crate::block::image::{BackingPolicy, Chain, ImageFormat, OpenOptions, detect};
use crate::block::qcow2::{self, Qcow2Device};
use crate::block::{Allocation, Device};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Size of a read in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// The content of an overlay after [`commit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AfterCommit {
    /// Emptied: every cluster is released.
    #[default]
    Empty,
    /// Kept (`qemu-img commit -d`).
    Keep,
}

/// What [`commit`] writes, and where to.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CommitOptions {
    /// The content of the overlay afterwards. With `base` it is kept in any case.
    pub then: AfterCommit,
    /// The image of the chain to write to; the overlay's own backing file if not given. The images
    /// between the two are committed too, and read different content afterwards.
    pub base: Option<PathBuf>,
    /// Largest number of bytes of data to write in a second; 0 for any.
    pub bytes_per_sec: u64,
}

/// Writes the content of the image at `path` into its backing file, or into one further below,
/// which grows to the image's size if it is smaller.
///
/// Other overlays on that file read different content afterwards. A power cut at any moment leaves
/// the overlay complete, or empty over a backing file that holds its content durably.
///
/// # Errors
///
/// EINVAL for an image without a backing file; ENOENT if `base` is not below it; EINTR if the call
/// was canceled, when the backing file holds a part of the content and the overlay all of it; else
/// those of [`crate::block::open`].
///
/// qemu-img: `commit`.
pub fn commit(
    path: impl AsRef<Path>,
    what: &CommitOptions,
    options: &OverlayOptions<'_>,
) -> Result<()> {
    let path = path.as_ref();
    let mut layers = Layers::open(path, what.base.as_deref(), options)?;
    let len_bytes = layers.overlays.first().map_or(0, Device::len_bytes);
    layers.grow_base(len_bytes, &options.policy)?;
    let base = layers
        .chain
        .open_image(&layers.base, false, layers.base_format)
        .map_err(|error| error.at("backing file"))?;
    let throttle = Throttle::new(what.bytes_per_sec);
    let mut buf = AlignedBuffer::new(PIECE_BYTES as usize);
    let mut at = 0;
    while at < len_bytes {
        options.check_canceled()?;
        let (source, mut count) = layers.source(at, len_bytes - at)?;
        match source {
            LayerContent::Data(overlay) => {
                count = count.min(PIECE_BYTES);
                let piece = &mut buf[..count as usize];
                overlay.read_at(piece, at)?;
                throttle.wait(count, &|| (options.is_canceled)());
                base.write_at(piece, at)?;
            }
            LayerContent::Zeros => base.write_zeroes(at, count)?,
            LayerContent::Below => {}
        }
        (options.progress)(count);
        at += count;
    }
    base.flush()?;
    if matches!((what.then, &what.base), (AfterCommit::Empty, None)) {
        layers.overlays[0].make_empty()?;
    }
    if layers.base_version.is_some() && layers.overlays.len() == 1 {
        // The overlay fits the base's new version too.
        drop(layers);
        record_backing_version(path, None)?;
    }
    Ok(())
}

/// The images from the top one down to the base.
struct Layers {
    chain: Chain,
    /// Those above the base, each without its backing file; at least one.
    overlays: Vec<Qcow2Device>,
    base: PathBuf,
    base_format: Option<ImageFormat>,
    /// The version of the base for which the overlay above it was written, if it is recorded.
    base_version: Option<String>,
}

/// The content of some bytes of all overlays together.
enum LayerContent<'a> {
    Data(&'a Qcow2Device),
    Zeros,
    /// The base has the content.
    Below,
}

impl Layers {
    fn open(path: &Path, base: Option<&Path>, options: &OverlayOptions<'_>) -> Result<Self> {
        let (file, mut chain) = open_file(path, &options.open_options())?;
        reject_raw(&file, options)?;
        let wanted = base.map(|base| Identity::of_base(path, base)).transpose()?;
        let (mut file, mut path) = (file, path.to_owned());
        let mut overlays = Vec::new();
        loop {
            let at_image = |error: Error| error.at(path.display().to_string());
            let Some((name, format)) = qcow2::backing_of(&file).map_err(at_image)? else {
                let why = match base {
                    Some(base) if !overlays.is_empty() => {
                        let base = base.display();
                        Error::new(Errno::NOENT, format!("no backing file {base} in the chain"))
                    }
                    _ => Error::new(Errno::INVAL, "the image has no backing file"),
                };
                return Err(at_image(why));
            };
            let below = qcow2::backing_path(&path, &name, &chain).map_err(at_image)?;
            let base_version = qcow2::backing_version_of(&file).map_err(at_image)?;
            overlays.push(Qcow2Device::open_alone(Arc::new(file), &path, &mut chain)?);
            let is_base = match wanted {
                None => true,
                Some(wanted) => Identity::of(&below)? == wanted,
            };
            if is_base {
                return Ok(Self {
                    chain,
                    overlays,
                    base: below,
                    base_format: format,
                    base_version,
                });
            }
            let below_file = chain.open_file(&below, true)?;
            let found = format.map_or_else(|| detect(&below_file), Ok)?;
            if found == ImageFormat::Raw {
                let base = base.unwrap_or(Path::new("")).display();
                let why = format!("no backing file {base} in the chain");
                return Err(Error::new(Errno::NOENT, why).at(below.display().to_string()));
            }
            (file, path) = (below_file, below);
        }
    }

    /// Makes the base at least as large as the overlay.
    fn grow_base(&self, len_bytes: u64, policy: &BackingPolicy) -> Result<()> {
        let small = OpenOptions {
            read_only: true,
            format: self.base_format,
            backing: policy.clone(),
            ..OpenOptions::default()
        };
        let base = open::open(&self.base, &small)?;
        qcow2::check_version(self.base_version.as_deref(), &*base)?;
        let base_bytes = base.len_bytes();
        // Its lock excludes the writers below.
        drop(base);
        if base_bytes >= len_bytes {
            return Ok(());
        }
        let larger = ResizeImage {
            format: self.base_format,
            backing: policy.clone(),
            ..ResizeImage::default()
        };
        resize(&self.base, len_bytes, &larger)
    }

    /// Returns the content at `offset`, and the number of bytes that it holds for.
    fn source(&self, offset: u64, len_bytes: u64) -> Result<(LayerContent<'_>, u64)> {
        let mut count = len_bytes;
        for overlay in &self.overlays {
            let left = overlay.len_bytes().saturating_sub(offset);
            if left == 0 {
                // A short image reads as zeros behind its end, whatever is below.
                return Ok((LayerContent::Zeros, count));
            }
            let (entry, more) = overlay.map_entry(offset, count.min(left))?;
            count = count.min(more);
            match entry.kind {
                _ if !entry.is_present => {}
                Allocation::Data => return Ok((LayerContent::Data(overlay), count)),
                _ => return Ok((LayerContent::Zeros, count)),
            }
        }
        Ok((LayerContent::Below, count))
    }
}

/// Device and inode number of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    fn of(path: &Path) -> Result<Self> {
        let found = std::fs::metadata(path)
            .map_err(|error| Error::io("stat", error).at(path.display().to_string()))?;
        Ok(Self(found.dev(), found.ino()))
    }

    /// Finds a base by its name, which is relative to the working folder or to the image's.
    fn of_base(image: &Path, base: &Path) -> Result<Self> {
        Self::of(base).or_else(|error| {
            let folder = image.parent().unwrap_or(Path::new(""));
            Self::of(&folder.join(base)).map_err(|_| error)
        })
    }
}
