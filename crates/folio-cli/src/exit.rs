//! How a command ends: exit codes, and the failures that lead to them.

use folio::{Errno, Error};
use std::error::Error as StdError;

/// Exit codes, in the words of `folio help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0    all was done
  1    something could not be done; each failure was told
  2    the command line makes no sense
  3    an image cannot be used: not there, in use, damaged, or of an unknown kind
  130  stopped by Ctrl-C; the image is consistent
  141  nobody reads the output any more
Those of folio check are e2fsck's, those of folio image compare and check qemu-img's, and folio doctor
ends with 1 if it found a fault and with 3 if it could not look: see their help.

An image and a path inside it are written IMAGE:/path; IMAGE alone means IMAGE:/. IMAGE@2:/path names the
second partition. Sizes are numbers with K, M, G or T, which count in 1024.";

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All was done.
    Done,
    /// Something could not be done.
    Failed,
    /// The command line makes no sense.
    Usage,
    /// An image cannot be used.
    Image,
    /// A check found errors, and left them.
    ErrorsLeft,
    /// A check could not be made.
    NotChecked,
    /// The command line of a check makes no sense.
    CheckUsage,
    /// A fault was found.
    FaultFound,
    /// Something could not be looked at.
    NotProbed,
    /// A code that qemu-img's command of the same name has.
    QemuImg(u8),
    /// Ctrl-C.
    Interrupted,
    /// Nobody reads the output any more.
    BrokenPipe,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Image => 3,
            Exit::ErrorsLeft => 4,
            Exit::NotChecked => 8,
            Exit::CheckUsage => 16,
            Exit::FaultFound => 1,
            Exit::NotProbed => 3,
            Exit::QemuImg(code) => code,
            Exit::Interrupted => 130,
            Exit::BrokenPipe => 141,
        })
    }
}

/// How a command line that makes no sense ends: `check` has e2fsck's exit codes.
pub(crate) fn usage_of(mut words: impl Iterator<Item = std::ffi::OsString>) -> Exit {
    let mut command = words.next();
    while let Some(word) = command.take_if(|word| word.as_encoded_bytes().starts_with(b"-")) {
        // Options of all commands that another word belongs to.
        let has_word = ["-o", "--options", "--cache", "--color"]
            .iter()
            .any(|option| word == *option);
        command = words.nth(usize::from(has_word));
    }
    if command.is_some_and(|command| command == "check") {
        Exit::CheckUsage
    } else {
        Exit::Usage
    }
}

/// Why a command cannot go on.
#[derive(Debug)]
pub(crate) struct Failure {
    /// How the command ends.
    pub(crate) exit: Exit,
    /// What to tell; empty if it has been told.
    pub(crate) message: String,
}

/// The result of what a command does.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A command line that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Usage,
            message: message.into(),
        }
    }

    /// An image that cannot be used.
    pub(crate) fn image(error: &Error) -> Self {
        Self {
            exit: Exit::Image,
            message: explain(error),
        }
    }

    /// Something that could not be done.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Failed,
            message: message.into(),
        }
    }

    /// Stopped by Ctrl-C.
    pub(crate) fn interrupted() -> Self {
        Self {
            exit: Exit::Interrupted,
            message: String::new(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(explain(&error))
    }
}

/// Failures of the standard output.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self {
                exit: Exit::BrokenPipe,
                message: String::new(),
            };
        }
        Self::new(explain(&Error::io("standard output", error)))
    }
}

/// The error and the chain of its causes, in one line.
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
    text
}

/// Whether going on with other files is in vain after this failure.
pub(crate) fn is_final(error: &Error) -> bool {
    matches!(
        error.errno(),
        Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO | Errno::UCLEAN
    )
}
