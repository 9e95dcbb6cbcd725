//! One run of the program: every write of the disk below it, every change that it made, and what it
//! had printed when.

use super::disk::RecordedDisk;
use super::fault::{Calls, Fault, Injector};
use super::kernel::KernelMount;
use super::mounted::{How, MountedDisk};
use crate::exit::{Failure, Outcome};
use crate::session::Session;
use crate::user_command::{Ended, Places, Running};
use folio::block::Device;
use folio::testing::{FaultDevice, PowerCutDisk};
use folio_fuse::{CallObserver, ObservedCall, ObservedKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time until the end of the program is seen.
const POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// What to run.
#[derive(Clone, Copy)]
pub(super) struct Program<'a> {
    /// Prepares the disk, which is then complete.
    pub(super) setup: Option<&'a str>,
    pub(super) run: &'a str,
    /// The program is killed after this time.
    pub(super) limit: Option<Duration>,
    /// A program with a fault may fail.
    pub(super) fault: Option<Fault>,
    pub(super) contender: &'a Contender,
}

/// A file system to run the program on.
pub(super) struct Contender {
    /// Whether it is the kernel's ext4.
    pub(super) is_kernel: bool,
    /// The words of `-o`.
    pub(super) options: String,
}

/// The file system of the program.
enum Mounted<'a> {
    Folio(MountedDisk),
    Kernel(KernelMount<'a>),
}

impl<'a> Mounted<'a> {
    /// Mounts a disk.
    fn new(
        device: Arc<dyn Device>,
        target: &'a Path,
        how: &How,
        contender: &Contender,
    ) -> Outcome<Self> {
        if !contender.is_kernel {
            return Ok(Self::Folio(MountedDisk::new(device, target, how)?));
        }
        let folder = target.with_file_name("disk");
        let mounted = KernelMount::new(
            device,
            target,
            &folder,
            &contender.options,
            how.observer.clone(),
        )?;
        Ok(Self::Kernel(mounted))
    }

    fn sync(&self, target: &Path) -> std::io::Result<()> {
        match self {
            Self::Folio(mounted) => mounted.fs().sync(),
            Self::Kernel(_) => sync_mount(target),
        }
    }

    /// Unmounts; returns the moment of the file at which the states end.
    fn close(self, disk: &RecordedDisk, target: &Path, has_fault: bool) -> Outcome<usize> {
        // After a failed commit nothing more can be written.
        let is_fatal = |error: Option<Errno>| {
            let is_of_fault = matches!(error, Some(Errno::IO | Errno::NOSPC | Errno::ROFS));
            !(has_fault && is_of_fault)
        };
        match self {
            Self::Folio(mounted) => {
                if let Err(error) = mounted.close()
                    && is_fatal(Some(error.errno()))
                {
                    return Err(error.into());
                }
                disk.device.mark_closed()?;
                Ok(disk.file.now())
            }
            Self::Kernel(mounted) => {
                if let Err(error) = sync_mount(target)
                    && is_fatal(Errno::from_io_error(&error))
                {
                    return Err(error.into());
                }
                // An unmount writes the superblock without the journal. Its torn writes, which
                // e2fsck repairs, are not about the program.
                let end = disk.file.now();
                mounted.close()?;
                disk.device.mark_closed()?;
                Ok(end)
            }
        }
    }
}

fn sync_mount(target: &Path) -> std::io::Result<()> {
    Ok(rustix::fs::syncfs(std::fs::File::open(target)?)?)
}

/// A change that the program made, as a system call. Moments are numbers of writes and flushes of
/// the disk, from the start of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) text: String,
    kind: ObservedKind,
    pub(super) begin: usize,
    /// `None` if it had not ended with the recording.
    pub(super) end: Option<usize>,
    /// Time from the start of the program.
    pub(super) at: Duration,
}

/// The record of a run.
pub(super) struct Recording {
    pub(super) disk: Arc<PowerCutDisk>,
    /// Size in bytes of the disk's file at the end; the rest is room, and empty in all states.
    pub(super) file_bytes: u64,
    /// The moment of the disk at which the program started.
    start: usize,
    /// Number of writes and flushes from then on, with those of the unmount.
    pub(super) writes: usize,
    pub(super) calls: Vec<Call>,
    /// Number of calls until the program had ended.
    calls_of_program: usize,
    /// Whether the program made the call that was to fail.
    pub(super) has_met_fault: bool,
    pub(super) fault: Option<Fault>,
    /// How the program failed after a fault.
    pub(super) failure: Option<String>,
    /// What the program printed.
    printed: Vec<u8>,
    /// Moments with the length of what had been printed then, both ascending.
    printed_at: Vec<(usize, usize)>,
    /// Duration of the program.
    pub(super) run_time: Duration,
}

