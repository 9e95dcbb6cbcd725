//! Overlays: another backing file under one, and one's content into its backing file.

use super::open::{self, open_file};
use super::resize::{ResizeImage, resize};
use super::zeros;
use crate::base::{Errno, Error, Result};
use crate::block::file::{HostFile, ImageFile};
use crate::block::image::{BackingName, BackingPolicy, ImageFormat, OpenOptions, detect};
use crate::block::qcow2::{self, Qcow2Device};
use crate::block::{Allocation, Device};
use std::path::Path;
use std::sync::Arc;

/// Most bytes read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// How an overlay gets another backing file, or gives what it holds to the one it has.
pub struct OverlayOptions<'a> {
    /// The overlay's format; found by its magic number if not given.
    pub format: Option<ImageFormat>,
    /// Which backing files are opened.
    pub policy: BackingPolicy,
    /// Asked before each piece; the work then ends with EINTR, and the overlay still has all that
    /// it had.
    pub is_cancelled: &'a dyn Fn() -> bool,
    /// Told after each piece how many bytes of the disk it was.
    pub progress: &'a dyn Fn(u64),
}

impl Default for OverlayOptions<'_> {
    fn default() -> Self {
        Self {
            format: None,
            policy: BackingPolicy::default(),
            is_cancelled: &|| false,
            progress: &|_| {},
        }
    }
}

impl OverlayOptions<'_> {
    fn open_options(&self) -> OpenOptions {
        OpenOptions {
            format: self.format,
            backing: self.policy.clone(),
            ..OpenOptions::default()
        }
    }

    fn check_cancelled(&self) -> Result<()> {
        if (self.is_cancelled)() {
            Err(Error::new(Errno::INTR, "cancelled"))
        } else {
            Ok(())
        }
    }
}

/// Puts another backing file, or none, under the image at `path`, which reads as before: what the
/// two chains do not have in common is copied into the image first.
///
/// Errors: EINVAL for a format without backing files and for names that do not fit; EOPNOTSUPP with
/// internal snapshots, which would see the new file; EINTR if it was cancelled; else those of
/// [`super::open`].
pub fn rebase(
    path: impl AsRef<Path>,
    backing: Option<&BackingName>,
    options: &OverlayOptions<'_>,
) -> Result<()> {
    let path = path.as_ref();
    let open_options = options.open_options();
    let (file, mut chain) = open_file(path, &open_options)?;
    refuse_raw(&file, options)?;
    let mut overlay = Qcow2Device::open(Box::new(file), path, &mut chain)?;
    overlay.check_rebase()?;
    let below = match backing {
        None => None,
        // A chain of its own: it may have files in common with the old one, but not the overlay,
        // which is locked.
        Some(name) => Some(qcow2::open_backing(
            path,
            name,
            &mut open::chain(&open_options),
        )?),
    };
    overlay.expect_backing();
    let len_bytes = overlay.len_bytes();
    let mut at = 0;
    while at < len_bytes {
        options.check_cancelled()?;
        let count = next_difference(&overlay, below.as_ref(), at)?;
        (options.progress)(count);
        at += count;
    }
    overlay.rebase_to(backing)
}

/// Deals with some bytes at `at`, and says how many.
fn next_difference(overlay: &Qcow2Device, below: Option<&Arc<dyn Device>>, at: u64) -> Result<u64> {
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
    let mut old = vec![0; count as usize];
    overlay.read_at(&mut old, at)?;
    let mut new = vec![0; count as usize];
    if let (Some(below), 1..) = (below, left) {
        let there = left.min(count) as usize;
        below.read_at(&mut new[..there], at)?;
    }
    let cluster = overlay.cluster_bytes();
    let mut done = 0;
    while done < count {
        // Cluster by cluster, so that none is allocated for what is the same.
        let end = ((at + done) / cluster + 1) * cluster - at;
        let range = done as usize..end.min(count) as usize;
        let (old, new) = (&old[range.clone()], &new[range]);
        match old == new {
            true => {}
            false if zeros::is_zero(old) => overlay.mask_backing(at + done, old.len() as u64)?,
            false => overlay.write_at(old, at + done)?,
        }
        done += old.len() as u64;
    }
    Ok(count)
}

