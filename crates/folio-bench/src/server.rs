//! Servers that a command runs in the foreground, and the mounts that some of them serve.

// The servers of other projects do not report when they are ready.
#![allow(clippy::disallowed_methods)]

use crate::command::ErrorOutput;
use crate::outcome::{Context, Outcome};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start, and to reply to a signal.
const READY: Duration = Duration::from_secs(20);
/// How long a server may write after the unmount.
const END: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(2);

/// A server, which ends with the value.
pub(crate) struct Server {
    child: Child,
    errors: ErrorOutput,
}

impl Server {
    /// Starts a server and waits until it is ready; the error begins with `failure`.
    pub(crate) fn start(
        mut command: Command,
        failure: &str,
        is_ready: impl Fn() -> bool,
    ) -> Outcome<Self> {
        let errors = ErrorOutput::of(&mut command)?;
        // Ctrl-C of the terminal is for the bench, which then stops the server.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn().at(command.get_program())?;
        let mut server = Self { child, errors };
        let start = Instant::now();
        while !is_ready() {
            if server.child.try_wait()?.is_some() || start.elapsed() > READY {
                return Err(server.explain(failure).into());
            }
            std::thread::sleep(POLL);
        }
        Ok(server)
    }

    /// Returns a reason with the standard error of the server.
    pub(crate) fn explain(&self, reason: &str) -> String {
        self.errors.explain(reason)
    }

    /// User and system time of the server so far (proc(5), stat).
    pub(crate) fn cpu_seconds(&self) -> Outcome<f64> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(&path).at(&path)?;
        // The name before it may hold anything.
        let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
        Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Waits for the end of the server; returns whether it succeeded, or `None` after `limit`.
    fn wait(&mut self, limit: Duration) -> Option<bool> {
        let start = Instant::now();
        while start.elapsed() < limit {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(POLL),
                ended => return Some(matches!(ended, Ok(Some(status)) if status.success())),
            }
        }
        None
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        if self.wait(READY).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Numbers of FUSE requests by operation.
pub(crate) type Requests = BTreeMap<String, u64>;

/// A mount by a server; it is unmounted when the value drops.
pub(crate) struct Mounted {
    server: Server,
    mount_point: PathBuf,
    /// `st_dev` of the folder below.
    device_below: u64,
    is_unmounted: bool,
}

impl Mounted {
    /// Mounts by a command that stays in the foreground, and waits until the mount is there.
    pub(crate) fn start(command: Command, mount_point: &Path) -> Outcome<Self> {
        fs::create_dir_all(mount_point).at(mount_point)?;
        let device_below = rustix::fs::stat(mount_point).at(mount_point)?.st_dev;
        let is_ready = || is_mounted(mount_point, device_below);
        let server = Server::start(command, "does not mount", is_ready).map_err(|reason| {
            // The name of the mount point says nothing: it is made up for this run.
            let name = format!("{}: ", mount_point.display());
            reason.to_string().replace(&name, "")
        })?;
        Ok(Self {
            server,
            mount_point: mount_point.to_owned(),
            device_below,
            is_unmounted: false,
        })
    }

    /// Returns a reason with the standard error of the server.
    pub(crate) fn explain(&self, reason: &str) -> String {
        self.server.explain(reason)
    }

    /// Returns the requests that `folio mount` has counted so far: it prints them at SIGUSR1.
    pub(crate) fn requests(&mut self) -> Outcome<Requests> {
        let printed = |text: &str| text.matches(REQUESTS).count();
        let before = printed(&self.server.errors.text());
        kill_process(Pid::from_child(&self.server.child), Signal::USR1).at("signal")?;
        let start = Instant::now();
        loop {
            let text = self.server.errors.text();
            if printed(&text) > before && text.ends_with('\n') {
                let requests = parse_requests(&text);
                return Ok(
                    requests.ok_or_else(|| self.explain("request counts are not understood"))?
                );
            }
            if self.server.child.try_wait()?.is_some() || start.elapsed() > READY {
                return Err(self.explain("the server prints no request counts").into());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Unmounts, and waits until the server has written everything and ended.
    pub(crate) fn unmount(&mut self) -> Outcome {
        let start = Instant::now();
        while let Err(reason) = self.unmount_once() {
            // A process that has just ended still holds a file for a moment.
            if start.elapsed() > READY {
                return Err(self.explain(&reason.to_string()).into());
            }
            std::thread::sleep(POLL);
        }
        self.is_unmounted = true;
        match self.server.wait(END) {
            Some(true) => Ok(()),
            Some(false) => Err(self.explain("the server failed").into()),
            None => Err(self.explain("the server does not end").into()),
        }
    }

    fn unmount_once(&self) -> Outcome {
        match rustix::mount::unmount(&self.mount_point, UnmountFlags::empty()) {
            Err(Errno::PERM) => self.run_fusermount("-u"),
            unmounted => unmounted.at("umount"),
        }
    }

    fn run_fusermount(&self, flags: &str) -> Outcome {
        let mut helper = Command::new("fusermount3");
        helper
            .arg(flags)
            .arg(&self.mount_point)
            .stderr(Stdio::null());
        match helper.status().at("fusermount3")? {
            status if status.success() => Ok(()),
            status => Err(format!("fusermount3: {status}").into()),
        }
    }
}

/// Returns whether the mount exists. A server that ended leaves a mount that fails every stat.
fn is_mounted(mount_point: &Path, device_below: u64) -> bool {
    !rustix::fs::stat(mount_point).is_ok_and(|found| found.st_dev == device_below)
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A drop cannot report a failure; a mount that cannot be undone stays visible to the user.
        // After an unmount another server may have mounted there.
        if !self.is_unmounted
            && is_mounted(&self.mount_point, self.device_below)
            && rustix::mount::unmount(&self.mount_point, UnmountFlags::DETACH).is_err()
        {
            let _ = self.run_fusermount("-uz");
        }
        let _ = self.server.wait(END);
    }
}

/// The start of a line of request counts.
const REQUESTS: &str = "requests: ";

/// Reads the last line of request counts.
fn parse_requests(text: &str) -> Option<Requests> {
    let mut lines = text.lines().rev();
    let (_, line) = lines.find_map(|line| line.split_once(REQUESTS))?;
    let pairs = line.split(", ").map(|pair| {
        let (name, count) = pair.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_of_request_counts_is_read() {
        let text =
            "ready\nfolio: mount: requests: INIT 1\nfolio: mount: requests: INIT 1, READ 20\n";
        let counts = parse_requests(text).expect("counts");
        assert_eq!((counts["INIT"], counts["READ"], counts.len()), (1, 20, 2));
        assert!(parse_requests("nothing\n").is_none());
        assert!(parse_requests("requests: INIT x\n").is_none());
    }
}
