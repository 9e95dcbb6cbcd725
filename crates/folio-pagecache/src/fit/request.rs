//! The parameters of a measurement, and its waits.

use super::report::Point;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Waits are split into parts of this length, between which the stop flag is read.
const TICK: Duration = Duration::from_millis(50);

/// The workload to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// A program and its arguments: started, measured, and ended with SIGTERM.
    Command(Vec<OsString>),
    /// A running process with its descendants.
    Process(u32),
    /// A control group: its folder, or its path below the mount of the memory controller.
    Group(PathBuf),
}

/// A measurement of the memory that a workload needs.
pub struct Fit<'a> {
    /// Refaults per second that are permitted.
    pub limit_per_s: f64,
    /// The most time that it takes.
    pub duration: Duration,
    /// Estimate from the residency of open files even where a control group could be limited.
    pub is_estimate: bool,
    /// In an estimate, drop the files from memory first.
    pub is_cold: bool,
    /// Ends the measurement when it becomes true.
    pub stop: &'a AtomicBool,
    /// Receives each point when it was measured.
    pub each: &'a mut dyn FnMut(&Point),
}

impl Fit<'_> {
    /// Waits; returns false if the measurement must stop.
    pub(super) fn wait(&self, seconds: f64) -> bool {
        wait(Duration::from_secs_f64(seconds), self.stop)
    }
}

/// Waits for the time or the stop flag; returns false for the flag.
pub(super) fn wait(time: Duration, stop: &AtomicBool) -> bool {
    let (_sender, never) = mpsc::channel::<()>();
    let end = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        let _ = never.recv_timeout(left.min(TICK));
    }
    false
}

/// Sends the output of a command to standard error: standard output is for the report.
pub(super) fn without_stdout(command: &mut Command) -> io::Result<&mut Command> {
    let stderr = std::io::stderr().as_fd().try_clone_to_owned()?;
    Ok(command.stdout(Stdio::from(stderr)))
}
