//! The chain of an image and its backing files.

use crate::arguments::image_options::image_failure;
use crate::exit::Outcome;
use folio::block::{self, ImageFormat, OpenOptions};
use std::path::{Path, PathBuf};

/// Returns the files of a chain, from the image down.
pub(crate) fn chain_files(file: &Path, is_shared: bool) -> Outcome<Vec<PathBuf>> {
    let images = chain_images(file, None, is_shared)?;
    Ok(images.into_iter().map(|(path, _)| path).collect())
}

/// Returns the files of a chain and their formats, from the image down.
pub(crate) fn chain_images(
    file: &Path,
    mut format: Option<ImageFormat>,
    is_shared: bool,
) -> Outcome<Vec<(PathBuf, ImageFormat)>> {
    let mut images = Vec::new();
    let mut next = file.to_owned();
    loop {
        let options = OpenOptions {
            format,
            is_shared,
            ..OpenOptions::default()
        };
        let info =
            block::tools::info(&next, &options).map_err(|error| image_failure(error, &next))?;
        images.push((next, info.format));
        let Some(path) = info.backing_path else {
            return Ok(images);
        };
        format = info
            .qcow2
            .and_then(|qcow2| qcow2.backing_format)
            .and_then(|format| format.parse().ok());
        next = path;
    }
}
