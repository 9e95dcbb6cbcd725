//! Failures, with the exit codes of container tools.

use rustix::io::Errno;
use std::fmt::Display;

/// The reason why a command was not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code: one of the constants of this type.
    pub exit: u8,
    /// What failed, on what, why, and what to do.
    pub message: String,
    /// Whether this machine permits no user namespaces or no FUSE: it fails always.
    pub is_unsupported: bool,
}

impl Failure {
    /// Exit code: the command was not started.
    pub const NOT_STARTED: u8 = 125;
    /// Exit code: the command is not executable.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// Exit code: there is no such command.
    pub const NOT_FOUND: u8 = 127;

    /// Returns a failure before the command's start.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            exit: Self::NOT_STARTED,
            message: message.into(),
            is_unsupported: false,
        }
    }

    /// Returns this failure as one of a machine without user namespaces or FUSE, if the error says
    /// so.
    pub(crate) fn of_machine(mut self, errno: Errno) -> Self {
        const NAMESPACES_MAX: &str = "/proc/sys/user/max_user_namespaces";
        self.is_unsupported = match errno {
            Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::INVAL => true,
            Errno::NOENT | Errno::NODEV | Errno::NXIO => true,
            Errno::NOSPC => {
                std::fs::read_to_string(NAMESPACES_MAX).is_ok_and(|text| text.trim() == "0")
            }
            _ => false,
        };
        self
    }

    /// Returns the failure of an operation on `place`.
    pub(crate) fn at(what: &str, place: impl Display, errno: Errno) -> Self {
        Self::new(format!("{what} {place}: {}", describe(errno)))
    }

    /// Returns the failure of an operation.
    pub(crate) fn of(what: &str, errno: Errno) -> Self {
        Self::new(format!("{what}: {}", describe(errno)))
    }
}

/// Returns the text of an error number.
pub(crate) fn describe(errno: Errno) -> String {
    let mut text = std::io::Error::from(errno).to_string();
    if let Some(end) = text.find(" (os error") {
        text.truncate(end);
    }
    text
}
