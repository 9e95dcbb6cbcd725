//! Commands of the user, run by the shell: `--setup`, `--run`, `--check`.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest time without a look at Ctrl-C.
const POLL: Duration = Duration::from_millis(50);
/// Bytes of output that are kept for a reason.
const OUTPUT_MAX: u64 = 64 << 10;

/// The places that a command is given in its environment.
#[derive(Clone, Copy, Default)]
pub(crate) struct Places<'a> {
    /// `$MNT`: where the disk is mounted.
    pub(crate) mount: Option<&'a Path>,
    /// `$ACKED`: what the program had printed before the cut.
    pub(crate) acked: Option<&'a Path>,
}

/// How a command ended.
pub(crate) enum Ended {
    Exited(ExitStatus),
    /// Killed, because its time was over.
    OutOfTime,
    /// Killed, because of Ctrl-C.
    Interrupted,
}

/// A running command, with a process group of its own. Dropping it kills all that is left of it.
pub(crate) struct Running {
    pub(crate) child: Child,
    group: Option<Pid>,
}

impl Running {
    /// Starts a command.
    pub(crate) fn start(
        command: &str,
        places: Places<'_>,
        stdout: Stdio,
        stderr: Stdio,
    ) -> io::Result<Self> {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr);
        if let Some(mount) = places.mount {
            shell.env("MNT", mount);
        }
        match places.acked {
            Some(acked) => shell.env("ACKED", acked),
            None => shell.env_remove("ACKED"),
        };
        Self::spawn(&mut shell)
    }

    /// Starts a program.
    pub(crate) fn spawn(program: &mut Command) -> io::Result<Self> {
        let child = program.process_group(0).spawn()?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Self { child, group })
    }

    /// Returns its process group.
    pub(crate) fn group(&self) -> Option<Pid> {
        self.group
    }

    /// Waits until the command ends, or kills it when `limit` is over or `is_interrupted` returns
    /// true.
    pub(crate) fn wait(
        &mut self,
        limit: Option<Duration>,
        is_interrupted: &dyn Fn() -> bool,
    ) -> io::Result<Ended> {
        let group = self.group.ok_or(io::ErrorKind::NotFound)?;
        let process = pidfd_open(group, PidfdFlags::empty())?;
        let reported = wait_readable(&process, limit, is_interrupted)?;
        if reported != Reported::Readable {
            self.kill();
        }
        let status = self.child.wait()?;
        Ok(match reported {
            Reported::Readable => Ended::Exited(status),
            Reported::OutOfTime => Ended::OutOfTime,
            Reported::Interrupted => Ended::Interrupted,
        })
    }

    /// Kills what is left of the command.
    fn kill(&self) {
        // Without any process there is nothing to do.
        let _ = self
            .group
            .map(|group| kill_process_group(group, Signal::KILL));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        // Reaps it; a process that has ended already reports that again.
        let _ = self.child.wait();
    }
}

/// How a wait for a descriptor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reported {
    /// It has something to read, or its other side is closed.
    Readable,
    OutOfTime,
    /// By Ctrl-C.
    Interrupted,
}

/// Waits until a descriptor is readable, for `limit`, or until `is_interrupted` returns true.
pub(crate) fn wait_readable(
    descriptor: impl AsFd,
    limit: Option<Duration>,
    is_interrupted: &dyn Fn() -> bool,
) -> io::Result<Reported> {
    let end = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = end.map_or(POLL, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(Reported::OutOfTime);
        }
        if is_interrupted() {
            return Ok(Reported::Interrupted);
        }
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: left.min(POLL).as_nanos() as i64,
        };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(Reported::Readable),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    Consistent,
    /// The last line that the check printed, else how it ended.
    Wrong(String),
    /// Interrupted by Ctrl-C.
    Interrupted,
}

/// Runs a check, with its output in the finding.
pub(crate) fn check(
    command: &str,
    places: Places<'_>,
    limit: Duration,
    is_interrupted: &dyn Fn() -> bool,
) -> io::Result<Finding> {
    let mut output = tempfile::tempfile()?;
    let (stdout, stderr) = (output.try_clone()?, output.try_clone()?);
    let mut running = Running::start(command, places, stdout.into(), stderr.into())?;
    let ended = running.wait(Some(limit), is_interrupted)?;
    drop(running);
    let why = match ended {
        Ended::Interrupted => return Ok(Finding::Interrupted),
        Ended::Exited(status) if status.success() => return Ok(Finding::Consistent),
        Ended::Exited(status) => status.to_string(),
        Ended::OutOfTime => return Ok(Finding::Wrong(format!("no end after {limit:?}"))),
    };
    let len = output.seek(SeekFrom::End(0))?;
    output.seek(SeekFrom::Start(len.saturating_sub(OUTPUT_MAX)))?;
    let mut text = Vec::new();
    output.take(OUTPUT_MAX).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    Ok(Finding::Wrong(
        line.map_or(why, |line| line.trim().to_owned()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;

    fn check_at_once(command: &str, limit_ms: u64) -> Finding {
        let places = Places {
            mount: Some(Path::new("/m")),
            acked: Some(Path::new("/a")),
        };
        check(command, places, Duration::from_millis(limit_ms), &|| false).unwrap()
    }

    #[test]
    fn checks_report_their_last_line() {
        let wrong = |text: &str| Finding::Wrong(text.to_owned());
        assert_eq!(check_at_once("exit 0", 10_000), Finding::Consistent);
        assert_eq!(
            check_at_once("echo one; echo $MNT $ACKED >&2; exit 3", 10_000),
            wrong("/m /a")
        );
        assert_eq!(check_at_once("exit 3", 10_000), wrong("exit status: 3"));
        assert_eq!(check_at_once("cat", 10_000), Finding::Consistent);
        assert_eq!(
            check_at_once("echo wait; sleep 100", 10),
            wrong("no end after 10ms")
        );
    }

    #[test]
    fn wait_for_a_silent_pipe_ends() {
        let (silent, mut writer) = io::pipe().unwrap();
        let wait = |limit_ms, is_interrupted: bool| {
            let limit = Some(Duration::from_millis(limit_ms));
            wait_readable(&silent, limit, &|| is_interrupted).unwrap()
        };
        assert_eq!(wait(20, false), Reported::OutOfTime);
        assert_eq!(wait(100_000, true), Reported::Interrupted);
        io::Write::write_all(&mut writer, b"ready\n").unwrap();
        assert_eq!(wait(100_000, false), Reported::Readable);
        drop(writer);
        assert_eq!(wait(100_000, false), Reported::Readable);
    }

    #[test]
    fn interrupt_kills_the_check_and_its_children() {
        // The processes hold the write end of standard error, until they end.
        let (mut errors, stderr) = io::pipe().unwrap();
        let (output, stdout) = io::pipe().unwrap();
        let command = "sleep 100 & echo started; sleep 100";
        let places = Places::default();
        let mut running = Running::start(command, places, stdout.into(), stderr.into()).unwrap();
        let mut line = String::new();
        io::BufReader::new(output).read_line(&mut line).unwrap();
        let ended = running.wait(None, &|| true).unwrap();
        assert!(matches!(ended, Ended::Interrupted));
        assert_eq!(errors.read(&mut [0]).unwrap(), 0);
    }
}
