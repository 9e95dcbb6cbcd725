//! Reads and writes at a position that threads can share.
//!
//! Libraries on fsspec, for example duckdb, call `seek()` and `read()` of one file object in many
//! threads, and hold the interpreter's lock from the one to the other. The pair is one step only if
//! no call in it releases that lock before the read has taken its position. So these methods are
//! native, and the position is here, not in the descriptor.

use crate::buffer::{with_buffer, with_bytes};
use crate::file::{File, in_parts};
use folio::Errno;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that `readline()` reads ahead.
const LINES_BYTES: usize = 64 << 10;

/// The position, and what `readline()` read ahead of it; every other call drops that.
#[derive(Default)]
struct Cursor {
    offset: u64,
    lines: Vec<u8>,
    /// The part of `lines` before the position.
    used: usize,
}

impl Cursor {
    fn move_to(&mut self, offset: u64) {
        self.lines.clear();
        self.used = 0;
        self.offset = offset;
    }

    /// Returns the line at the position, with its end, if the bytes read ahead have all of it.
    fn line(&mut self, len_max: usize) -> Option<&[u8]> {
        let rest = &self.lines[self.used..];
        let rest = &rest[..rest.len().min(len_max)];
        let end = rest.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let len = end.or_else(|| (rest.len() == len_max).then_some(len_max))?;
        self.used += len;
        self.offset += len as u64;
        Some(&self.lines[self.used - len..self.used])
    }
}

/// A position in an open file.
#[pyclass(frozen, module = "foliofs._native")]
pub(crate) struct Positioned {
    file: Py<File>,
    appends: bool,
    /// Never held across a call that releases the interpreter's lock.
    cursor: Mutex<Cursor>,
}

impl Positioned {
    fn cursor(&self) -> MutexGuard<'_, Cursor> {
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the position past `len` bytes; returns where they start.
    fn advance(&self, len: u64) -> u64 {
        let mut cursor = self.cursor();
        let start = cursor.offset;
        cursor.move_to(start.saturating_add(len));
        start
    }

    /// Corrects the position after a transfer of `done` bytes of `len`, unless another thread has
    /// moved it.
    fn settle(&self, start: u64, len: u64, done: usize) {
        let mut cursor = self.cursor();
        let done = done as u64;
        if done < len && cursor.offset == start.saturating_add(len) {
            cursor.move_to(start + done);
        }
    }

    /// Transfers `len` bytes at the position with `work`, which returns the number of bytes.
    fn transfer(&self, len: u64, work: impl FnOnce(u64) -> PyResult<usize>) -> PyResult<usize> {
        let start = self.advance(len);
        let done = work(start);
        self.settle(start, len, done.as_ref().map_or(0, |count| *count));
        done
    }
}

#[pymethods]
impl Positioned {
    #[new]
    fn new(file: Py<File>, appends: bool) -> Self {
        Self {
            file,
            appends,
            cursor: Mutex::default(),
        }
    }

    /// Moves the position: os.SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE.
    #[pyo3(signature = (offset, whence=0, /))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let file = self.file.get();
        file.check_open()?;
        let known = match whence {
            0 => Some(offset),
            1 => self
                .cursor()
                .offset
                .checked_add_signed(offset)
                .map(|to| to.cast_signed()),
            _ => None,
        };
        let to = match known.map(u64::try_from) {
            Some(Ok(to)) => to,
            Some(Err(_)) => return Err(invalid_offset(offset)),
            None if whence == 1 => return Err(invalid_offset(offset)),
            None => file.seek(py, offset, whence)?,
        };
        self.cursor().move_to(to);
        Ok(to)
    }

    /// Reads up to `len_bytes` bytes, all up to the end of the file without it.
    #[pyo3(signature = (len_bytes=-1, /), text_signature = "($self, len_bytes=-1, /)")]
    fn read<'py>(&self, py: Python<'py>, len_bytes: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.file.get();
        let Some(len) = len_bytes.filter(|len| *len >= 0) else {
            return self.readall(py);
        };
        let mut bytes = None;
        self.transfer(len.cast_unsigned(), |start| {
            let read = bytes.insert(file.pread_full(py, len.cast_unsigned(), start)?);
            Ok(read.as_bytes().len())
        })?;
        Ok(bytes.unwrap_or_else(|| PyBytes::new(py, b"")))
    }

    fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let start = self.advance(0);
        let bytes = self.file.get().readall_from(py, start)?;
        self.cursor().move_to(start + bytes.as_bytes().len() as u64);
        Ok(bytes)
    }

    /// Reads into a buffer; returns the number of bytes.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_buffer(py, buffer, |py, bytes| {
            self.transfer(bytes.len() as u64, |start| {
                self.file.get().pread_into(py, bytes, start)
            })
        })
    }

    /// Reads a line with its end, or up to `len_bytes` bytes of it; b"" at the end of the file.
    #[pyo3(signature = (len_bytes=-1, /), text_signature = "($self, len_bytes=-1, /)")]
    fn readline<'py>(
        &self,
        py: Python<'py>,
        len_bytes: Option<i64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.file.get();
        file.check_open()?;
        let len_max =
            len_bytes.map_or(usize::MAX, |len| usize::try_from(len).unwrap_or(usize::MAX));
        if let Some(line) = self.cursor().line(len_max) {
            return Ok(PyBytes::new(py, line));
        }
        let (start, mut lines) = {
            let mut cursor = self.cursor();
            let used = std::mem::take(&mut cursor.used);
            (cursor.offset, cursor.lines.split_off(used))
        };
        loop {
            let old = lines.len();
            let more = old.max(LINES_BYTES);
            lines.resize(old + more, 0);
            let at = start + old as u64;
            let count = file.call(py, |process, fd| process.pread(fd, &mut lines[old..], at))?;
            lines.truncate(old + count);
            let mut cursor = self.cursor();
            cursor.move_to(start);
            cursor.lines = std::mem::take(&mut lines);
            if let Some(line) = cursor.line(len_max) {
                return Ok(PyBytes::new(py, line));
            }
            if count == 0 {
                let rest = std::mem::take(&mut cursor.lines);
                cursor.move_to(start + rest.len() as u64);
                return Ok(PyBytes::new(py, &rest));
            }
            lines = std::mem::take(&mut cursor.lines);
        }
    }

    /// Writes all bytes, or raises OSError; returns their number.
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_bytes(py, buffer, |py, bytes| {
            let file = self.file.get();
            let mut done = 0;
            let start = self.advance(bytes.len() as u64);
            let written = in_parts(py, bytes.len(), |range| {
                let at = start + range.start as u64;
                let count = file.call(py, |process, fd| process.pwrite(fd, &bytes[range], at))?;
                done += count;
                Ok(count)
            });
            self.settle(start, bytes.len() as u64, done);
            written?;
            if self.appends {
                let end = file.seek(py, 0, 2)?;
                self.cursor().move_to(end);
            }
            Ok(done)
        })
    }
}

fn invalid_offset(offset: i64) -> PyErr {
    let text = format!("expected an offset within the file, not {offset}");
    PyOSError::new_err((Errno::INVAL.raw_os_error(), text))
}
