//! Runs a command with its file calls recorded, and splits its wall time by the causes of its
//! waits.
//!
//! ```text
//!   command --ring--> timeline.rs    processes, threads, the calls that waited
//!                        |
//!                     critical.rs    the path from start to end: of each wait for a child, the child
//!                     visit.rs       the time of one thread;  strip.rs  time by part and bucket
//!                     by_file.rs     the calls of a part;     lanes.rs  threads over time
//!                        |
//!                     [`Workload`]   parts that sum to the wall time; costs by cause and mount
//! ```

mod by_file;
pub(crate) mod confirm;
mod critical;
mod lanes;
pub(crate) mod large_calls;
pub(crate) mod last_sync;
mod mounted;
mod part;
mod reopen;
mod strip;
mod timeline;
mod visit;

pub use lanes::{Lane, Timeline};
pub use mounted::MountedOn;
pub use part::{Cost, FileCost, Part, Tiny, Unreached};
pub use strip::Strip;

use crate::probe::memory::During;
use critical::Split;
use folio_interpose::{Omission, Preload, Reach, Ring, Tracer, Tracker, now, reach};
use mounted::Mounted;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use strip::Interval;
use timeline::Timelines;

/// Pause of the reader when the ring is empty.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// How calls are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Recorder {
    /// A preloaded library times the calls of the C library.
    Preload,
    /// ptrace(2) stops each thread at its system calls.
    Ptrace,
}

/// The time of a command, by cause.
#[derive(Debug)]
pub struct Workload {
    /// How the command ended; `None` if it goes on.
    pub status: Option<ExitStatus>,
    /// When the recording began.
    pub started: SystemTime,
    /// How its calls were recorded.
    pub recorder: Recorder,
    /// Its set-user-id program did not get the rights of its owner.
    pub has_lost_privileges: bool,
    /// From its start to its end, in nanoseconds.
    pub wall_ns: u64,
    /// Nanoseconds of each part, in the order of [`Part::ALL`]; they sum to `wall_ns`.
    pub parts: Vec<(Part, u64)>,
    /// Costs by cause and mount, on the critical path.
    pub costs: Vec<Cost>,
    /// The files with the most time on the critical path, the costliest first.
    pub files: Vec<FileCost>,
    /// The run over time.
    pub timeline: Timeline,
    /// Files read or written by many small calls.
    pub tiny: Vec<Tiny>,
    /// Programs that were not recorded.
    pub unreached: Vec<Unreached>,
    /// The mounts of the files.
    pub mounts: Vec<MountedOn>,
    /// Processes that were recorded.
    pub processes: usize,
    /// Calls that found the ring full.
    pub dropped: u64,
    /// Pages that the machine read again after it had evicted them, if the kernel reports it.
    pub refaulted_pages: Option<u64>,
}

/// Records that are taken before the end of the command is looked for.
const BATCH: usize = 512;

/// Where the output of a command goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandOutput {
    /// To standard output.
    Inherited,
    /// To standard error, as standard output has the report.
    OnStandardError,
    /// It is read, and dropped. Its input is empty.
    Dropped,
}

/// How a command runs.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Where its output goes.
    pub output: CommandOutput,
    /// How its calls are recorded, if there is a choice.
    pub recorder: Recorder,
    /// What it leaves out, unless it is traced.
    pub omission: Option<Omission>,
    /// Its working directory, looked up again; else that of this process.
    pub folder: Option<PathBuf>,
    /// Whether temporary files are written after its end, beside the files that it syncs or writes
    /// in tiny buffers. They have a name for a moment if the file system lacks O_TMPFILE.
    pub may_write: bool,
}

