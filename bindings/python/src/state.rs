//! The mount that a file system object and its files share.

use crate::error::{from_io, os_error};
use crate::fork::forks;
use crate::objects;
use folio::syscall::Process;
use folio::{Errno, Error, Fs};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A mount until it is closed.
pub(crate) struct State {
    forks: u64,
    /// A child of fork(2) has no threads of the kernel's, and must not take it apart.
    fs: ManuallyDrop<RwLock<Option<Fs>>>,
    /// The image, if it has a name: the filename of errors of close().
    image: Option<PathBuf>,
    /// Set by close(). The lock is held over calls, and must not be waited for with the
    /// interpreter's lock.
    is_closed: AtomicBool,
}

impl State {
    pub(crate) fn new(fs: Fs, image: Option<&Path>) -> Arc<Self> {
        Arc::new(Self {
            forks: forks(),
            fs: ManuallyDrop::new(RwLock::new(Some(fs))),
            image: image.map(Path::to_owned),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Whether this process is the one that opened the mount.
    pub(crate) fn is_own(&self) -> bool {
        self.forks == forks()
    }

    /// Runs calls without the interpreter's lock; `paths` are the filenames of their errors.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        paths: &[&Path],
        work: impl FnOnce(&Process) -> folio::Result<T> + Send,
    ) -> PyResult<T> {
        self.check_fork(paths)?;
        let done = py.detach(|| {
            let fs = self.fs.read().unwrap_or_else(PoisonError::into_inner);
            fs.as_ref().map(|fs| work(fs.process()))
        });
        match done {
            Some(done) => done.map_err(|error| os_error(&error, paths)),
            None => Err(PyValueError::new_err("I/O operation on closed file system")),
        }
    }

    /// Raises OSError in a child of fork(2).
    pub(crate) fn check_fork(&self, paths: &[&Path]) -> PyResult<()> {
        if self.is_own() {
            return Ok(());
        }
        let text = "opened before fork(): open it again in this process";
        Err(os_error(&Error::new(Errno::INVAL, text), paths))
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.is_own() || self.is_closed.load(Ordering::Relaxed)
    }

    /// Syncs, closes all files, unmounts and marks the medium clean.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_own() {
            return Ok(());
        }
        self.is_closed.store(true, Ordering::Relaxed);
        let closed = py.detach(|| {
            let mut fs = self.fs.write().unwrap_or_else(PoisonError::into_inner);
            let closed = fs.take().map_or(Ok(()), Fs::close);
            closed.and(objects::close_unused().map_err(io::Error::from))
        });
        let paths: Vec<_> = self.image.iter().map(PathBuf::as_path).collect();
        closed.map_err(|error| from_io(&error, &paths))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.is_own() {
            let fs = self.fs.get_mut().unwrap_or_else(PoisonError::into_inner);
            drop(fs.take());
        }
    }
}
