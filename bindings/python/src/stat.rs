//! Attributes of a file as os.stat_result.

use folio::Timespec;
use folio::vfs::{Attributes, FileType};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

/// Block size that a program should use.
const BLOCK_BYTES: u32 = 4096;

/// Returns os.stat_result; `device` becomes `st_dev`.
pub(crate) fn stat_result<'py>(
    py: Python<'py>,
    found: &Attributes,
    device: u64,
) -> PyResult<Bound<'py, PyAny>> {
    static STAT_RESULT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (major, minor) = (u64::from(found.device.major), u64::from(found.device.minor));
    // gnu_dev_makedev of the C library.
    let rdev = minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32;
    let times = [found.accessed, found.modified, found.changed];
    let mut fields = vec![
        mode(found).into_bound_py_any(py)?,
        found.number.0.into_bound_py_any(py)?,
        device.into_bound_py_any(py)?,
        found.link_count.into_bound_py_any(py)?,
        found.uid.into_bound_py_any(py)?,
        found.gid.into_bound_py_any(py)?,
        found.size_bytes.into_bound_py_any(py)?,
    ];
    for time in times {
        fields.push(time.secs.into_bound_py_any(py)?);
    }
    for time in times {
        let seconds = time.secs as f64 + f64::from(time.nanos) * 1e-9;
        fields.push(seconds.into_bound_py_any(py)?);
    }
    for time in times {
        fields.push(nanoseconds(py, time)?);
    }
    fields.push(BLOCK_BYTES.into_bound_py_any(py)?);
    fields.push(found.blocks_512.into_bound_py_any(py)?);
    fields.push(rdev.into_bound_py_any(py)?);
    let class = STAT_RESULT.import(py, "os", "stat_result")?;
    class.call1((PyTuple::new(py, fields)?,))
}

/// Returns the nanoseconds since 1970.
pub(crate) fn nanoseconds(py: Python<'_>, time: Timespec) -> PyResult<Bound<'_, PyAny>> {
    let nanos = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    // Conversions of i64 are faster.
    match i64::try_from(nanos) {
        Ok(nanos) => nanos.into_bound_py_any(py),
        Err(_) => nanos.into_bound_py_any(py),
    }
}

/// Returns the mode: permission bits and type.
pub(crate) fn mode(found: &Attributes) -> u32 {
    kind_bits(found.file_type) | u32::from(found.mode)
}

/// Returns the type bits of a mode.
pub(crate) fn kind_bits(file_type: FileType) -> u32 {
    let kind = match file_type {
        FileType::Fifo => 0o1,
        FileType::CharacterDevice => 0o2,
        FileType::Directory => 0o4,
        FileType::BlockDevice => 0o6,
        FileType::Regular => 0o10,
        FileType::Symlink => 0o12,
        FileType::Socket => 0o14,
    };
    kind << 12
}
