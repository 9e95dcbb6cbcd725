//! Exit codes, and the failures that lead to them.

use folio::{Detail, Errno, Error, ErrorKind};
use std::error::Error as StdError;

/// The section on exit codes of `folio help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0    success
  1    an operation failed; each failure was printed
  2    usage error
  3    an image cannot be used: missing, in use, damaged, or of an unknown format
  130  interrupted by Ctrl-C; the image is consistent
  141  output pipe closed
folio check has the exit codes of e2fsck, folio image compare and folio image check those of qemu-img. folio doctor
ends with 1 if it found a fault, and with 3 if it could not examine a path. folio run has the exit code of the command
that it runs, or 125 to 127. See the help of these commands.

IMAGE:/path is a path inside an image; IMAGE alone means IMAGE:/. IMAGE@2:/path selects the second partition, and
IMAGE@root:/path the one with the label root. Sizes are numbers with K, M, G or T, in units of 1024.";

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Done,
    /// An operation failed.
    Failed,
    /// Usage error.
    Usage,
    /// An image cannot be used.
    Image,
    /// A check repaired all errors.
    Repaired,
    /// A check found errors and did not repair them.
    ErrorsLeft,
    /// A check failed to run.
    NotChecked,
    /// Usage error of a check.
    CheckUsage,
    /// A fault was found.
    FaultFound,
    /// A path could not be examined.
    NotProbed,
    /// An exit code of the qemu-img command with the same name.
    QemuImg(u8),
    /// The exit code of a command that `folio run` ran, or of its failure.
    Command(u8),
    /// Interrupted by Ctrl-C.
    Interrupted,
    /// Output pipe closed.
    BrokenPipe,
}

impl From<Exit> for u8 {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Image => 3,
            Exit::Repaired => 1,
            Exit::ErrorsLeft => 4,
            Exit::NotChecked => 8,
            Exit::CheckUsage => 16,
            Exit::FaultFound => 1,
            Exit::NotProbed => 3,
            Exit::QemuImg(code) | Exit::Command(code) => code,
            Exit::Interrupted => 130,
            Exit::BrokenPipe => 141,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(u8::from(exit))
    }
}

/// Returns the exit code of a usage error: `check` has those of e2fsck, `run` those of container
/// tools.
pub(crate) fn usage_of(mut words: impl Iterator<Item = std::ffi::OsString>) -> Exit {
    let mut command = words.next();
    while let Some(word) = command.take_if(|word| word.as_encoded_bytes().starts_with(b"-")) {
        // Global options with a value in the next argument.
        let has_word = [
            "-o",
            "--options",
            "--cache",
            "--color",
            "--endpoint-url",
            "--region",
            "--profile",
            "--addressing-style",
            "--io-timeout",
            "--part-cache",
            "--part-cache-size",
            "--backing-url",
        ]
        .iter()
        .any(|option| word == *option);
        command = words.nth(usize::from(has_word));
    }
    match command.as_ref().and_then(|command| command.to_str()) {
        Some("check") => Exit::CheckUsage,
        Some("run") => Exit::Command(folio_run::Failure::NOT_STARTED),
        _ => Exit::Usage,
    }
}

/// The reason why a command cannot continue.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    /// The message to print; empty if the failure has been printed already.
    pub(crate) message: String,
    /// The library's error behind it: callers match its detail, never the message.
    pub(crate) error: Option<Box<Error>>,
}

/// The result of a command, or of one of its steps.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with this exit code.
    pub(crate) fn exiting(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            error: None,
        }
    }

    /// A usage error.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::exiting(Exit::Usage, message)
    }

    /// A failed operation.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::exiting(Exit::Failed, message)
    }

    /// An image that cannot be used. If the host has no room for it, the operation failed.
    pub(crate) fn image(error: Error) -> Self {
        let is_full = error.kind() == ErrorKind::Io
            && matches!(error.errno(), Errno::NOSPC | Errno::DQUOT | Errno::FBIG);
        let exit = if is_full { Exit::Failed } else { Exit::Image };
        Self::exiting(exit, explain(&error)).caused_by(error)
    }

    /// Adds the error behind the failure.
    pub(crate) fn caused_by(mut self, error: Error) -> Self {
        self.error = Some(Box::new(error));
        self
    }

    /// Returns what the failure is about, if the library says so.
    pub(crate) fn detail(&self) -> Option<&Detail> {
        self.error.as_ref()?.detail()
    }

    /// Adds to the message what a user may do, if the failure is about this.
    pub(crate) fn hint(mut self, detail: &Detail, words: &str) -> Self {
        if self.detail() == Some(detail) {
            self.message.push_str(words);
        }
        self
    }

    /// Interrupted by Ctrl-C.
    pub(crate) fn interrupted() -> Self {
        Self::exiting(Exit::Interrupted, "")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.errno() {
            // Ctrl-C ended a wait.
            Errno::INTR => Self::interrupted(),
            _ => Self::new(explain(&error)).caused_by(error),
        }
    }
}

/// Failures of standard output.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::exiting(Exit::BrokenPipe, "");
        }
        Self::new(explain(&Error::io("standard output", error)))
    }
}

/// Formats the error and the chain of its causes in one line.
pub(crate) fn explain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let mut words = inner.to_string();
        if let Some(end) = words.find(" (os error") {
            words.truncate(end);
        }
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = inner.source();
    }
    text.push_str(host_hint(error));
    text
}

/// Returns what to do if the host has no room for an image.
fn host_hint(error: &Error) -> &'static str {
    if error.kind() != ErrorKind::Io {
        return "";
    }
    match error.errno() {
        Errno::NOSPC => "; the host's file system is full: free space there and repeat",
        Errno::DQUOT => "; the quota on the host is used up: free space there and repeat",
        Errno::FBIG => {
            "; the host's file system or ulimit -f allows no file of this size: use qcow2, which \
             grows with its content"
        }
        _ => "",
    }
}