/// Changes the name of the backing file of the image at `path` and nothing else: right if the file
/// was moved, or if what reads differently then is known. No backing file is opened.
///
/// Errors: those of [`rebase`].
pub fn rename_backing(
    path: impl AsRef<Path>,
    backing: Option<&BackingName>,
    options: &OverlayOptions<'_>,
) -> Result<()> {
    let (file, _) = open_file(path.as_ref(), &options.open_options())?;
    refuse_raw(&file, options)?;
    qcow2::rename_backing(&file, backing).map_err(|error| error.at(file.name().to_owned()))
}

/// What becomes of an overlay when its backing file has got all that it held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterCommit {
    /// It holds nothing any more.
    #[default]
    Empty,
    /// It stays as it is.
    Keep,
}

/// Writes what the image at `path` holds into its backing file, which is made as large if it is
/// smaller.
///
/// Whoever else stands on that backing file reads something else then. A cut at any moment leaves
/// the overlay with all that it had, or empty over a backing file that has it durably.
///
/// Errors: EINVAL for an image without a backing file; EINTR if it was cancelled: then the backing
/// file holds a part, and the overlay all; else those of [`super::open`].
pub fn commit(
    path: impl AsRef<Path>,
    then: AfterCommit,
    options: &OverlayOptions<'_>,
) -> Result<()> {
    let path = path.as_ref();
    let (file, mut chain) = open_file(path, &options.open_options())?;
    refuse_raw(&file, options)?;
    let name = file.name().to_owned();
    let place = |error: Error| error.at(name.clone());
    let Some((backing, format)) = qcow2::backing_of(&file).map_err(place)? else {
        return Err(place(Error::new(
            Errno::INVAL,
            "the image has no backing file",
        )));
    };
    let backing_path = qcow2::backing_path(path, &backing, &chain).map_err(place)?;
    let mut overlay = Qcow2Device::open_alone(Box::new(file), path, &mut chain)?;
    let len_bytes = overlay.len_bytes();
    let small = OpenOptions {
        read_only: true,
        format,
        backing: options.policy.clone(),
        ..OpenOptions::default()
    };
    if open::open(&backing_path, &small)?.len_bytes() < len_bytes {
        let larger = ResizeImage {
            format,
            backing: options.policy.clone(),
            ..ResizeImage::default()
        };
        resize(&backing_path, len_bytes, &larger)?;
    }
    let base = chain
        .open_image(&backing_path, false, format)
        .map_err(|error| error.at("backing file"))?;
    let mut buf = vec![0; PIECE_BYTES as usize];
    let mut at = 0;
    while at < len_bytes {
        options.check_cancelled()?;
        let (entry, mut count) = overlay.map_entry(at, len_bytes - at)?;
        if entry.is_present && entry.kind == Allocation::Data {
            count = count.min(PIECE_BYTES);
            let piece = &mut buf[..count as usize];
            overlay.read_at(piece, at)?;
            base.write_at(piece, at)?;
        } else if entry.is_present {
            base.write_zeroes(at, count)?;
        }
        (options.progress)(count);
        at += count;
    }
    base.flush()?;
    match then {
        AfterCommit::Empty => overlay.make_empty(),
        AfterCommit::Keep => Ok(()),
    }
}

fn refuse_raw(file: &HostFile, options: &OverlayOptions<'_>) -> Result<()> {
    match options.format.map_or_else(|| detect(file), Ok)? {
        ImageFormat::Qcow2 => Ok(()),
        ImageFormat::Raw => {
            Err(Error::new(Errno::INVAL, "a raw image has no backing file")
                .at(file.name().to_owned()))
        }
    }
}
