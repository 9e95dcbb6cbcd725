//! What is done to an image as a whole while nobody has it open: open, lock, work, close.

use super::host_file::HostFile;
use super::image::detect;
use super::image_file::{DeviceFile, ImageFile};
use super::qcow2::{self, Finding, ImageCheck, Repair};
use super::{Device, ImageFormat};
use crate::base::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;

/// Checks the image at `path` as `qemu-img check` does, and mends what `repair` says; `tell` hears of each finding.
///
/// Errors: EBUSY if another process uses it in a way that forbids this, EOPNOTSUPP for a format that has nothing to
/// check and for features that nobody here knows, EUCLEAN for an image whose header leads nowhere, else the host's.
pub fn check(
    path: impl AsRef<Path>,
    format: Option<ImageFormat>,
    repair: Repair,
    tell: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    let file = HostFile::open(path.as_ref(), repair == Repair::Nothing)?;
    match format.map_or_else(|| detect(&file), Ok)? {
        ImageFormat::Qcow2 => qcow2::check(&file, repair, tell).map_err(|error| place(error, &file)),
        ImageFormat::Raw => {
            Err(place(Error::unsupported("a raw image has nothing that could be checked"), &file))
        }
    }
}

/// Checks the image that a device holds, which no other device has open, as [`check`] does one in a file.
pub fn check_on(
    device: Arc<dyn Device>,
    repair: Repair,
    tell: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    qcow2::check(&DeviceFile::open(device), repair, tell)
}

/// The failure with the image's name before it; the host's own failures have it already.
fn place(error: Error, file: &HostFile) -> Error {
    match error.kind() {
        ErrorKind::Io => error,
        _ => error.at(file.name().to_owned()),
    }
}
