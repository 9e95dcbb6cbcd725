//! What is done to an image as a whole while nobody has it open: open, lock, work, close.

use crate::base::{Error, ErrorKind, Result};
use crate::block::Device;
use crate::block::file::{DeviceFile, HostFile, ImageFile};
use crate::block::image::{ImageFormat, detect};
use crate::block::qcow2::{self, Finding, ImageCheck, Repair};
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
            qcow2::check(&file, repair, tell).map_err(|error| at_file(error, &file))
        }
        ImageFormat::Raw => Err(at_file(
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

/// The failure with the image's name before it; the host's own failures have it already.
pub(super) fn at_file(error: Error, file: &HostFile) -> Error {
    match error.kind() {
        ErrorKind::Io => error,
        _ => error.at(file.name().to_owned()),
    }
}
