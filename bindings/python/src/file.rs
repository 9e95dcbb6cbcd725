//! An open file.

use crate::argument::ByteCount;
use crate::borrowed::Borrowed;
use crate::buffer::{cleared, filled_bytes, with_buffer, with_bytes};
use crate::state::State;
use folio::syscall::{Fd, OpenFlags, Process, Whence};
use folio::{Errno, Result};
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes of a part of a read or write: between two of them signals are handled.
pub(crate) const PART_BYTES: usize = 64 << 20;
/// Reads of more than this allocate no more than the file has.
const UNCHECKED_BYTES: u64 = 1 << 20;

/// Why a call did not reach the file.
enum Refused {
    Closed,
    Direction,
}

/// An open file: a descriptor with system calls as methods.
#[pyclass(frozen, module = "foliofs._native")]
pub(crate) struct File {
    state: Arc<State>,
    path: PathBuf,
    /// Whether it was opened for writing alone.
    is_write_only: bool,
    fd: RwLock<Option<Fd>>,
    /// Set by close(). The lock of `fd` is held over calls, and must not be waited for with the
    /// interpreter's lock.
    is_closed: AtomicBool,
}

impl File {
    pub(crate) fn new(state: Arc<State>, path: PathBuf, flags: OpenFlags, fd: Fd) -> Self {
        Self {
            state,
            path,
            is_write_only: flags.contains(OpenFlags::WRONLY),
            fd: RwLock::new(Some(fd)),
            is_closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Process, Fd) -> Result<T> + Send,
    ) -> PyResult<T> {
        let done = self.state.call(py, &[&self.path], |process| {
            let fd = self.fd.read().unwrap_or_else(PoisonError::into_inner);
            match (*fd).map(|fd| work(process, fd)).transpose() {
                Err(error) if error.errno() == Errno::BADF => Ok(Err(Refused::Direction)),
                done => Ok(done?.ok_or(Refused::Closed)),
            }
        })?;
        done.map_err(|refused| match refused {
            Refused::Closed => PyValueError::new_err("I/O operation on closed file"),
            Refused::Direction => self.unsupported(py),
        })
    }

    /// Returns io.UnsupportedOperation: an open descriptor fails with EBADF only if it is open for
    /// reading or writing alone.
    fn unsupported(&self, py: Python<'_>) -> PyErr {
        let path = self.path.display();
        let purpose = if self.is_write_only {
            "reading"
        } else {
            "writing"
        };
        let class = py
            .import("io")
            .and_then(|io| io.getattr("UnsupportedOperation"));
        let raised =
            class.and_then(|class| class.call1((format!("{path}: file not open for {purpose}"),)));
        raised.map_or_else(|error| error, PyErr::from_value)
    }

    /// Raises ValueError if the file is closed, OSError in a child of fork(2).
    pub(crate) fn check_open(&self) -> PyResult<()> {
        self.state.check_fork(&[&self.path])?;
        if self.closed() {
            return Err(PyValueError::new_err("I/O operation on closed file"));
        }
        Ok(())
    }

    /// Reads up to `len` bytes at `offset`, in parts.
    pub(crate) fn pread_full<'py>(
        &self,
        py: Python<'py>,
        len: u64,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let len = if len > UNCHECKED_BYTES {
            let size = self.call(py, |process, fd| Ok(process.fstat(fd)?.size_bytes))?;
            len.min(size.saturating_sub(offset).max(UNCHECKED_BYTES))
        } else {
            len
        };
        self.read_full(py, len, offset)
    }

    /// Reads into `bytes` at `offset`, in parts, up to the end of the file.
    pub(crate) fn pread_into(
        &self,
        py: Python<'_>,
        bytes: &mut [u8],
        offset: u64,
    ) -> PyResult<usize> {
        in_parts(py, bytes.len(), |range| {
            let at = offset + range.start as u64;
            self.call(py, |process, fd| process.pread(fd, &mut bytes[range], at))
        })
    }

    /// Reads all from `offset` to the end of the file.
    pub(crate) fn readall_from<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let size = self.call(py, |process, fd| Ok(process.fstat(fd)?.size_bytes))?;
        let first = self.read_full(py, size.saturating_sub(offset), offset)?;
        // The end is there only after a read of nothing: the file may grow meanwhile.
        let start = offset + first.as_bytes().len() as u64;
        let rest = self.call(py, |process, fd| {
            let mut rest = Vec::new();
            let mut len = 0;
            loop {
                if rest.try_reserve_exact(len + 1).is_err() {
                    return Ok(None);
                }
                rest.resize(len * 2 + 1, 0);
                match process.pread(fd, &mut rest[len..], start + len as u64)? {
                    0 => break,
                    count => len += count,
                }
                rest.truncate(len);
            }
            rest.truncate(len);
            Ok(Some(rest))
        })?;
        let rest = rest.ok_or_else(|| PyMemoryError::new_err(()))?;
        if rest.is_empty() {
            return Ok(first);
        }
        joined(py, first.as_bytes(), &rest)
    }

    /// Reads into `len` bytes, which are allocated at once; raises MemoryError.
    fn read_full<'py>(
        &self,
        py: Python<'py>,
        len: u64,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let len = usize::try_from(len).map_err(|_| PyMemoryError::new_err(()))?;
        filled_bytes(py, len, |memory| {
            in_parts(py, len, |range| {
                let at = offset + range.start as u64;
                self.call(py, |process, fd| {
                    process.pread(fd, cleared(&mut memory[range]), at)
                })
            })
        })
    }

    /// Writes all bytes with `write`, which gets a part and its start. Returns the number of bytes:
    /// fewer if an error follows some, which the next call reports.
    fn write_all(
        &self,
        py: Python<'_>,
        bytes: &[u8],
        write: impl Fn(&Process, Fd, &[u8], u64) -> Result<usize> + Sync,
    ) -> PyResult<usize> {
        let mut done = 0;
        let written = in_parts(py, bytes.len(), |range| {
            let start = range.start as u64;
            let count = self.call(py, |process, fd| write(process, fd, &bytes[range], start))?;
            done += count;
            Ok(count)
        });
        match written {
            Err(error) if done > 0 && error.is_instance_of::<PyOSError>(py) => Ok(done),
            written => written,
        }
    }
}

