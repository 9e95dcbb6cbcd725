//! Folio's errors as OSError, whose subclass Python chooses by the errno.

use folio::{Errno, Error};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::error::Error as _;
use std::io;
use std::path::Path;

/// Returns the exception for a failed call; `path` becomes its filename.
pub(crate) fn os_error(error: &Error, path: Option<&Path>) -> PyErr {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        let words = words.split(" (os error").next().unwrap_or_default();
        if !text.contains(words) {
            text = format!("{text}: {words}");
        }
        cause = inner.source();
    }
    exception(error.errno().raw_os_error(), &text, path)
}

/// As [`os_error`], for the functions that imitate the standard library.
pub(crate) fn from_io(error: &io::Error, path: Option<&Path>) -> PyErr {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    if let Some(inner) = inner {
        return os_error(inner, path);
    }
    let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    exception(errno, &error.to_string(), path)
}

fn exception(errno: i32, text: &str, path: Option<&Path>) -> PyErr {
    let Some(path) = path else {
        return PyOSError::new_err((errno, text.to_owned()));
    };
    // Python prints the filename after the text.
    let prefix = format!("{}: ", path.display());
    let text = text.strip_prefix(&prefix).unwrap_or(text).to_owned();
    PyOSError::new_err((errno, text, path.as_os_str().to_owned()))
}

/// Returns an error for a value that a call of Folio does not take.
pub(crate) fn invalid(reason: &'static str) -> Error {
    Error::new(Errno::INVAL, reason)
}
