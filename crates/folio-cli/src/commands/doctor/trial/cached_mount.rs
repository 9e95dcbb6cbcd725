//! A mount by `folio mount` over a server's mount, in the mount namespace of the calling thread.
//!
//! Its server has a process group of its own, as Ctrl-C at the terminal is for the command. It ends
//! with the thread that started it, and so with the doctor: the kernel sends SIGTERM then
//! (PR_SET_PDEATHSIG), which detaches the mount.

use crate::exit::{Failure, Outcome};
use crate::session::Session;
use crate::user_command::{Ended, Reported, Running, wait_readable};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Names, attributes and pages are valid for a second; other programs change the server's files.
const OPTIONS: &str = "allow_other,ttl=1s,cache=writethrough";
/// Longest wait for a mount.
const READY_MAX: Duration = Duration::from_secs(30);
/// Longest wait for the last user of a mount.
const END_MAX: Duration = Duration::from_secs(5);

/// Set to the process of the doctor in the environment of the server.
const DOCTOR: &str = "FOLIO_DOCTOR_MOUNTS";
/// Set to what the server mounts.
const SOURCE: &str = "FOLIO_DOCTOR_MOUNT_SOURCE";
/// Set to where it mounts it.
const MOUNT_POINT: &str = "FOLIO_DOCTOR_MOUNT_POINT";

/// The mount; dropping it unmounts.
pub(super) struct CachedMount<'a> {
    mount_point: PathBuf,
    server: Running,
    is_mounted: bool,
    session: &'a Session,
}

impl<'a> CachedMount<'a> {
    pub(super) fn new(
        source: &Path,
        mount_point: &Path,
        session: &'a Session,
    ) -> Result<Self, String> {
        let start = || {
            let mut server = Command::new(std::env::current_exe()?);
            server
                .args(std::env::args_os().skip(1))
                .env(DOCTOR, getpid().to_string())
                .env(SOURCE, source)
                .env(MOUNT_POINT, mount_point)
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            Running::spawn(&mut server)
        };
        let failed = |error| format!("folio mount: {error}");
        let mut server = start().map_err(failed)?;
        let out = server.child.stdout.take();
        let mut this = Self {
            mount_point: mount_point.to_owned(),
            server,
            is_mounted: false,
            session,
        };
        let mut line = String::new();
        if let Some(out) = out {
            let is_interrupted = || session.is_interrupted();
            match wait_readable(&out, Some(READY_MAX), &is_interrupted).map_err(failed)? {
                Reported::Readable => {}
                Reported::OutOfTime => {
                    let seconds = READY_MAX.as_secs();
                    return Err(format!(
                        "folio mount was not ready in {seconds} s: does the server of {} answer?",
                        source.display()
                    ));
                }
                Reported::Interrupted => return Err("interrupted".to_owned()),
            }
            BufReader::new(out).read_line(&mut line).map_err(failed)?;
        }
        this.is_mounted = !line.is_empty();
        if !this.is_mounted {
            return Err("folio mount failed over the mount".to_owned());
        }
        Ok(this)
    }

    /// Unmounts, and waits until all is written.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<(), String> {
        if !self.is_mounted {
            return Ok(());
        }
        self.is_mounted = false;
        let flags = rustix::mount::UnmountFlags::DETACH;
        rustix::mount::unmount(&self.mount_point, flags)
            .map_err(|errno| format!("unmount of {}: {errno}", self.mount_point.display()))?;
        let is_interrupted = || self.session.is_interrupted();
        match self.server.wait(Some(END_MAX), &is_interrupted) {
            Ok(Ended::Exited(status)) if status.success() => Ok(()),
            Ok(Ended::Exited(status)) => Err(format!("folio mount: {status}")),
            Ok(Ended::OutOfTime) => Err(format!(
                "folio mount over {} did not end within {} s: a process may still use it",
                self.mount_point.display(),
                END_MAX.as_secs()
            )),
            Ok(Ended::Interrupted) => Err("interrupted".to_owned()),
            Err(error) => Err(format!("folio mount: {error}")),
        }
    }
}

impl Drop for CachedMount<'_> {
    fn drop(&mut self) {
        // Its failure is that of the trial already. The end of `server` kills what is left.
        let _ = self.unmount();
    }
}

/// The work of the server.
pub(in super::super) struct Request {
    doctor: Option<Pid>,
    source: OsString,
    mount_point: OsString,
}

/// Returns what this process is to mount, if anything.
pub(in super::super) fn requested() -> Option<Request> {
    let doctor = std::env::var(DOCTOR).ok()?;
    Some(Request {
        doctor: doctor.parse().ok().and_then(Pid::from_raw),
        source: std::env::var_os(SOURCE)?,
        mount_point: std::env::var_os(MOUNT_POINT)?,
    })
}

impl Request {
    /// Becomes `folio mount`, which SIGTERM ends when the doctor has ended.
    pub(in super::super) fn run(&self) -> Outcome {
        set_parent_process_death_signal(Some(Signal::TERM)).map_err(std::io::Error::from)?;
        if getppid() != self.doctor {
            return Err(Failure::new("folio doctor has ended"));
        }
        let error = Command::new(std::env::current_exe()?)
            .args(["--quiet", "mount", "-o", OPTIONS, "--ready-fd", "1"])
            .args([&self.source, &self.mount_point])
            .env_remove(DOCTOR)
            .exec();
        Err(error.into())
    }
}
