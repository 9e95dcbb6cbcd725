//! `foliofs._native`: the system calls of Folio for Python.
//!
//! ```text
//!   python/foliofs/    the package: FileSystem, files as io.RawIOBase, paths, fsspec, power cuts
//!        v
//!   lib.rs             open_image, create_image, open_directory, memory         tree.rs   whole trees
//!   file_system.rs     calls on paths        file.rs   calls on open files       stat.rs
//!   borrowed.rs        pages as a buffer     disk.rs   a disk in memory that loses power
//!        v
//!   state.rs           the mount, closed once            error.rs   folio's errors as OSError
//!   argument.rs        paths and sizes that Python passes             buffer.rs  bytes of its objects
//!   objects.rs         images with URLs                  fork.rs    the count of forks
//! ```
//!
//! Every call that may wait releases the interpreter's lock. Global state is the count of forks
//! and, with its own locks, object storage: free-threaded interpreters need no lock either.

#![deny(unsafe_code)]

mod argument;
mod borrowed;
mod buffer;
mod disk;
mod error;
mod file;
mod file_system;
mod fork;
mod objects;
mod positioned;
mod stat;
mod state;
mod tree;

use argument::{ByteCount, FilePath, parsed_uuid};
use disk::{Cut, Disk};
use file::File;
use file_system::FileSystem;
use folio::block::{ImageFormat, OpenOptions};
use folio::ext4::FormatOptions;
use folio::{Fs, Image, Timespec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use state::State;

fn parsed_format(format: Option<&str>) -> PyResult<Option<ImageFormat>> {
    match format {
        None => Ok(None),
        Some("raw") => Ok(Some(ImageFormat::Raw)),
        Some("qcow2") => Ok(Some(ImageFormat::Qcow2)),
        Some(other) => Err(PyValueError::new_err(format!(
            "invalid format {other:?}: expected \"raw\" or \"qcow2\""
        ))),
    }
}

/// What open_image and create_image have in common.
fn configured(
    mut image: Image,
    format: Option<ImageFormat>,
    options: &str,
    cache_bytes: Option<ByteCount>,
) -> PyResult<Image> {
    if let Some(format) = format {
        image = image.image_format(format);
    }
    if !options.is_empty() {
        image = image.options(options)?;
    }
    Ok(match cache_bytes {
        Some(bytes) => image.cache_bytes(bytes.0),
        None => image,
    })
}

fn mounted(py: Python<'_>, image: Image, path: &std::path::Path) -> PyResult<FileSystem> {
    let fs = py.detach(|| image.mount());
    let fs = fs.map_err(|error| error::from_io(&error, &[path]))?;
    Ok(FileSystem::new(State::new(fs, Some(path))))
}

/// Opens the ext4 file system in an image file.
#[pyfunction]
#[pyo3(signature = (path, *, read_only, shared=false, partition=None, format=None, options="", cache_bytes=None))]
#[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
fn open_image(
    py: Python<'_>,
    path: FilePath,
    read_only: bool,
    shared: bool,
    partition: Option<i64>,
    format: Option<&str>,
    options: &str,
    cache_bytes: Option<ByteCount>,
) -> PyResult<FileSystem> {
    objects::check(&path).map_err(|error| error::os_error(&error, &[&path]))?;
    let format = parsed_format(format)?;
    let mut image = if shared {
        let options = OpenOptions {
            read_only: true,
            is_shared: true,
            format,
            ..OpenOptions::default()
        };
        let device = py.detach(|| folio::block::open(&path, &options));
        Image::device(device.map_err(|error| error::os_error(&error, &[&path]))?)
    } else {
        Image::file(&*path)
    };
    if read_only || shared {
        image = image.read_only();
    }
    if let Some(number) = partition {
        let valid = u32::try_from(number).ok().filter(|number| *number > 0);
        let number = valid.ok_or_else(|| {
            PyValueError::new_err(format!(
                "invalid partition {number}: partitions count from 1"
            ))
        })?;
        image = image.partition(number);
    }
    mounted(py, configured(image, format, options, cache_bytes)?, &path)
}

/// Creates an image file with an empty ext4 file system.
#[pyfunction]
#[pyo3(signature = (path, size_bytes, *, format=None, label="", uuid=None, time=None, options="", cache_bytes=None))]
#[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
fn create_image(
    py: Python<'_>,
    path: FilePath,
    size_bytes: ByteCount,
    format: Option<&str>,
    label: &str,
    uuid: Option<&str>,
    time: Option<i64>,
    options: &str,
    cache_bytes: Option<ByteCount>,
) -> PyResult<FileSystem> {
    objects::check(&path).map_err(|error| error::os_error(&error, &[&path]))?;
    let uuid = uuid.map(parsed_uuid).transpose()?;
    let mut image = Image::create(&*path, size_bytes.0).format_options(FormatOptions {
        label: label.to_owned(),
        uuid,
        ..FormatOptions::default()
    });
    if let Some(secs) = time {
        let Some(uuid) = uuid else {
            return Err(PyValueError::new_err("a fixed time needs a fixed uuid"));
        };
        image = image.reproducible(uuid, Timespec::new(secs, 0));
    }
    let format = parsed_format(format)?;
    mounted(py, configured(image, format, options, cache_bytes)?, &path)
}

/// Opens a directory of the host.
#[pyfunction]
fn open_directory(py: Python<'_>, path: FilePath) -> PyResult<FileSystem> {
    let fs = py.detach(|| Fs::host(&path));
    let fs = fs.map_err(|error| error::from_io(&error, &[&path]))?;
    Ok(FileSystem::new(State::new(fs, Some(&path))))
}

/// Creates an empty file system in memory.
#[pyfunction]
fn memory() -> FileSystem {
    FileSystem::new(State::new(Fs::memory(), None))
}

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    objects::provide();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("is_optimized", !cfg!(debug_assertions))?;
    module.add("has_object_store", objects::IS_BUILT)?;
    module.add_class::<FileSystem>()?;
    module.add_class::<File>()?;
    module.add_class::<positioned::Positioned>()?;
    module.add_class::<Disk>()?;
    module.add_class::<Cut>()?;
    module.add_class::<borrowed::Borrowed>()?;
    module.add_function(wrap_pyfunction!(open_image, module)?)?;
    module.add_function(wrap_pyfunction!(create_image, module)?)?;
    module.add_function(wrap_pyfunction!(tree::build_image, module)?)?;
    module.add_function(wrap_pyfunction!(open_directory, module)?)?;
    module.add_function(wrap_pyfunction!(memory, module)?)?;
    module.add_function(wrap_pyfunction!(objects::is_url, module)?)?;
    module.add_function(wrap_pyfunction!(fork::after_fork, module)?)
}
