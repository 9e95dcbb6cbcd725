//! Checks an image that no process has open: open, lock, check, close.

use crate::base::{Detail, Error, ErrorKind, Result};
use crate::block::Device;
use crate::block::file::{DeviceFile, HostFile, ImageFile, open_for_facts, remote};
use crate::block::image::{ImageFormat, detect};
use crate::block::qcow2::{self, Finding, ImageCheck, Repair};
use std::path::Path;
use std::sync::Arc;

/// Checks the image at `path`, makes the repairs that `repair` selects, and calls `report` with
/// each finding.
///
/// # Errors
///
/// EBUSY if another process's lock forbids it, EOPNOTSUPP for a format without metadata and for
/// unknown features, EUCLEAN for an image with a corrupt header, else the host's errors.
///
/// qemu-img: `check`.
pub fn check(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    repair: Repair,
    report: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    let path = path.as_ref();
    if let Some(found) = remote(path) {
        let file = found.open(repair == Repair::Nothing)?;
        return check_file(&file, format, repair, report);
    }
    let file = HostFile::open(path, repair == Repair::Nothing)?;
    check_file(&file, format, repair, report)
}

/// Checks the image at `path` without a lock, even while another process writes it, whose changes
/// may then appear as findings.
///
/// # Errors
///
/// Those of [`check`], without EBUSY.
///
/// qemu-img: `check -U`.
pub fn check_shared(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    report: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    let file = open_for_facts(path.as_ref(), true)?;
    check_file(&*file, format, Repair::Nothing, report)
}

fn check_file(
    file: &dyn ImageFile,
    format: Option<ImageFormat>,
    repair: Repair,
    report: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    match format.map_or_else(|| detect(file), Ok)? {
        ImageFormat::Qcow2 => {
            qcow2::check_image(file, repair, report).map_err(|error| at_file(error, file))
        }
        ImageFormat::Raw => Err(at_file(
            Error::unsupported("the raw format has no metadata to check").about(Detail::NoMetadata),
            file,
        )),
    }
}

/// Checks the image stored on a device, which no other device has open, as [`check`] does.
///
/// # Errors
///
/// EOPNOTSUPP and EUCLEAN as in [`check`], else the device's errors.
pub fn check_on(
    device: Arc<dyn Device>,
    repair: Repair,
    report: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    qcow2::check_image(&DeviceFile::open(device), repair, report)
}

/// Adds the image's name to an error; the host's own errors have it already.
pub(super) fn at_file(error: Error, file: &dyn ImageFile) -> Error {
    match error.kind() {
        ErrorKind::Io => error,
        _ => error.at(file.name().to_owned()),
    }
}