/// Runs a command to its end and returns where its time went. It is traced if the options say so,
/// or if the preloaded library does not reach its program and tracing is possible. Of a traced
/// command, processes that stay behind are waited for, until `should_stop`, which ends them.
///
/// # Errors
/// If the command cannot be started or traced, or the library cannot be written.
pub fn record(
    words: &[OsString],
    options: &RunOptions,
    should_stop: &AtomicBool,
) -> io::Result<Workload> {
    let program = words.first().ok_or(io::ErrorKind::InvalidInput)?;
    let name = program.to_string_lossy();
    let reach = reach(program);
    let may_lose_privileges = reach == Reach::SetUserId && !rustix::process::geteuid().is_root();
    // A program that needs the rights of its owner runs as without the recorder.
    if options.recorder == Recorder::Ptrace || reach != Reach::Preloaded && !may_lose_privileges {
        match trace(command_of(words, options)?, &name, should_stop) {
            Err(error) if options.recorder == Recorder::Preload && is_refusal(&error) => {}
            found => {
                let mut found = found?;
                found.has_lost_privileges = may_lose_privileges;
                return Ok(found);
            }
        }
    }
    let mut command = command_of(words, options)?;
    let preload = Preload::create()?;
    let mut recording = Recording::begin()?;
    if let Some(omission) = options.omission {
        recording.ring.omit(omission);
    }
    preload.apply(&recording.ring, &mut command);
    let mut child = command.spawn()?;
    recording.tracker = Tracker::new(child.id(), &inherited());
    let end = recording.follow(child.id(), || {
        Ok(child.try_wait()?.map(|status| (Some(status), now())))
    })?;
    Ok(recording.finish(child.id(), &name, Recorder::Preload, end))
}

/// Runs a command to its end with its system calls traced.
fn trace(command: Command, name: &str, should_stop: &AtomicBool) -> io::Result<Workload> {
    let mut recording = Recording::begin()?;
    let tracer = Tracer::spawn(command, &recording.ring)?;
    let pid = tracer.pid();
    recording.tracker = Tracker::new(pid, &inherited());
    let end = recording.follow(pid, || end_of(&tracer))?;
    let found = recording.finish(pid, name, Recorder::Ptrace, end);
    // Processes that stay behind need the tracer.
    while !tracer.is_finished() {
        if should_stop.load(Ordering::Relaxed) {
            return Ok(found);
        }
        wait(None);
    }
    tracer.join()?;
    Ok(found)
}

fn command_of(words: &[OsString], options: &RunOptions) -> io::Result<Command> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    if let Some(folder) = &options.folder {
        command.current_dir(folder);
    }
    match options.output {
        CommandOutput::Inherited => {}
        CommandOutput::OnStandardError => {
            command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
        }
        CommandOutput::Dropped => {
            // Programs do less if their output is /dev/null (tar, grep).
            let (mut read, written) = io::pipe()?;
            std::thread::spawn(move || io::copy(&mut read, &mut io::sink()));
            let more = written.try_clone()?;
            command.stdin(Stdio::null()).stdout(written).stderr(more);
        }
    }
    Ok(command)
}

/// Returns whether this kernel, or this user, cannot trace.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
    )
}

/// Traces a process that runs already, and returns where its time went: until it ends, for this
/// time, or until `should_stop`. It goes on as before.
///
/// # Errors
/// If the process does not exist or may not be traced.
pub(crate) fn attach(pid: u32, limit: Duration, should_stop: &AtomicBool) -> io::Result<Workload> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut recording = Recording::begin()?;
    let tracer = Tracer::attach(pid, &recording.ring)?;
    recording.start_ns = now();
    let last_ns = recording.start_ns.saturating_add(limit.as_nanos() as u64);
    let mut end = recording.follow(pid, || {
        let is_over = should_stop.load(Ordering::Relaxed) || now() >= last_ns;
        Ok(end_of(&tracer)?.or_else(|| is_over.then(|| (None, now()))))
    })?;
    tracer.detach()?;
    // It may have ended before the clock was read here.
    end.1 = end.1.max(recording.start_ns);
    if end.0.is_none() {
        end.1 = now();
        recording.drain_pending();
    }
    Ok(recording.finish(pid, name.trim_end(), Recorder::Ptrace, end))
}

