//! Changes the name of the backing file in the header, and keeps all else in the header's cluster.

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
    header
        .extensions
        .retain(|extension| extension.kind != extensions::BACKING_FORMAT);
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
