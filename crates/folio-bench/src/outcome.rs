//! The error type of the measurements, and the place that an error names.

use std::error::Error;
use std::fmt::Display;
use std::path::Path;

/// A result whose error is a message for the user.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Puts the place of a failure before its reason.
pub(crate) trait Context<T> {
    /// Names a path, or the operation that failed.
    fn at(self, place: impl AsRef<Path>) -> Outcome<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn at(self, place: impl AsRef<Path>) -> Outcome<T> {
        self.map_err(|error| format!("{}: {error}", place.as_ref().display()).into())
    }
}
