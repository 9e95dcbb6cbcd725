//! Memory of Python's objects, for reads into it and writes of it.

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

/// A view of an object's memory until it is dropped. Its address must not change: pointers of the
/// view may lead into it.
struct View(ffi::Py_buffer);

impl Drop for View {
    #[expect(unsafe_code, reason = "the buffer protocol of Python passes pointers")]
    fn drop(&mut self) {
        // SAFETY: the view was filled by PyObject_GetBuffer, or is empty, and the caller has the
        // interpreter's lock.
        unsafe { ffi::PyBuffer_Release(&raw mut self.0) };
    }
}

/// Runs `work` on start and length of an object's bytes, whatever the type of its elements.
///
/// # Errors
///
/// BufferError if the bytes are not contiguous, and for read-only ones with PyBUF_WRITABLE.
/// TypeError if the object has no bytes.
#[expect(unsafe_code, reason = "the buffer protocol of Python passes pointers")]
fn with_view<T>(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    flags: c_int,
    work: impl FnOnce(*mut u8, usize) -> PyResult<T>,
) -> PyResult<T> {
    let mut view = View(ffi::Py_buffer::new());
    // SAFETY: the object is alive, and the view is released once, where it is.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut view.0, flags) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let len = view.0.len.cast_unsigned();
    let start = view.0.buf.cast::<u8>();
    let start = if len == 0 {
        std::ptr::dangling_mut()
    } else {
        start
    };
    work(start, len)
}

/// Runs `work` on the bytes of a writable object.
///
/// # Errors
///
/// BufferError for read-only or scattered bytes, TypeError for an object without.
#[expect(unsafe_code, reason = "the buffer protocol of Python passes pointers")]
pub(crate) fn with_buffer<T>(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    work: impl FnOnce(Python<'_>, &mut [u8]) -> PyResult<T>,
) -> PyResult<T> {
    with_view(py, object, ffi::PyBUF_WRITABLE, |start, len| {
        // SAFETY: the view keeps the memory in place until `work` has returned. Other threads may
        // change the bytes meanwhile, as with readinto() of Python's own files.
        work(py, unsafe { std::slice::from_raw_parts_mut(start, len) })
    })
}

/// As [`with_buffer`], for reading.
///
/// # Errors
///
/// BufferError for scattered bytes, TypeError for an object without.
#[expect(unsafe_code, reason = "the buffer protocol of Python passes pointers")]
pub(crate) fn with_bytes<T>(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    work: impl FnOnce(Python<'_>, &[u8]) -> PyResult<T>,
) -> PyResult<T> {
    with_view(py, object, ffi::PyBUF_SIMPLE, |start, len| {
        // SAFETY: as in `with_buffer`.
        work(py, unsafe { std::slice::from_raw_parts(start, len) })
    })
}

/// Returns the bytes that `fill` writes: it gets memory for `len` bytes, and returns how many of
/// them, from the first one on, have a value.
///
/// # Errors
///
/// MemoryError, and what `fill` returns.
#[expect(
    unsafe_code,
    reason = "a large object is not cleared with the lock held"
)]
pub(crate) fn filled_bytes<'py>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> PyResult<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let new = |start: *const c_char, len: usize| {
        let len = isize::try_from(len).map_err(|_| PyMemoryError::new_err(()))?;
        // SAFETY: `start` is null, or points to `len` bytes.
        let object = unsafe { ffi::PyBytes_FromStringAndSize(start, len) };
        // SAFETY: the object is a new reference, or null with an exception.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
        Ok::<_, PyErr>(object.cast_into::<PyBytes>()?)
    };
    let bytes = new(std::ptr::null(), len)?;
    // SAFETY: the object is one of bytes.
    let start = unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) };
    // SAFETY: the object has room for `len` bytes, and no other reference yet.
    let memory = unsafe { std::slice::from_raw_parts_mut(start.cast(), len) };
    match fill(memory)? {
        count if count == len => Ok(bytes),
        count => new(start, count),
    }
}

/// Sets all bytes to 0.
#[expect(unsafe_code, reason = "memory of a new object of Python")]
pub(crate) fn cleared(memory: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    for byte in memory.iter_mut() {
        byte.write(0);
    }
    // SAFETY: every byte has a value.
    unsafe { &mut *(std::ptr::from_mut(memory) as *mut [u8]) }
}
