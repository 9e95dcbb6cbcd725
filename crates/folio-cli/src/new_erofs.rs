//! A new EROFS with the files of one source, whatever its kind.

use crate::arguments::new_image::{NewImage, refuse_existing};
use crate::exit::Outcome;
use crate::image_path::{ImagePath, PathArgument};
use crate::session::Session;
use crate::tree_copy;
use crate::unpacking::ArchiveSource;
use folio_tree::OwnerRules;
use folio_tree::oci::Reference;
use std::ffi::OsStr;
use std::path::Path;

/// Creates the image of `place` with the files of `source` in its root directory.
pub(crate) fn create(
    session: &Session,
    place: &ImagePath,
    new_image: &NewImage,
    source: &OsStr,
) -> Outcome {
    refuse_existing(place, "write")?;
    let reference = Reference::parse(source).filter(|_| !Path::new(source).exists());
    let archive = match (reference, PathArgument::parse(source, false)) {
        (Some(reference), _) => ArchiveSource::open_container(session, &reference, None)?,
        (None, PathArgument::Host(path)) if path.is_file() => {
            ArchiveSource::open_tar(session, &path)?
        }
        (None, tree) => return tree_copy::copy_into_new(session, &tree, place, new_image),
    };
    let rules = OwnerRules::default();
    let contents = || archive.contents(session);
    new_image.fill(session, place, &rules, contents, |image| {
        archive.unpack_into(session, image, &place.path, &rules)
    })
}
