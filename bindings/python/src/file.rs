//! An open file.

use crate::argument::ByteCount;
use crate::borrowed::Borrowed;
use crate::buffer::{with_buffer, with_bytes};
use crate::state::State;
use folio::syscall::{Fd, OpenFlags, Process, Whence};
use folio::{Errno, Result};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

/// Largest read of a given size.
const READ_MAX: usize = 1 << 30;

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
}

impl File {
    pub(crate) fn new(state: Arc<State>, path: PathBuf, flags: OpenFlags, fd: Fd) -> Self {
        Self {
            state,
            path,
            is_write_only: flags.contains(OpenFlags::WRONLY),
            fd: RwLock::new(Some(fd)),
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

    /// Reads with `read` until `len` bytes, the end of the file, or a read of 0 bytes.
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        len: ByteCount,
        read: impl FnOnce(&Process, Fd, &mut [u8]) -> Result<usize> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.read_full(py, Self::checked_len(len)?, read)
    }

    /// Returns the length of a read. One of more than 1 GiB raises ValueError.
    pub(crate) fn checked_len(len: ByteCount) -> PyResult<usize> {
        let len = usize::try_from(len.0).ok().filter(|len| *len <= READ_MAX);
        len.ok_or_else(|| PyValueError::new_err("a read is limited to 1 GiB"))
    }

    /// Raises ValueError if the file is closed.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        if self.closed() {
            return Err(PyValueError::new_err("I/O operation on closed file"));
        }
        Ok(())
    }

    /// Reads up to `len` bytes at `offset`.
    pub(crate) fn pread_full<'py>(
        &self,
        py: Python<'py>,
        len: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.read_full(py, len, |process, fd, buf| process.pread(fd, buf, offset))
    }

    /// Reads all from `offset` to the end of the file.
    pub(crate) fn readall_from<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let size = self.call(py, |process, fd| Ok(process.fstat(fd)?.size_bytes))?;
        let len = usize::try_from(size.saturating_sub(offset));
        let len = len.map_err(|_| PyMemoryError::new_err(()))?;
        let first = self.read_full(py, len, |process, fd, buf| {
            let mut count = 0;
            while count < buf.len() {
                match process.pread(fd, &mut buf[count..], offset + count as u64)? {
                    0 => break,
                    more => count += more,
                }
            }
            Ok(count)
        })?;
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

    /// Reads with `read` into `len` bytes, which are allocated at once; raises MemoryError.
    fn read_full<'py>(
        &self,
        py: Python<'py>,
        len: usize,
        read: impl FnOnce(&Process, Fd, &mut [u8]) -> Result<usize> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut count = 0;
        let bytes = PyBytes::new_with(py, len, |buf| {
            count = self.call(py, |process, fd| read(process, fd, buf))?;
            Ok(())
        })?;
        if count == len {
            return Ok(bytes);
        }
        joined(py, &bytes.as_bytes()[..count], &[])
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

/// Writes all bytes with `write`, whose argument is what is left.
fn write_all(bytes: &[u8], mut write: impl FnMut(&[u8], u64) -> Result<usize>) -> Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match write(&bytes[done..], done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[pymethods]
impl File {
    /// Reads up to `len_bytes` bytes at the position; b"" at the end of the file.
    fn read<'py>(&self, py: Python<'py>, len_bytes: ByteCount) -> PyResult<Bound<'py, PyBytes>> {
        self.read_bytes(py, len_bytes, |process, fd, buf| process.read(fd, buf))
    }

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
        self.read_bytes(py, len_bytes, |process, fd, buf| {
            process.pread(fd, buf, offset.0)
        })
    }

    /// Reads into a buffer at the position; returns the number of bytes.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_buffer(py, buffer, |py, bytes| {
            self.call(py, |process, fd| process.read(fd, bytes))
        })
    }

    /// Reads into a buffer at `offset`; returns the number of bytes.
    fn preadinto(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: ByteCount,
    ) -> PyResult<usize> {
        with_buffer(py, buffer, |py, bytes| {
            self.call(py, |process, fd| process.pread(fd, bytes, offset.0))
        })
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
            self.call(py, |process, fd| {
                write_all(bytes, |rest, _| process.write(fd, rest))
            })
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
            self.call(py, |process, fd| {
                write_all(bytes, |rest, done| {
                    process.pwrite(fd, rest, offset.0 + done)
                })
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
        self.state.is_closed() || self.fd.read().is_ok_and(|fd| fd.is_none())
    }

    /// Closes the descriptor. Writeback errors are reported here, too.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.closed() {
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
