//! Replaces the backing file of an overlay.

use super::open::{self, open_file};
use super::zeros;
use crate::base::{AlignedBuffer, Errno, Error, Result};
use crate::block::file::{HostFile, ImageFile};
use crate::block::image::{BackingName, BackingPolicy, ImageFormat, OpenOptions, detect};
use crate::block::qcow2::{self, Qcow2Device};
use crate::block::{Allocation, Device};
use std::path::Path;
use std::sync::Arc;

/// Size of a read in bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// Options of [`rebase`], [`rename_backing`] and [`crate::block::tools::commit`].
pub struct OverlayOptions<'a> {
    /// The overlay's format; detected by its magic number if not given.
    pub format: Option<ImageFormat>,
    /// Which backing files are opened.
    pub policy: BackingPolicy,
    /// Called before each piece; if it returns true, the call fails with EINTR, and the overlay's
    /// content is unchanged.
    pub is_canceled: &'a dyn Fn() -> bool,
    /// Called after each piece with its size in bytes of the disk.
    pub progress: &'a dyn Fn(u64),
}

impl Default for OverlayOptions<'_> {
    fn default() -> Self {
        Self {
            format: None,
            policy: BackingPolicy::default(),
            is_canceled: &|| false,
            progress: &|_| {},
        }
    }
}

impl OverlayOptions<'_> {
    /// Returns the options to open the overlay with.
    pub(super) fn open_options(&self) -> OpenOptions {
        OpenOptions {
            format: self.format,
            backing: self.policy.clone(),
            ..OpenOptions::default()
        }
    }

    /// Fails with EINTR if the call is canceled.
    pub(super) fn check_canceled(&self) -> Result<()> {
        if (self.is_canceled)() {
            Err(Error::new(Errno::INTR, "canceled"))
        } else {
            Ok(())
        }
    }
}

/// Replaces the backing file of the image at `path`, or removes it. The image reads as before: data
/// in which the two chains differ is copied into the image first.
///
/// # Errors
///
/// EINVAL for a format without backing files and for a name that does not fit; EOPNOTSUPP with
/// internal snapshots, which would read from the new file; EINTR if the call was canceled; else
/// those of [`crate::block::open`].
///
/// qemu-img: `rebase`.
pub fn rebase(
    path: impl AsRef<Path>,
    backing: Option<&BackingName>,
    options: &OverlayOptions<'_>,
) -> Result<()> {
    let path = path.as_ref();
    let open_options = options.open_options();
    let (file, mut chain) = open_file(path, &open_options)?;
    reject_raw(&file, options)?;
    let mut overlay = Qcow2Device::open(Arc::new(file), path, &mut chain)?;
    overlay.check_rebase()?;
    let below = match backing {
        None => None,
        // A separate chain: it may share files with the old one, but not the overlay, which is
        // locked.
        Some(name) => Some(qcow2::open_backing(
            path,
            name,
            &mut open::chain(&open_options),
        )?),
    };
    overlay.expect_backing();
    let len_bytes = overlay.len_bytes();
    let mut bufs = [(); 2].map(|()| AlignedBuffer::new(PIECE_BYTES as usize));
    let mut at = 0;
    while at < len_bytes {
        options.check_canceled()?;
        let count = copy_difference(&overlay, below.as_ref(), at, &mut bufs)?;
        (options.progress)(count);
        at += count;
    }
    overlay.rebase_to(backing)
}

/// Copies some bytes at `at` into the overlay where the chains differ; returns how many were
/// compared.
fn copy_difference(
    overlay: &Qcow2Device,
    below: Option<&Arc<dyn Device>>,
    at: u64,
    bufs: &mut [AlignedBuffer; 2],
) -> Result<u64> {
    let (entry, mut count) = overlay.map_entry(at, overlay.len_bytes() - at)?;
    if entry.depth == 0 && entry.is_present {
        return Ok(count);
    }
    let left = below.map_or(0, |below| below.len_bytes().saturating_sub(at));
    let mut is_zero_below = true;
    if let (Some(below), 1..) = (below, left) {
        let (kind, more) = below.allocation(at, left.min(count))?;
        count = count.min(more);
        is_zero_below = kind != Allocation::Data;
    }
    if is_zero_below && entry.kind != Allocation::Data {
        return Ok(count);
    }
    let count = count.min(PIECE_BYTES);
    let [old, new] = bufs.each_mut().map(|buf| &mut buf[..count as usize]);
    overlay.read_at(old, at)?;
    let available = left.min(count) as usize;
    if let (Some(below), 1..) = (below, available) {
        below.read_at(&mut new[..available], at)?;
    }
    new[available..].fill(0);
    let cluster = overlay.cluster_bytes();
    let mut done = 0;
    while done < count {
        // Cluster by cluster, so that equal clusters are not allocated.
        let end = ((at + done) / cluster + 1) * cluster - at;
        let range = done as usize..end.min(count) as usize;
        let (old, new) = (&old[range.clone()], &new[range]);
        if old != new {
            if zeros::is_zero(old) {
                overlay.mask_backing(at + done, old.len() as u64)?;
            } else {
                overlay.write_at(old, at + done)?;
            }
        }
        done += old.len() as u64;
    }
    Ok(count)
}

/// Changes the name of the backing file of the image at `path` and nothing else: for a file that
/// was moved, or for a known change of content. No backing file is opened.
///
/// # Errors
///
/// Those of [`rebase`].
///
/// qemu-img: `rebase -u`.
pub fn rename_backing(
    path: impl AsRef<Path>,
    backing: Option<&BackingName>,
    options: &OverlayOptions<'_>,
) -> Result<()> {
    let (file, _) = open_file(path.as_ref(), &options.open_options())?;
    reject_raw(&file, options)?;
    qcow2::rename_backing(&file, backing).map_err(|error| error.at(file.name().to_owned()))
}

/// Records the version of the backing file that the overlay at `path` is written for, or none; the
/// next open for writing then records the version that it finds.
///
/// # Errors
///
/// Those of [`rebase`].
pub fn record_backing_version(path: impl AsRef<Path>, version: Option<&str>) -> Result<()> {
    let (file, _) = open_file(path.as_ref(), &OpenOptions::default())?;
    qcow2::record_version(&file, version).map_err(|error| error.at(file.name().to_owned()))
}

/// Rejects a format without backing files.
pub(super) fn reject_raw(file: &HostFile, options: &OverlayOptions<'_>) -> Result<()> {
    match options.format.map_or_else(|| detect(file), Ok)? {
        ImageFormat::Qcow2 => Ok(()),
        ImageFormat::Raw => Err(
            Error::new(Errno::INVAL, "the raw format has no backing files")
                .at(file.name().to_owned()),
        ),
    }
}
