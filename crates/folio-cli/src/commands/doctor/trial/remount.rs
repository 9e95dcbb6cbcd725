//! Another option of a mounted file system, for the time of a run.
//!
//! A process of its own remounts. It restores the option when its input ends: with the trial,
//! however that ends.

use crate::exit::{Failure, Outcome};
use folio_doctor::shown_options;
use rustix::fs::CWD;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Set to the mount in the environment of the process that remounts.
const MOUNT_POINT: &str = "FOLIO_DOCTOR_REMOUNTS";
/// Set to the option that it restores.
const RESTORED: &str = "FOLIO_DOCTOR_RESTORES";

/// The process that remounts. Dropping it waits until the option is restored.
pub(super) struct Remounter {
    option: &'static str,
    restored: &'static str,
    child: Child,
    pipes: Option<Mutex<(ChildStdin, BufReader<ChildStdout>)>>,
}

impl Remounter {
    pub(super) fn start(
        mount_point: &Path,
        option: &'static str,
        restored: &'static str,
    ) -> Result<Self, String> {
        let start = || {
            Command::new(std::env::current_exe()?)
                .args(std::env::args_os().skip(1))
                .env(MOUNT_POINT, mount_point)
                .env(RESTORED, restored)
                // Ctrl-C at the terminal is for the command.
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        };
        let mut child = start().map_err(|error| error.to_string())?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let pipes =
            pipes.map(|(requests, answers)| Mutex::new((requests, BufReader::new(answers))));
        Ok(Self {
            option,
            restored,
            child,
            pipes,
        })
    }

    /// Sets the option of the cure.
    pub(super) fn apply(&self) -> Result<(), String> {
        self.set(self.option)
    }

    /// Sets the option that the file system had.
    pub(super) fn restore(&self) -> Result<(), String> {
        self.set(self.restored)
    }

    fn set(&self, option: &str) -> Result<(), String> {
        let Some(pipes) = &self.pipes else {
            return Err("the process that remounts has no input".to_owned());
        };
        let mut pipes = pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let (requests, answers) = &mut *pipes;
        let mut answer = String::new();
        writeln!(requests, "{option}")
            .and_then(|()| answers.read_line(&mut answer))
            .map_err(|error| format!("the process that remounts: {error}"))?;
        match answer.trim_end() {
            SET => Ok(()),
            "" => Err("the process that remounts has ended".to_owned()),
            why => Err(why.to_owned()),
        }
    }
}

impl Drop for Remounter {
    fn drop(&mut self) {
        self.pipes = None;
        // It prints how it failed itself.
        let _ = self.child.wait();
    }
}

/// The answer if the option is set.
const SET: &str = "set";

/// The work of the process that remounts.
pub(in super::super) struct Request {
    mount_point: OsString,
    restored: String,
}

/// Returns what this process is to remount, if anything.
pub(in super::super) fn requested() -> Option<Request> {
    Some(Request {
        mount_point: std::env::var_os(MOUNT_POINT)?,
        restored: std::env::var(RESTORED).ok()?,
    })
}

impl Request {
    /// Sets options until the input ends, then restores the first one.
    pub(in super::super) fn run(&self) -> Outcome {
        let before = shown_options(Path::new(&self.mount_point));
        let mut is_changed = false;
        let mut answers = io::stdout();
        for option in io::stdin().lines() {
            let Ok(option) = option else { break };
            let answer = match self.set(&option, &before) {
                Ok(()) => {
                    is_changed = option != self.restored;
                    SET.to_owned()
                }
                Err(error) => error,
            };
            // Without a reader the input ends, too.
            let _ = writeln!(answers, "{answer}").and_then(|()| answers.flush());
        }
        if is_changed && let Err(error) = self.set(&self.restored, &before) {
            let (place, option) = (Path::new(&self.mount_point).display(), &self.restored);
            return Err(Failure::new(format!(
                "{error}; restore it by mount -o remount,{option} {place}"
            )));
        }
        Ok(())
    }

    /// Sets an option. Fails if the one that is restored leaves other options than `before`.
    fn set(&self, option: &str, before: &[String]) -> Result<(), String> {
        let mount_point = Path::new(&self.mount_point);
        let place = mount_point.display();
        set_option(mount_point, option)
            .map_err(|errno| format!("{place}: remount with {option}: {errno}"))?;
        let after = shown_options(mount_point);
        if option != self.restored || after == before {
            return Ok(());
        }
        let (after, before) = (after.join(","), before.join(","));
        Err(format!(
            "{place}: its options are {after} after the trial, not {before}"
        ))
    }
}

/// Changes one option of a file system, and no further one.
fn set_option(mount_point: &Path, option: &str) -> rustix::io::Result<()> {
    let picked = fspick(CWD, mount_point, FsPickFlags::FSPICK_CLOEXEC)?;
    fsconfig_set_flag(&picked, option)?;
    fsconfig_reconfigure(&picked)
}
