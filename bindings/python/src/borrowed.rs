//! Cached pages of a file as a buffer of Python.

use crate::state::State;
use folio::syscall::Borrowed as Pages;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Bytes of a file in the page cache, for memoryview().
///
/// The bytes are the file's own, as with mmap(2) and MAP_SHARED: a write to the file changes them.
/// If the pages are not contiguous in memory, they are a copy. They outlive the file system.
#[pyclass(frozen, module = "foliofs")]
pub(crate) struct Borrowed {
    memory: Memory,
}

enum Memory {
    /// The pages, and their only slice.
    Lent {
        start: usize,
        len: usize,
        /// A child of fork(2) must not release them: a thread of its parent may hold a lock.
        pages: ManuallyDrop<Pages>,
        state: Arc<State>,
    },
    Copied(Vec<u8>),
}

impl Borrowed {
    pub(crate) fn new(state: Arc<State>, pages: Pages) -> Self {
        let read = pages.read();
        let slices: Vec<_> = read.slices().collect();
        let memory = match slices.as_slice() {
            [slice] => Ok((slice.as_ptr().expose_provenance(), slice.len())),
            slices => Err(slices.concat()),
        };
        drop(slices);
        drop(read);
        Self {
            memory: match memory {
                Ok((start, len)) => Memory::Lent {
                    start,
                    len,
                    pages: ManuallyDrop::new(pages),
                    state,
                },
                Err(bytes) => Memory::Copied(bytes),
            },
        }
    }

    fn place(&self) -> (usize, usize) {
        match &self.memory {
            Memory::Lent { start, len, .. } => (*start, *len),
            Memory::Copied(bytes) => (bytes.as_ptr().expose_provenance(), bytes.len()),
        }
    }
}

#[pymethods]
impl Borrowed {
    fn __len__(&self) -> usize {
        self.place().1
    }

    /// Whether the bytes are the pages themselves.
    #[getter]
    fn is_zero_copy(&self) -> bool {
        matches!(self.memory, Memory::Lent { .. })
    }

    #[expect(unsafe_code, reason = "the buffer protocol of Python passes pointers")]
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("borrowed pages are read only"));
        }
        let (start, len) = this.get().place();
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: Python passes a valid view. The memory lives as long as this object, to which the
        // view gets a reference.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, len as isize, 1, flags) };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(this.py()))
        }
    }
}

impl Drop for Memory {
    #[expect(unsafe_code, reason = "a child of fork(2) keeps the pages")]
    fn drop(&mut self) {
        if let Self::Lent { pages, state, .. } = self
            && state.is_own()
        {
            // SAFETY: the pages are not used again.
            unsafe { ManuallyDrop::drop(pages) };
        }
    }
}