/// Transfers `len` bytes by calls for a part of them, up to the end of the file. Returns the number
/// of bytes.
///
/// Between two parts the handlers of signals run, so that Ctrl-C ends a long call.
pub(crate) fn in_parts(
    py: Python<'_>,
    len: usize,
    mut transfer: impl FnMut(Range<usize>) -> PyResult<usize>,
) -> PyResult<usize> {
    let mut done = 0;
    loop {
        let count = transfer(done..len.min(done + PART_BYTES))?;
        done += count;
        if count == 0 || done == len {
            return Ok(done);
        }
        py.check_signals()?;
    }
}

/// Returns both in one object, or MemoryError.
fn joined<'py>(py: Python<'py>, first: &[u8], rest: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, first.len() + rest.len(), |buf| {
        buf[..first.len()].copy_from_slice(first);
        buf[first.len()..].copy_from_slice(rest);
        Ok(())
    })
}

#[pymethods]
impl File {
    /// Reads all from the position to the end of the file.
    pub(crate) fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let position = self.call(py, |process, fd| process.lseek(fd, 0, Whence::Current))?;
        let bytes = self.readall_from(py, position)?;
        let len = bytes.as_bytes().len() as i64;
        self.call(py, |process, fd| {
            process.lseek(fd, position.cast_signed() + len, Whence::Set)
        })?;
        Ok(bytes)
    }

    /// Reads up to `len_bytes` bytes at `offset`.
    fn pread<'py>(
        &self,
        py: Python<'py>,
        len_bytes: ByteCount,
        offset: ByteCount,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.pread_full(py, len_bytes.0, offset.0)
    }

    /// Reads into a buffer at the position; returns the number of bytes.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_buffer(py, buffer, |py, bytes| {
            in_parts(py, bytes.len(), |range| {
                self.call(py, |process, fd| process.read(fd, &mut bytes[range]))
            })
        })
    }

    /// Reads into a buffer at `offset`; returns the number of bytes.
    fn preadinto(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: ByteCount,
    ) -> PyResult<usize> {
        with_buffer(py, buffer, |py, bytes| self.pread_into(py, bytes, offset.0))
    }

    /// Returns the file's own bytes in the page cache, at most 2 MiB.
    fn borrow(
        &self,
        py: Python<'_>,
        offset: ByteCount,
        len_bytes: ByteCount,
    ) -> PyResult<Borrowed> {
        let len = usize::try_from(len_bytes.0).unwrap_or(usize::MAX);
        let pages = self.call(py, |process, fd| process.read_borrowed(fd, offset.0, len));
        let pages = pages?;
        Ok(py.detach(|| Borrowed::new(self.state.clone(), pages)))
    }

    /// Writes at the position; returns the number of bytes.
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_bytes(py, buffer, |py, bytes| {
            self.write_all(py, bytes, |process, fd, part, _| process.write(fd, part))
        })
    }

    /// Writes at `offset`; returns the number of bytes.
    fn pwrite(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: ByteCount,
    ) -> PyResult<usize> {
        with_bytes(py, buffer, |py, bytes| {
            self.write_all(py, bytes, |process, fd, part, start| {
                process.pwrite(fd, part, offset.0 + start)
            })
        })
    }

    /// Moves the position: os.SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE.
    #[pyo3(signature = (offset, whence=0))]
    pub(crate) fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let whence = match whence {
            0 => Whence::Set,
            1 => Whence::Current,
            2 => Whence::End,
            3 => Whence::Data,
            4 => Whence::Hole,
            other => return Err(PyValueError::new_err(format!("invalid whence {other}"))),
        };
        self.call(py, |process, fd| process.lseek(fd, offset, whence))
    }

    fn truncate(&self, py: Python<'_>, size_bytes: ByteCount) -> PyResult<()> {
        self.call(py, |process, fd| process.ftruncate(fd, size_bytes.0))
    }

    #[pyo3(signature = (*, data_only=false))]
    fn fsync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        self.call(py, |process, fd| {
            if data_only {
                process.fdatasync(fd)
            } else {
                process.fsync(fd)
            }
        })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.state.is_closed() || self.is_closed.load(Ordering::Relaxed)
    }

    /// Closes the descriptor. Writeback errors are reported here, too.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.state.is_closed() || self.is_closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.state.call(py, &[&self.path], |process| {
            let mut fd = self.fd.write().unwrap_or_else(PoisonError::into_inner);
            fd.take().map_or(Ok(()), |fd| process.close(fd))
        })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        Python::attach(|py| {
            // An object that is not closed has no caller left for an error.
            let _ = self.close(py);
        });
    }
}
