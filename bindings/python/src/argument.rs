//! Arguments of calls: paths and numbers of bytes, with the errors of the module os.

use folio::Errno;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path. One with a NUL byte raises ValueError.
pub(crate) struct FilePath(PathBuf);

impl FromPyObject<'_, '_> for FilePath {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let path: PathBuf = object.extract()?;
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(PyValueError::new_err("embedded null byte"));
        }
        Ok(Self(path))
    }
}

impl Deref for FilePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for FilePath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl From<FilePath> for PathBuf {
    fn from(path: FilePath) -> Self {
        path.0
    }
}

/// A size or an offset in bytes, also as text: "64M". A negative one raises OSError with EINVAL,
/// other text ValueError.
pub(crate) struct ByteCount(pub(crate) u64);

impl FromPyObject<'_, '_> for ByteCount {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.extract::<&str>() {
            return folio_tree::parse_size(text).map(Self).ok_or_else(|| {
                let expected = "expected a number of bytes, or with K, M, G or T (\"512M\")";
                PyValueError::new_err(format!("invalid size {text:?}: {expected}"))
            });
        }
        let number: i64 = object.extract()?;
        u64::try_from(number).map(Self).map_err(|_| {
            let text = format!("expected a size or an offset from 0 on, not {number}");
            PyOSError::new_err((Errno::INVAL.raw_os_error(), text))
        })
    }
}

/// Returns the bytes of a UUID, or ValueError.
pub(crate) fn parsed_uuid(text: &str) -> PyResult<[u8; 16]> {
    let uuid = uuid::Uuid::parse_str(text).map_err(|_| {
        PyValueError::new_err(format!(
            "invalid uuid {text:?}: expected 32 hexadecimal digits \
             (e.g. 6ff3ebd4-8b5e-4d0c-9c36-9a0e8a0c4d11)"
        ))
    })?;
    Ok(uuid.into_bytes())
}