impl Recording {
    /// Mounts `disk` at `target`, runs the program, and unmounts.
    ///
    /// # Errors
    /// Those of the mount and of the commands; of the program only without a fault.
    pub(super) fn new(
        disk: RecordedDisk,
        program: Program<'_>,
        target: &Path,
        how: &How,
        session: &Session,
    ) -> Outcome<Self> {
        let device = Arc::new(FaultDevice::new(disk.device.clone(), 0));
        let injector = program.fault;
        // On the kernel's ext4 the calls are those of the disk.
        let below = (!program.contender.is_kernel).then(|| device.clone());
        let injector = injector.map(|fault| Injector::new(fault, below));
        let log = Arc::new(CallLog::new(disk.file.clone(), injector));
        let how = How {
            observer: Some(log.clone()),
            ..how.clone()
        };
        let mounted = Mounted::new(device, target, &how, program.contender)?;
        let places = Places {
            mount: Some(target),
            acked: None,
        };
        if let Some(setup) = program.setup {
            // Standard output is for the result.
            let stderr = std::io::stderr().as_fd().try_clone_to_owned()?;
            let mut running = start("--setup", setup, places, stderr.into())?;
            let failure = end("--setup", &mut running, None, None, session)?;
            check_success("--setup", failure)?;
        }
        mounted
            .sync(target)
            .map_err(|error| Failure::new(format!("sync after --setup: {error}")))?;
        let start_moment = log.start();
        let started = Instant::now();
        let running = start("--run", program.run, places, Stdio::piped());
        log.set_group(running.as_ref().ok().and_then(Running::group));
        let mut running = running?;
        let printed = running.child.stdout.take();
        let has_ended = AtomicBool::new(false);
        let read = |out| read_printed(out, &disk.file, start_moment, &has_ended);
        let ((printed, printed_at), failure) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| printed.map(read));
            let ended = end("--run", &mut running, program.limit, program.fault, session);
            // What is left of the program has the pipe, and may keep it for ever.
            drop(running);
            has_ended.store(true, Ordering::Relaxed);
            let printed = reader.join().unwrap_or_default().unwrap_or_default();
            ended.map(|failure| (printed, failure))
        })?;
        let run_time = started.elapsed();
        let (calls_of_program, has_met_fault) = log.end();
        if program.fault.is_none() {
            check_success("--run", failure.clone())?;
        }
        let end = mounted.close(&disk, target, program.fault.is_some())?;
        Ok(Self {
            writes: end - start_moment,
            file_bytes: disk.file_bytes()?,
            disk: disk.file,
            start: start_moment,
            calls: log.take(),
            calls_of_program,
            has_met_fault,
            fault: program.fault,
            failure,
            printed,
            printed_at,
            run_time,
        })
    }

    /// Returns the number of calls of a kind that the program made.
    pub(super) fn count(&self, calls: Calls) -> u64 {
        let program = &self.calls[..self.calls_of_program.min(self.calls.len())];
        program.iter().filter(|call| calls.has(call.kind)).count() as u64
    }

    /// Returns the moment of the disk that is `write` writes after the start of the program.
    pub(super) fn moment(&self, write: usize) -> usize {
        self.start + write
    }

    /// Returns the number of writes between the start of the program and a moment of the disk.
    pub(super) fn write(&self, moment: usize) -> usize {
        moment.saturating_sub(self.start)
    }

    /// Returns what the program had printed before a cut after `write` writes. Bytes were read
    /// from the pipe after they were printed, so never too many.
    pub(super) fn acked(&self, write: usize) -> &[u8] {
        let count = self.printed_at.partition_point(|(at, _)| *at <= write);
        let len = count
            .checked_sub(1)
            .map_or(0, |last| self.printed_at[last].1);
        &self.printed[..len]
    }

    /// Returns the changes that had begun before a cut after `write` writes.
    pub(super) fn calls_before(&self, write: usize) -> &[Call] {
        let count = self.calls.partition_point(|call| call.begin <= write);
        &self.calls[..count]
    }
}

fn start(option: &str, command: &str, places: Places<'_>, stdout: Stdio) -> Outcome<Running> {
    let started = Running::start(command, places, stdout, Stdio::inherit());
    started.map_err(|error| Failure::new(format!("{option}: sh: {error}")))
}

