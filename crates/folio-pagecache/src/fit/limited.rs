//! A workload in a control group, limited step by step and released at the end.

use super::group::{Group, Memory};
use super::guard::Guard;
use super::request::{Fit, wait, without_stdout};
use super::search::Subject;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The limit leaves room for the largest other memory of so many samples.
const REMEMBERED: usize = 20;
/// Seconds between SIGTERM and SIGKILL at the end.
const GRACE_S: f64 = 5.0;
/// Added to the limit each time that nothing more could be evicted, in bytes.
const RELIEF: u64 = 4 << 20;

/// The workload.
pub(super) struct Limited<'a> {
    pub(super) group: Group,
    /// The command that was started in the group.
    child: Option<Child>,
    guard: Option<Guard>,
    others: VecDeque<u64>,
    relief: u64,
    released: String,
    is_held: bool,
    start: Instant,
    stop: &'a AtomicBool,
}

impl<'a> Limited<'a> {
    /// Prepares a group that exists.
    pub(super) fn new(group: Group, fit: &Fit<'a>) -> io::Result<Self> {
        let released = group.limit()?;
        let guard = Guard::new(&group, None)?;
        Ok(Self::with(group, guard, released, fit))
    }

    /// Starts a command in a group of its own.
    pub(super) fn command(words: &[OsString], fit: &Fit<'a>) -> io::Result<Self> {
        let (group, own) = Group::create()?;
        let guard = Guard::new(&group, Some(own)).inspect_err(|_| {
            let _ = std::fs::remove_dir(&group.folder);
        })?;
        let released = group.version.unlimited.to_owned();
        let mut this = Self::with(group, guard, released, fit);
        let mut shell = Command::new("/bin/sh");
        shell
            .args([
                "-c",
                r#"command -v "$1" > /dev/null || exit 127; echo $$ > "$0" && exec "$@""#,
            ])
            .arg(this.group.folder.join("cgroup.procs"))
            .args(words);
        this.child = Some(without_stdout(&mut shell)?.spawn()?);
        Ok(this)
    }

    fn with(group: Group, guard: Guard, released: String, fit: &Fit<'a>) -> Self {
        Self {
            group,
            child: None,
            guard: Some(guard),
            others: VecDeque::new(),
            relief: 0,
            released,
            is_held: false,
            start: Instant::now(),
            stop: fit.stop,
        }
    }

    /// Returns how the command ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok()?
    }

    /// Ends all processes of the command.
    fn terminate(&mut self) {
        let Some(child) = &mut self.child else {
            return;
        };
        let group = &self.group;
        end(child, |signal| {
            let processes = group.processes();
            for process in &processes {
                if let Some(pid) = Pid::from_raw(process.cast_signed()) {
                    let _ = kill_process(pid, signal);
                }
            }
            !processes.is_empty()
        });
    }
}

/// Ends a command with SIGTERM, then SIGKILL. `send` signals all its processes and returns whether
/// there were any.
pub(super) fn end(child: &mut Child, mut send: impl FnMut(Signal) -> bool) {
    let start = Instant::now();
    let never = AtomicBool::new(false);
    let mut signal = Signal::TERM;
    loop {
        let is_empty = !send(signal);
        let has_ended = matches!(child.try_wait(), Ok(Some(_)) | Err(_));
        let seconds = start.elapsed().as_secs_f64();
        if (has_ended && is_empty) || seconds > 2.0 * GRACE_S {
            return;
        }
        if seconds > GRACE_S {
            signal = Signal::KILL;
        }
        wait(Duration::from_millis(20), &never);
    }
}

impl Subject for Limited<'_> {
    fn hold(&mut self, cache_bytes: Option<u64>) -> io::Result<()> {
        let Some(cache_bytes) = cache_bytes else {
            if self.is_held {
                self.is_held = false;
                self.group.set_limit(&self.released)?;
            }
            return Ok(());
        };
        if self.group.is_out_of_memory() {
            self.relief += RELIEF;
        }
        self.is_held = true;
        let other = self.others.iter().max().copied().unwrap_or(0);
        let bytes = cache_bytes + other + self.relief;
        // A limit that was there before is never exceeded.
        let before = self.released.parse().unwrap_or(u64::MAX);
        self.group.set_limit(&bytes.min(before).to_string())
    }

    fn memory(&mut self) -> io::Result<Option<Memory>> {
        let has_ended = match self.child {
            Some(_) => self.ended().is_some(),
            None => self.group.processes().is_empty(),
        };
        if has_ended {
            return Ok(None);
        }
        let memory = self.group.memory()?;
        self.others.push_back(memory.other_bytes);
        if self.others.len() > REMEMBERED {
            self.others.pop_front();
        }
        Ok(Some(memory))
    }

    fn wait(&mut self, seconds: f64) -> bool {
        wait(Duration::from_secs_f64(seconds), self.stop)
    }

    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        // The processes may need memory to end.
        let _ = self.group.set_limit(&self.released);
        self.terminate();
        drop(self.guard.take());
    }
}
