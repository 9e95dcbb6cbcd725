//! A mount that a command serves in the foreground: started, asked for its request counts,
//! unmounted.

// The servers of other projects do not report when they are ready.
#![allow(clippy::disallowed_methods)]

use crate::measure::Said;
use crate::report::with_context;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a mount may take, and a reply to a signal.
const READY: Duration = Duration::from_secs(20);
/// How long a server may write after the unmount.
const END: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(2);

/// Numbers of FUSE requests by operation.
pub(crate) type Requests = BTreeMap<String, u64>;

/// A mount that is unmounted when the value drops.
pub(crate) struct Mounted {
    server: Child,
    said: Said,
    mount_point: PathBuf,
    /// `st_dev` of the folder below.
    device_below: u64,
    is_unmounted: bool,
}

impl Mounted {
    /// Mounts by a command that stays in the foreground, and waits until the mount is there.
    pub(crate) fn start(mut command: Command, mount_point: &Path) -> Result<Self, String> {
        fs::create_dir_all(mount_point).map_err(with_context(mount_point.display()))?;
        let name = command.get_program().to_string_lossy().into_owned();
        let device_below = rustix::fs::stat(mount_point)
            .map_err(with_context(mount_point.display()))?
            .st_dev;
        let said = Said::by(&mut command)?;
        // Ctrl-C of the terminal is for the bench, which then unmounts.
        let server = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(with_context(&name))?;
        let mut mounted = Self {
            server,
            said,
            mount_point: mount_point.to_owned(),
            device_below,
            is_unmounted: false,
        };
        let start = Instant::now();
        while !mounted.is_there() {
            let ended = mounted.server.try_wait().map_err(with_context(&name))?;
            if ended.is_some() || start.elapsed() > READY {
                let reason = mounted.said.explain("does not mount");
                // Its name says nothing: it is made up for this run.
                return Err(reason.replace(&format!("{}: ", mount_point.display()), ""));
            }
            std::thread::sleep(POLL);
        }
        Ok(mounted)
    }

    /// Returns a reason with the standard error of the server.
    pub(crate) fn explain(&self, reason: impl Into<String>) -> String {
        self.said.explain(reason)
    }

    /// Returns the requests that `folio mount` has counted so far: it prints them at SIGUSR1.
    pub(crate) fn requests(&mut self) -> Result<Requests, String> {
        let printed = |text: &str| text.matches(REQUESTS).count();
        let before = printed(&self.said.text());
        kill_process(Pid::from_child(&self.server), Signal::USR1)
            .map_err(with_context("signal"))?;
        let start = Instant::now();
        loop {
            let text = self.said.text();
            if printed(&text) > before && text.ends_with('\n') {
                return parse_requests(&text)
                    .ok_or_else(|| self.explain("request counts are not understood"));
            }
            let ended = self.server.try_wait().map_err(with_context("server"))?;
            if ended.is_some() || start.elapsed() > READY {
                return Err(self.explain("the server prints no request counts"));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Unmounts, and waits until the server has written everything and ended.
    pub(crate) fn unmount(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            match self.unmount_once() {
                Ok(()) => break,
                // A process that has just ended still holds a file for a moment.
                Err(_) if start.elapsed() < READY => std::thread::sleep(POLL),
                Err(reason) => return Err(self.explain(reason)),
            }
        }
        self.is_unmounted = true;
        match self.wait(END) {
            Some(true) => Ok(()),
            Some(false) => Err(self.explain("the server failed")),
            None => Err(self.explain("the server does not end")),
        }
    }

    fn unmount_once(&self) -> Result<(), String> {
        let path = &self.mount_point;
        match rustix::mount::unmount(path, UnmountFlags::empty()) {
            Err(Errno::PERM) => self.run_fusermount("-u"),
            unmounted => unmounted.map_err(with_context("umount")),
        }
    }

    fn run_fusermount(&self, flags: &str) -> Result<(), String> {
        let mut helper = Command::new("fusermount3");
        helper.arg(flags).arg(&self.mount_point);
        let status = helper.stderr(Stdio::null()).status();
        match status.map_err(with_context("fusermount3"))? {
            status if status.success() => Ok(()),
            status => Err(format!("fusermount3: {status}")),
        }
    }

    /// Waits for the end of the server; returns whether it succeeded, or `None` after `limit`.
    fn wait(&mut self, limit: Duration) -> Option<bool> {
        let start = Instant::now();
        while start.elapsed() < limit {
            match self.server.try_wait() {
                Ok(None) => std::thread::sleep(POLL),
                ended => return Some(matches!(ended, Ok(Some(status)) if status.success())),
            }
        }
        None
    }

    /// Returns whether the mount exists. A server that ended leaves a mount that fails every stat.
    fn is_there(&self) -> bool {
        !rustix::fs::stat(&self.mount_point).is_ok_and(|found| found.st_dev == self.device_below)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A drop cannot report a failure; a mount that cannot be undone stays visible to the user.
        // After an unmount another server may have mounted there.
        if !self.is_unmounted
            && self.is_there()
            && rustix::mount::unmount(&self.mount_point, UnmountFlags::DETACH).is_err()
        {
            let _ = self.run_fusermount("-uz");
        }
        if self.wait(END).is_none() {
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}

/// The start of a line of request counts.
const REQUESTS: &str = "requests: ";

/// Reads the last line of request counts.
fn parse_requests(text: &str) -> Option<Requests> {
    let (_, line) = text
        .lines()
        .rev()
        .find_map(|line| line.split_once(REQUESTS))?;
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
        assert_eq!(
            counts.into_iter().collect::<Vec<_>>(),
            [("INIT".to_owned(), 1), ("READ".to_owned(), 20)]
        );
        assert!(parse_requests("nothing\n").is_none());
        assert!(parse_requests("requests: INIT x\n").is_none());
    }
}
