//! What is done to an image as a whole while nobody has it open: open, lock, work, close.

use super::host_file::HostFile;
use super::image::detect;
use super::image_file::{DeviceFile, ImageFile};
use super::qcow2::{self, Finding, ImageCheck, Repair, Snapshot};
use super::{Device, ImageFormat};
use crate::base::{Error, ErrorKind, Result, Timespec};
use std::path::Path;
use std::sync::Arc;

/// Checks the image at `path` as `qemu-img check` does, and mends what `repair` says; `tell` hears
/// of each finding.
///
/// Errors: EBUSY if another process uses it in a way that forbids this, EOPNOTSUPP for a format
/// that has nothing to check and for features that nobody here knows, EUCLEAN for an image whose
/// header leads nowhere, else the host's.
pub fn check(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    repair: Repair,
    tell: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    let file = HostFile::open(path.as_ref(), repair == Repair::Nothing)?;
    match format.map_or_else(|| detect(&file), Ok)? {
        ImageFormat::Qcow2 => {
            qcow2::check(&file, repair, tell).map_err(|error| place(error, &file))
        }
        ImageFormat::Raw => Err(place(
            Error::unsupported("a raw image has nothing that could be checked"),
            &file,
        )),
    }
}

/// Checks the image that a device holds, which no other device has open, as [`check`] does one in a
/// file.
pub fn check_on(
    device: Arc<dyn Device>,
    repair: Repair,
    tell: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    qcow2::check(&DeviceFile::open(device), repair, tell)
}

/// The internal snapshots of the image at `path`, oldest first; none in a format without them.
pub fn snapshots(path: impl AsRef<Path>, format: Option<ImageFormat>) -> Result<Vec<Snapshot>> {
    let file = HostFile::open(path.as_ref(), true)?;
    match format.map_or_else(|| detect(&file), Ok)? {
        ImageFormat::Qcow2 => qcow2::snapshots::list(&file).map_err(|error| place(error, &file)),
        ImageFormat::Raw => Ok(Vec::new()),
    }
}

/// Makes an internal snapshot of what the disk now holds, called `name` and made at `date`.
///
/// Errors: those of [`check`]; EUCLEAN for an image that has errors, EFBIG for one snapshot too
/// many.
pub fn create_snapshot(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    name: &str,
    date: Timespec,
) -> Result<()> {
    with_tables(path.as_ref(), format, &|file| {
        qcow2::snapshots::create(file, name, date)
    })
}

/// Makes the disk what it was when an internal snapshot was made; what it held since is lost.
/// `which` is an id, or else a name; ENOENT if there is none, else the errors of
/// [`create_snapshot`].
pub fn apply_snapshot(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    which: &str,
) -> Result<()> {
    with_tables(path.as_ref(), format, &|file| {
        qcow2::snapshots::apply(file, which)
    })
}

/// Deletes an internal snapshot, and gives back what only it held. `which` is a name, or else an
/// id; ENOENT if there is none, else the errors of [`create_snapshot`].
pub fn delete_snapshot(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    which: &str,
) -> Result<()> {
    with_tables(path.as_ref(), format, &|file| {
        qcow2::snapshots::delete(file, which)
    })
}

/// Makes an internal snapshot in the image that a device holds, as [`create_snapshot`] does in a
/// file.
pub fn create_snapshot_on(device: Arc<dyn Device>, name: &str, date: Timespec) -> Result<()> {
    qcow2::snapshots::create(&DeviceFile::open(device), name, date)
}

/// Applies an internal snapshot of the image that a device holds, as [`apply_snapshot`] does in a
/// file.
pub fn apply_snapshot_on(device: Arc<dyn Device>, which: &str) -> Result<()> {
    qcow2::snapshots::apply(&DeviceFile::open(device), which)
}

/// Deletes an internal snapshot of the image that a device holds, as [`delete_snapshot`] does in a
/// file.
pub fn delete_snapshot_on(device: Arc<dyn Device>, which: &str) -> Result<()> {
    qcow2::snapshots::delete(&DeviceFile::open(device), which)
}

/// Opens a qcow2 image for writing and does something to its tables.
fn with_tables(
    path: &Path,
    format: Option<ImageFormat>,
    work: &dyn Fn(&HostFile) -> Result<()>,
) -> Result<()> {
    let file = HostFile::open(path, false)?;
    match format.map_or_else(|| detect(&file), Ok)? {
        ImageFormat::Qcow2 => work(&file).map_err(|error| place(error, &file)),
        ImageFormat::Raw => Err(place(
            Error::unsupported("a raw image has no snapshots"),
            &file,
        )),
    }
}

/// The failure with the image's name before it; the host's own failures have it already.
fn place(error: Error, file: &HostFile) -> Error {
    match error.kind() {
        ErrorKind::Io => error,
        _ => error.at(file.name().to_owned()),
    }
}