fn end_of(tracer: &Tracer) -> io::Result<Option<End>> {
    let ended = tracer.ended()?;
    Ok(ended.map(|ended| (Some(ended.status), ended.end_ns)))
}

/// How and when a process ended; without a status it goes on.
type End = (Option<ExitStatus>, u64);

/// The records of a process tree, while it runs.
struct Recording {
    ring: Ring,
    tracker: Tracker,
    timelines: Timelines,
    before: During,
    started: SystemTime,
    start_ns: u64,
}

impl Recording {
    fn begin() -> io::Result<Self> {
        Ok(Self {
            ring: Ring::create()?,
            tracker: Tracker::default(),
            timelines: Timelines::default(),
            before: During::so_far(),
            started: SystemTime::now(),
            start_ns: now(),
        })
    }

    /// Takes records until `end` returns the end of the process.
    fn follow(
        &mut self,
        pid: u32,
        mut end: impl FnMut() -> io::Result<Option<End>>,
    ) -> io::Result<End> {
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // One that a tracer has waited for is not found.
        let process = id.and_then(|id| rustix::process::pidfd_open(id, PidfdFlags::empty()).ok());
        loop {
            if let Some(found) = end()? {
                self.drain_pending();
                return Ok(found);
            }
            if self.drain(BATCH) == 0 {
                wait(process.as_ref());
            }
        }
    }

    /// Takes the records up to now: processes that stay behind may go on writing.
    fn drain_pending(&mut self) {
        let mut left = self.ring.pending();
        while left > 0 {
            let count = self.drain(left);
            if count == 0 {
                self.ring.skip();
            }
            left -= count.max(1);
        }
    }

    /// Takes at most this many records; returns how many there were.
    fn drain(&mut self, most: usize) -> usize {
        let mut count = 0;
        while count < most
            && let Some(record) = self.ring.take()
        {
            if let Some(event) = self.tracker.follow(&record, &self.ring) {
                self.timelines.add(&event, &self.tracker, &self.ring);
            }
            count += 1;
        }
        count
    }

    /// Splits the time up to the end of a process.
    fn finish(&self, pid: u32, name: &str, recorder: Recorder, end: End) -> Workload {
        let (status, end_ns) = end;
        let mut mounted = Mounted::read();
        let whole = Interval {
            from: self.start_ns,
            to: end_ns,
        };
        let mut split = Split::new(&self.timelines, &self.tracker, &mut mounted, whole);
        split.root(pid, whole, name);
        let (lanes, omitted) = lanes::lanes(&mut split, &self.ring);
        let found = split.finish();
        Workload {
            status,
            started: self.started,
            recorder,
            has_lost_privileges: false,
            wall_ns: end_ns - self.start_ns,
            parts: found.parts,
            costs: found.costs,
            files: found.files,
            timeline: Timeline {
                path: found.path,
                lanes,
                omitted,
            },
            tiny: found.tiny,
            unreached: found.unreached,
            mounts: mounted.into_mounts(),
            processes: self.timelines.processes.len(),
            dropped: self.ring.dropped(),
            refaulted_pages: During::so_far().since(self.before).refaulted_pages,
        }
    }
}

/// Waits for the end of the process, or for the pause.
fn wait(process: Option<&OwnedFd>) {
    let mut ends: Vec<_> = process
        .map(|process| PollFd::new(process, PollFlags::IN))
        .into_iter()
        .collect();
    // An interrupted wait is one more round.
    let _ = rustix::event::poll(&mut ends, Some(&PAUSE));
}

/// Returns the files that are open as standard streams.
fn inherited() -> Vec<(i32, PathBuf)> {
    let path = |fd: i32| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
    (0..3)
        .filter_map(|fd| Some((fd, path(fd).filter(|path| path.is_absolute())?)))
        .collect()
}
