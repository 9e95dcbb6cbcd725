//! A disk in memory that loses power on command.

use crate::argument::ByteCount;
use crate::error::{from_io, os_error};
use crate::file_system::FileSystem;
use crate::state::State;
use folio::testing::PowerCutDisk;
use pyo3::prelude::*;
use std::sync::Arc;

/// A disk in memory whose writes are recorded, with an ext4 file system.
#[pyclass(frozen, module = "foliofs._native")]
pub(crate) struct Disk {
    disk: PowerCutDisk,
}

#[pymethods]
impl Disk {
    /// A disk of `size_bytes` with an empty file system.
    #[new]
    fn new(py: Python<'_>, size_bytes: ByteCount) -> PyResult<Self> {
        let disk = py.detach(|| PowerCutDisk::new(size_bytes.0));
        Ok(Self {
            disk: disk.map_err(|error| os_error(&error, &[]))?,
        })
    }

    /// Mounts the disk.
    #[pyo3(signature = (options=""))]
    fn mount(&self, py: Python<'_>, options: &str) -> PyResult<FileSystem> {
        let fs = py.detach(|| self.disk.image().options(options)?.mount());
        let fs = fs.map_err(|error| from_io(&error, &[]))?;
        Ok(FileSystem::new(State::new(fs, None)))
    }

    /// The number of writes and flushes so far.
    fn moment(&self) -> usize {
        self.disk.now()
    }

    /// The states that a power cut at a moment could leave, at most `limit`.
    #[pyo3(signature = (moment, *, limit=1000, seed=0))]
    fn cuts(&self, py: Python<'_>, moment: usize, limit: usize, seed: u64) -> Vec<Cut> {
        let states = py.detach(|| self.disk.power_cuts_at(moment, limit, seed));
        states
            .into_iter()
            .map(|state| Cut {
                state: Arc::new(state),
            })
            .collect()
    }
}

/// A state of the disk after a power cut.
#[pyclass(frozen, module = "foliofs._native")]
pub(crate) struct Cut {
    state: Arc<folio::testing::PowerCut>,
}

#[pymethods]
impl Cut {
    /// Mounts the disk in this state; what is changed there changes no other state.
    #[pyo3(signature = (options=""))]
    fn mount(&self, py: Python<'_>, options: &str) -> PyResult<FileSystem> {
        let fs = py.detach(|| self.state.image().options(options)?.mount());
        let fs = fs.map_err(|error| from_io(&error, &[]))?;
        Ok(FileSystem::new(State::new(fs, None)))
    }

    fn __repr__(&self) -> String {
        self.state.to_string()
    }
}
