//! The destination of `folio mv` and `folio ln`.

use crate::exit::{Failure, Outcome};
use crate::image::Image;
use crate::image_path::ImagePath;
use folio::vfs::FileType;
use std::path::PathBuf;

/// Returns the path that `source` gets: below `target` if that is another directory, which several
/// sources require. Where names ignore case, another spelling is the same directory.
pub(crate) fn destination(
    image: &Image,
    target: &ImagePath,
    source: &ImagePath,
    has_many_sources: bool,
) -> Outcome<PathBuf> {
    let found = image.stat(&target.path, true).ok();
    let is_directory = found
        .as_ref()
        .is_some_and(|found| found.file_type == FileType::Directory);
    let is_respelled = is_directory
        && source.path != target.path
        && source.path.parent() == target.path.parent()
        && image
            .stat(&source.path, false)
            .is_ok_and(|own| found.is_some_and(|found| found.number == own.number));
    if is_respelled && !has_many_sources {
        return Ok(target.path.clone());
    }
    match source.path.file_name() {
        Some(name) if is_directory => Ok(target.path.join(name)),
        _ if has_many_sources => Err(Failure::new(format!("{target}: not a directory"))),
        _ => Ok(target.path.clone()),
    }
}

/// Fails unless all paths are in one file system.
pub(crate) fn check_same_image(places: &[ImagePath]) -> Outcome {
    let is_same = places.windows(2).all(|pair| match pair {
        [a, b] => a.image == b.image && a.partition == b.partition,
        _ => true,
    });
    if is_same {
        Ok(())
    } else {
        Err(Failure::usage(
            "all paths must be in the same image; use `folio cp` to copy between images",
        ))
    }
}
