//! A process that unmounts for a confined server, which can start no programs.
//!
//! The server starts it by its own command line and a variable of the environment, before it
//! confines itself. A request is a line on its standard input; the answer is a line on its standard
//! output: an error number, 0 for success, and a message. It ends with the server.

use crate::exit::Outcome;
use folio::{Errno, Error};
use folio_fuse::Unmounter;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Set to the mountpoint in the environment of the process that unmounts.
const TARGET: &str = "FOLIO_UNMOUNTS";
/// The request to detach a mount that is in use.
const LAZILY: &str = "lazily";
const AT_ONCE: &str = "at once";

/// The process, for the server.
pub(crate) struct UnmountProcess {
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    _child: Child,
}

impl UnmountProcess {
    /// Starts the process that unmounts `target`.
    pub(crate) fn start(target: &Path) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(TARGET, target)
            // Ctrl-C at the terminal is for the server.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Self {
            pipes: Mutex::new((requests, BufReader::new(answers))),
            _child: child,
        })
    }

    /// As [`Unmounter::unmount`].
    pub(crate) fn unmount(&self, lazily: bool) -> folio::Result<()> {
        let mut answer = String::new();
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let (requests, answers) = &mut *pipes;
        writeln!(requests, "{}", if lazily { LAZILY } else { AT_ONCE })
            .and_then(|()| answers.read_line(&mut answer))
            .map_err(|error| Error::io("the process that unmounts", error))?;
        match answer.trim_end().split_once(' ') {
            Some(("0", _)) => Ok(()),
            Some((errno, message)) => {
                let errno = errno.parse().map_or(Errno::IO, Errno::from_raw_os_error);
                Err(Error::new(errno, message.to_owned()))
            }
            None => Err(Error::new(Errno::IO, "the process that unmounts has ended")),
        }
    }
}

/// Returns the mountpoint if this process is to unmount.
pub(crate) fn requested() -> Option<PathBuf> {
    std::env::var_os(TARGET).map(Into::into)
}

/// Answers requests until the server ends.
pub(crate) fn run(target: &Path) -> Outcome {
    let unmounter = Unmounter::new(target.to_owned());
    for request in io::stdin().lines() {
        let answer = match unmounter.unmount(request? == LAZILY) {
            Ok(()) => "0 unmounted".to_owned(),
            // An answer is a line.
            Err(error) => {
                let message = error.to_string().replace('\n', " ");
                format!("{} {message}", error.errno().raw_os_error())
            }
        };
        let mut out = io::stdout();
        writeln!(out, "{answer}").and_then(|()| out.flush())?;
    }
    Ok(())
}
