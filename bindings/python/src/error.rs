//! Folio's errors as OSError, whose subclass Python chooses by the errno.

use folio::{Errno, Error};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::error::Error as _;
use std::io;
use std::path::Path;

/// Returns the exception for a failed call on no, one or two paths: filename and filename2.
pub(crate) fn os_error(error: &Error, paths: &[&Path]) -> PyErr {
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
    exception(error.errno().raw_os_error(), &text, paths)
}

/// As [`os_error`], for the functions that imitate the standard library.
pub(crate) fn from_io(error: &io::Error, paths: &[&Path]) -> PyErr {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    if let Some(inner) = inner {
        return os_error(inner, paths);
    }
    let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    exception(errno, &error.to_string(), paths)
}

fn exception(errno: i32, text: &str, paths: &[&Path]) -> PyErr {
    // Python prints the filenames after the text.
    let prefixes = paths.iter().map(|path| format!("{}: ", path.display()));
    let text = prefixes.fold(text, |text, prefix| {
        text.strip_prefix(&prefix).unwrap_or(text)
    });
    let text = text.to_owned();
    let names: Vec<_> = paths
        .iter()
        .map(|path| path.as_os_str().to_owned())
        .collect();
    match names.as_slice() {
        [] => PyOSError::new_err((errno, text)),
        [name] => PyOSError::new_err((errno, text, name.clone())),
        // The fourth is the error number of Windows.
        [first, second, ..] => {
            PyOSError::new_err((errno, text, first.clone(), None::<i32>, second.clone()))
        }
    }
}

/// Returns an error for a value that a call of Folio does not take.
pub(crate) fn invalid(reason: &'static str) -> Error {
    Error::new(Errno::INVAL, reason)
}
