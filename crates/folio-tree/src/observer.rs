//! The caller's view of a running copy: progress, failures of single files, and a stop.

use folio::{Error, ErrorKind};
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

/// The side of a copy that an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The files that are read.
    Source,
    /// The files that are written.
    Target,
}

/// A failure of one file of a copy.
#[derive(Debug)]
pub struct CopyFailure {
    /// The side that failed.
    pub side: Side,
    /// The path of the file on that side; empty for the whole side.
    pub path: Vec<u8>,
    /// Why it failed.
    pub error: Error,
}

impl CopyFailure {
    /// A failure to read a file.
    pub fn of_source(path: impl Into<Vec<u8>>, error: impl Into<Error>) -> Self {
        Self {
            side: Side::Source,
            path: path.into(),
            error: without_argument(error.into()),
        }
    }

    /// A failure to write a file.
    pub fn of_target(path: impl Into<Vec<u8>>, error: impl Into<Error>) -> Self {
        Self {
            side: Side::Target,
            path: path.into(),
            error: without_argument(error.into()),
        }
    }

    /// Adds what failed to the error.
    #[must_use]
    pub(crate) fn at(mut self, place: String) -> Self {
        self.error = self.error.at(place);
        self
    }
}

/// Returns the error of a call without its argument, which is only the last part of a path.
fn without_argument(error: Error) -> Error {
    if error.kind() != ErrorKind::Errno || error.place().is_none() {
        return error;
    }
    let plain = Error::new(error.errno(), error.reason());
    match error.detail() {
        Some(detail) => plain.about(detail.clone()),
        None => plain,
    }
}

impl fmt::Display for CopyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", String::from_utf8_lossy(&self.path))?;
        }
        write!(f, "{}", self.error)
    }
}

impl std::error::Error for CopyFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<CopyFailure> for Error {
    fn from(failure: CopyFailure) -> Self {
        if failure.path.is_empty() {
            return failure.error;
        }
        let path = String::from_utf8_lossy(&failure.path).into_owned();
        failure.error.at(path)
    }
}

impl From<CopyFailure> for io::Error {
    fn from(failure: CopyFailure) -> Self {
        Error::from(failure).into()
    }
}

/// Receives the events of a copy, which continues after failures of single files.
pub trait Observer: Sync {
    /// Bytes of content were copied.
    fn copied(&self, _len_bytes: u64) {}
    /// A file was created.
    fn created(&self) {}
    /// A file, or an attribute of it, could not be copied.
    fn failed(&self, failure: CopyFailure);
    /// A remark about a file, or about one whole side with an empty path.
    fn note(&self, _side: Side, _path: &[u8], _remark: &str) {}
    /// Whether the copy should find the number of bytes that it will read, by a walk of its own.
    fn wants_total(&self) -> bool {
        false
    }
    /// The copy will read this many bytes.
    fn expect(&self, _total_bytes: u64) {}
    /// Whether the copy should end early.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// An observer that keeps the first failure. Remarks, as about extended attributes that a target
/// does not support, go to the log (`tracing`).
#[derive(Debug, Default)]
pub struct FirstFailure(Mutex<Option<CopyFailure>>);

impl FirstFailure {
    /// Returns the failure, if there was one.
    ///
    /// # Errors
    ///
    /// The first failure.
    pub fn into_result(self) -> Result<(), CopyFailure> {
        let first = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        first.map_or(Ok(()), Err)
    }
}

impl Observer for FirstFailure {
    fn failed(&self, failure: CopyFailure) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(failure);
    }

    fn note(&self, _: Side, path: &[u8], remark: &str) {
        tracing::warn!(path = %String::from_utf8_lossy(path), "{remark}");
    }
}
