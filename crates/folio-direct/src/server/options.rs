//! The options of a session, and the failure to start a command.

use super::view::View;
use folio::base::{Errno, Error};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// A command and what it sees.
#[derive(Debug, Clone)]
pub struct Options {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Variables besides those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// The place of the image.
    pub view: View,
    /// The working directory in the view; relative to `/` of the image, or to that of this process.
    pub working_directory: Option<PathBuf>,
}

/// A command that was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code, as of env(1).
    pub exit: u8,
    /// The reason.
    pub message: String,
}

impl Failure {
    /// The exit code of a command that folio could not start.
    const NOT_STARTED: u8 = 125;
    const NOT_EXECUTABLE: u8 = 126;
    const NOT_FOUND: u8 = 127;

    pub(super) fn new(message: String) -> Self {
        Self {
            exit: Self::NOT_STARTED,
            message,
        }
    }

    pub(super) fn of_program(name: &OsStr, errno: Errno) -> Self {
        let exit = match errno {
            Errno::NOENT | Errno::NOTDIR => Self::NOT_FOUND,
            _ => Self::NOT_EXECUTABLE,
        };
        let message = format!("{}: {}", name.display(), Error::from(errno));
        Self { exit, message }
    }
}
