//! Internal snapshots of an image that no process has open: list, create, apply, delete.

use super::check::at_file;
use crate::base::{Error, Result, Timespec};
use crate::block::Device;
use crate::block::file::{DeviceFile, HostFile};
use crate::block::image::{ImageFormat, detect};
use crate::block::qcow2::{self, Snapshot};
use std::path::Path;
use std::sync::Arc;

/// The internal snapshots of the image at `path`, oldest first; none in a format without them.
pub fn snapshots(path: impl AsRef<Path>, format: Option<ImageFormat>) -> Result<Vec<Snapshot>> {
    let file = HostFile::open(path.as_ref(), true)?;
    match format.map_or_else(|| detect(&file), Ok)? {
        ImageFormat::Qcow2 => qcow2::list_snapshots(&file).map_err(|error| at_file(error, &file)),
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
        qcow2::create_snapshot(file, name, date)
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
        qcow2::apply_snapshot(file, which)
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
        qcow2::delete_snapshot(file, which)
    })
}

/// Makes an internal snapshot in the image that a device holds, as [`create_snapshot`] does in a
/// file.
pub fn create_snapshot_on(device: Arc<dyn Device>, name: &str, date: Timespec) -> Result<()> {
    qcow2::create_snapshot(&DeviceFile::open(device), name, date)
}

/// Applies an internal snapshot of the image that a device holds, as [`apply_snapshot`] does in a
/// file.
pub fn apply_snapshot_on(device: Arc<dyn Device>, which: &str) -> Result<()> {
    qcow2::apply_snapshot(&DeviceFile::open(device), which)
}

/// Deletes an internal snapshot of the image that a device holds, as [`delete_snapshot`] does in a
/// file.
pub fn delete_snapshot_on(device: Arc<dyn Device>, which: &str) -> Result<()> {
    qcow2::delete_snapshot(&DeviceFile::open(device), which)
}

/// Opens a qcow2 image for writing and does something to its tables.
fn with_tables(
    path: &Path,
    format: Option<ImageFormat>,
    work: &dyn Fn(&HostFile) -> Result<()>,
) -> Result<()> {
    let file = HostFile::open(path, false)?;
    match format.map_or_else(|| detect(&file), Ok)? {
        ImageFormat::Qcow2 => work(&file).map_err(|error| at_file(error, &file)),
        ImageFormat::Raw => Err(at_file(
            Error::unsupported("a raw image has no snapshots"),
            &file,
        )),
    }
}
