//! Internal snapshots of an image that no process has open: list, create, apply, delete.

use super::check::at_file;
use crate::base::{Error, Result, Timespec};
use crate::block::Device;
use crate::block::file::{DeviceFile, HostFile, open_for_facts};
use crate::block::image::{ImageFormat, detect};
use crate::block::qcow2::{self, Snapshot};
use std::path::Path;
use std::sync::Arc;

/// Lists the internal snapshots of the image at `path`, oldest first; none in a format without
/// them. With `is_shared`, even while another process writes the image.
///
/// # Errors
///
/// Those of [`crate::block::open`], without those of backing files.
///
/// qemu-img: `snapshot -l`.
pub fn snapshots(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    is_shared: bool,
) -> Result<Vec<Snapshot>> {
    let file = &*open_for_facts(path.as_ref(), is_shared)?;
    match format.map_or_else(|| detect(file), Ok)? {
        ImageFormat::Qcow2 => qcow2::list_snapshots(file).map_err(|error| at_file(error, file)),
        ImageFormat::Raw => Ok(Vec::new()),
    }
}

/// Creates an internal snapshot of the disk's present content, with name and time of creation.
///
/// # Errors
///
/// EUCLEAN for an image with errors, EFBIG for one snapshot too many, ENAMETOOLONG for a name
/// longer than 255 bytes, EOPNOTSUPP for a raw image or an external data file, else those of
/// [`crate::block::tools::check`].
///
/// qemu-img: `snapshot -c`.
pub fn create_snapshot(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    name: &str,
    date: Timespec,
) -> Result<()> {
    with_image(path.as_ref(), format, &|file| {
        qcow2::create_snapshot(file, name, date)
    })
}

/// Restores the disk to an internal snapshot; its present content is lost. `which` is an id, or
/// else a name.
///
/// # Errors
///
/// ENOENT if there is no such snapshot, else those of [`create_snapshot`].
///
/// qemu-img: `snapshot -a`.
pub fn apply_snapshot(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    which: &str,
) -> Result<()> {
    with_image(path.as_ref(), format, &|file| {
        qcow2::apply_snapshot(file, which)
    })
}

/// Deletes an internal snapshot, and frees the clusters that only it used. `which` is a name, or
/// else an id.
///
/// # Errors
///
/// ENOENT if there is no such snapshot, else those of [`create_snapshot`].
///
/// qemu-img: `snapshot -d`.
pub fn delete_snapshot(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    which: &str,
) -> Result<()> {
    with_image(path.as_ref(), format, &|file| {
        qcow2::delete_snapshot(file, which)
    })
}

/// Creates an internal snapshot in the image stored on a device, as [`create_snapshot`] does.
///
/// # Errors
///
/// Those of [`create_snapshot`], with the device's errors in place of the host's.
pub fn create_snapshot_on(device: Arc<dyn Device>, name: &str, date: Timespec) -> Result<()> {
    qcow2::create_snapshot(&DeviceFile::open(device), name, date)
}

/// Applies an internal snapshot of the image stored on a device, as [`apply_snapshot`] does.
///
/// # Errors
///
/// Those of [`apply_snapshot`], with the device's errors in place of the host's.
pub fn apply_snapshot_on(device: Arc<dyn Device>, which: &str) -> Result<()> {
    qcow2::apply_snapshot(&DeviceFile::open(device), which)
}

/// Deletes an internal snapshot of the image stored on a device, as [`delete_snapshot`] does.
///
/// # Errors
///
/// Those of [`delete_snapshot`], with the device's errors in place of the host's.
pub fn delete_snapshot_on(device: Arc<dyn Device>, which: &str) -> Result<()> {
    qcow2::delete_snapshot(&DeviceFile::open(device), which)
}

/// Opens a qcow2 image for writing, and calls `work` with its file.
fn with_image(
    path: &Path,
    format: Option<ImageFormat>,
    work: &dyn Fn(&HostFile) -> Result<()>,
) -> Result<()> {
    let file = HostFile::open(path, false)?;
    match format.map_or_else(|| detect(&file), Ok)? {
        ImageFormat::Qcow2 => work(&file).map_err(|error| at_file(error, &file)),
        ImageFormat::Raw => Err(at_file(
            Error::unsupported("the raw format has no snapshots"),
            &file,
        )),
    }
}
