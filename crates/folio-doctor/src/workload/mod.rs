//! Runs a command with its file calls recorded, and splits its wall time by the causes of its
//! waits.
//!
//! ```text
//!   command --ring--> timeline.rs    processes, threads, the calls that waited
//!                        |
//!                     critical.rs    the path from start to end: of each wait for a child, the child
//!                        |
//!                     [`Workload`]   parts that sum to the wall time; costs by cause and mount
//! ```

mod critical;
mod mounted;
mod part;
mod timeline;

pub use mounted::MountedOn;
pub use part::{Cost, Part, Tiny, Unreached};

use crate::probe::memory::During;
use critical::Split;
use folio_interpose::{Preload, Ring, Tracker};
use mounted::Mounted;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use timeline::Timelines;

/// Pause of the reader when the ring is empty.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The time of a command, by cause.
#[derive(Debug)]
pub struct Workload {
    /// How the command ended.
    pub status: ExitStatus,
    /// From its start to its end, in nanoseconds.
    pub wall_ns: u64,
    /// Nanoseconds of each part, in the order of [`Part::ALL`]; they sum to `wall_ns`.
    pub parts: Vec<(Part, u64)>,
    /// Costs by cause and mount, on the critical path.
    pub costs: Vec<Cost>,
    /// Files read or written by many small calls.
    pub tiny: Vec<Tiny>,
    /// Programs that the preloaded library did not reach.
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
}

/// Runs a command to its end and returns where its time went.
///
/// # Errors
/// If the command cannot be started, or the library cannot be written.
pub fn run(words: &[OsString], output: CommandOutput) -> io::Result<Workload> {
    let [program, arguments @ ..] = words else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let preload = Preload::create()?;
    let mut ring = Ring::create()?;
    let mut command = Command::new(program);
    command.args(arguments);
    preload.apply(&ring, &mut command);
    if output == CommandOutput::OnStandardError {
        command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
    }
    let before = During::so_far();
    let start_ns = now();
    let mut child = command.spawn()?;
    let mut tracker = Tracker::new(child.id(), &inherited());
    let mut timelines = Timelines::default();
    let (status, end_ns) = follow(&mut child, &mut ring, &mut tracker, &mut timelines)?;
    let mut mounted = Mounted::read();
    let mut split = Split::new(&timelines, &tracker, &mut mounted);
    split.root(child.id(), start_ns, end_ns, &program.to_string_lossy());
    let found = split.finish();
    Ok(Workload {
        status,
        wall_ns: end_ns - start_ns,
        parts: found.parts,
        costs: found.costs,
        tiny: found.tiny,
        unreached: found.unreached,
        mounts: mounted.into_mounts(),
        processes: timelines.processes.len(),
        dropped: ring.dropped(),
        refaulted_pages: During::so_far().since(before).refaulted_pages,
    })
}

/// Takes records until the command has ended; returns how and when it did.
fn follow(
    child: &mut Child,
    ring: &mut Ring,
    tracker: &mut Tracker,
    timelines: &mut Timelines,
) -> io::Result<(ExitStatus, u64)> {
    let pid = Pid::from_child(child);
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        if let Some(status) = child.try_wait()? {
            let end_ns = now();
            drain_pending(ring, tracker, timelines);
            return Ok((status, end_ns));
        }
        let count = drain(ring, tracker, timelines, BATCH);
        if count == 0 {
            wait(&process);
        }
    }
}

/// Waits for the end of the process, or for the pause.
fn wait(process: &OwnedFd) {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    // An interrupted wait is one more round.
    let _ = rustix::event::poll(&mut ends, Some(&PAUSE));
}

/// Takes the records up to now: processes that stay behind may go on writing.
fn drain_pending(ring: &mut Ring, tracker: &mut Tracker, timelines: &mut Timelines) {
    let mut left = ring.pending();
    while left > 0 {
        let count = drain(ring, tracker, timelines, left);
        if count == 0 {
            ring.skip();
        }
        left -= count.max(1);
    }
}

/// Takes at most this many records; returns how many there were.
fn drain(ring: &mut Ring, tracker: &mut Tracker, timelines: &mut Timelines, most: usize) -> usize {
    let mut count = 0;
    while count < most
        && let Some(record) = ring.take()
    {
        if let Some(event) = tracker.follow(&record, ring) {
            timelines.add(&event, tracker, ring);
        }
        count += 1;
    }
    count
}

/// Returns the files that are open as standard streams.
fn inherited() -> Vec<(i32, PathBuf)> {
    let path = |fd: i32| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
    (0..3)
        .filter_map(|fd| Some((fd, path(fd).filter(|path| path.is_absolute())?)))
        .collect()
}

/// CLOCK_MONOTONIC, in nanoseconds.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
