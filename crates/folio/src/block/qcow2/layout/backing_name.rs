//! Changes what the header says of the backing file, and keeps all else in the header's cluster.

use super::extensions::{self, Extension};
use super::header_cluster::HeaderCluster;
use crate::base::Result;
use crate::block::file::ImageFile;
use crate::block::image::BackingName;

/// Makes the header name another backing file, or none. Unknown extensions stay.
///
/// # Errors
///
/// EINVAL for a name that does not fit.
pub(crate) fn set(file: &dyn ImageFile, backing: Option<&BackingName>) -> Result<()> {
    let mut header = HeaderCluster::read(file)?;
    let is_kept = |extension: &Extension| {
        ![extensions::BACKING_FORMAT, extensions::BACKING_VERSION].contains(&extension.kind)
    };
    header.extensions.retain(is_kept);
    if let Some(format) = backing.and_then(|backing| backing.format) {
        let extension = Extension {
            kind: extensions::BACKING_FORMAT,
            bytes: format.name().as_bytes().to_vec(),
        };
        header.extensions.insert(0, extension);
    }
    header.backing_name =
        backing.map_or_else(Vec::new, |backing| backing.name.clone().into_bytes());
    header.write(file)
}

/// Records the version of the backing file, or none.
///
/// # Errors
///
/// EINVAL for a version that does not fit.
pub(crate) fn set_version(file: &dyn ImageFile, version: Option<&str>) -> Result<()> {
    let mut header = HeaderCluster::read(file)?;
    header
        .extensions
        .retain(|extension| extension.kind != extensions::BACKING_VERSION);
    if let Some(version) = version {
        header.extensions.push(Extension {
            kind: extensions::BACKING_VERSION,
            bytes: version.as_bytes().to_vec(),
        });
    }
    header.write(file)
}
