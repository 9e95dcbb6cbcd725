//! Whole trees: into a new image, and between the host and a mounted file system.

use crate::argument::{FilePath, parsed_uuid};
use crate::error::{from_io, os_error};
use crate::objects;
use folio::{Error, Timespec};
use folio_tree::{CopyOptions, Excludes, NewImage, NewSize, OwnerRules};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// Returns ValueError for an option that cannot be read.
fn invalid(error: Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Returns the options of a copy; ValueError for an invalid pattern.
pub(crate) fn copy_options(keeps_all: bool, exclude: &[String]) -> PyResult<CopyOptions> {
    let excludes = match exclude {
        [] => None,
        patterns => Some(Arc::new(Excludes::new(&[], patterns).map_err(invalid)?)),
    };
    Ok(CopyOptions {
        excludes,
        ..if keeps_all {
            CopyOptions::archive()
        } else {
            CopyOptions::content()
        }
    })
}

/// Creates an image file with an ext4 file system and a copy of a directory of the host in it.
#[pyfunction]
#[pyo3(signature = (path, tree, *, size, label="", uuid=None, source_date_epoch=None, chown="", chmod=None, manifest=None, exclude=vec![]))]
#[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
pub(crate) fn build_image(
    py: Python<'_>,
    path: FilePath,
    tree: FilePath,
    size: &str,
    label: &str,
    uuid: Option<&str>,
    source_date_epoch: Option<i64>,
    chown: &str,
    chmod: Option<&str>,
    manifest: Option<PathBuf>,
    exclude: Vec<String>,
) -> PyResult<()> {
    objects::check(&path).map_err(|error| os_error(&error, &[&path]))?;
    let rules = OwnerRules::new(chown, chmod, manifest.as_deref());
    let new = NewImage {
        size: size.parse::<NewSize>().map_err(invalid)?,
        label: label.to_owned(),
        uuid: uuid.map(parsed_uuid).transpose()?,
        rules: rules.map_err(|error| match manifest {
            Some(_) => os_error(&error, &[]),
            None => invalid(error),
        })?,
        copy: CopyOptions {
            latest: source_date_epoch.map(|secs| Timespec::new(secs, 0)),
            ..copy_options(true, &exclude)?
        },
        ..NewImage::default()
    };
    let built = py.detach(|| new.build(&path, &tree));
    built.map_err(|error| from_io(&error, &[&path]))
}