/// Waits for a command; returns how it failed. One whose time is over has failed only with a fault.
fn end(
    option: &str,
    running: &mut Running,
    limit: Option<Duration>,
    fault: Option<Fault>,
    session: &Session,
) -> Outcome<Option<String>> {
    let ended = running.wait(limit, &|| session.is_interrupted());
    match ended.map_err(|error| Failure::new(format!("{option}: {error}")))? {
        Ended::Interrupted => Err(Failure::interrupted()),
        Ended::Exited(status) if !status.success() => Ok(Some(status.to_string())),
        Ended::Exited(_) => Ok(None),
        Ended::OutOfTime => Ok(fault.zip(limit).map(|(fault, limit)| {
            // A table has no room for it.
            session.note(format!("--fault {fault}: killed after {limit:?}"));
            format!("killed after {limit:?}")
        })),
    }
}

fn check_success(option: &str, failure: Option<String>) -> Outcome {
    failure.map_or(Ok(()), |status| {
        let text = format!("{option} failed without a power cut ({status})");
        Err(Failure::new(text))
    })
}

type Printed = (Vec<u8>, Vec<(usize, usize)>);

/// Reads what the program prints, and notes when: until the end of the pipe, or until the pipe is
/// empty after the program `has_ended`.
fn read_printed(
    mut out: ChildStdout,
    disk: &PowerCutDisk,
    start: usize,
    has_ended: &AtomicBool,
) -> Printed {
    let (mut printed, mut printed_at) = (Vec::new(), Vec::new());
    let mut buf = vec![0; 64 << 10];
    loop {
        // Before the poll: what the program has printed is in the pipe by then.
        let is_last = has_ended.load(Ordering::Relaxed);
        let mut ready = [PollFd::new(&out, PollFlags::IN)];
        match poll(&mut ready, Some(&POLL)) {
            Ok(0) if is_last => break,
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => break,
        }
        match out.read(&mut buf) {
            Ok(len @ 1..) => {
                // After the read: whatever was durable before the bytes were printed is recorded
                // by now.
                let moment = disk.now() - start;
                printed.extend_from_slice(&buf[..len]);
                printed_at.push((moment, printed.len()));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => break,
        }
    }
    (printed, printed_at)
}

/// Collects the changes of a mount from a start on.
struct CallLog {
    disk: Arc<PowerCutDisk>,
    started: Mutex<Option<(Instant, usize)>>,
    calls: Mutex<Vec<Call>>,
    injector: Option<Injector>,
}

impl CallLog {
    fn new(disk: Arc<PowerCutDisk>, injector: Option<Injector>) -> Self {
        Self {
            disk,
            injector,
            started: Mutex::new(None),
            calls: Mutex::default(),
        }
    }

    /// Begins to collect; returns the moment of the disk.
    fn start(&self) -> usize {
        let moment = self.disk.now();
        *lock(&self.started) = Some((Instant::now(), moment));
        moment
    }

    fn set_group(&self, group: Option<Pid>) {
        if let Some(injector) = &self.injector {
            injector.set_group(group);
        }
    }

    /// Ends the fault; returns the number of calls, and whether one of them had the fault.
    fn end(&self) -> (usize, bool) {
        let has_met_fault = self.injector.as_ref().is_some_and(Injector::end);
        (lock(&self.calls).len(), has_met_fault)
    }

    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut lock(&self.calls))
    }
}

impl CallObserver for CallLog {
    fn observe(&self, call: &ObservedCall, serve: &mut dyn FnMut()) -> Option<Errno> {
        let started = *lock(&self.started);
        let Some((time, moment)) = started else {
            serve();
            return None;
        };
        let number = {
            // The list is in the order of the moments.
            let mut calls = lock(&self.calls);
            calls.push(Call {
                text: call.text.clone(),
                kind: call.kind,
                begin: self.disk.now() - moment,
                end: None,
                at: time.elapsed(),
            });
            calls.len() - 1
        };
        let failed = match &self.injector {
            Some(injector) => injector.serve(call, serve),
            None => {
                serve();
                None
            }
        };
        if let Some(call) = lock(&self.calls).get_mut(number) {
            call.end = Some(self.disk.now() - moment);
            if let Some((_, why)) = failed {
                call.text += &format!(" = {why}");
            }
        }
        failed.map(|(errno, _)| errno)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
