//! The loop of a tracer: the stops of its tracees, in the order in which the kernel reports them.

use super::counters;
use super::system::{self, Resume};
use super::threads::{Threads, now};
use crate::ring::Mapping;
use rustix::process::{WaitOptions, wait};
use std::collections::HashSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Stops at system calls have this bit in their signal.
const CALL_BIT: i32 = 0x80;
/// PTRACE_EVENT_STOP.
const EVENT_STOP: i32 = 128;
/// Events of all traced processes.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT;
/// Those of commands: the filter, and the end with the tracer.
const OPTIONS_OF_COMMANDS: i32 = OPTIONS | libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_EXITKILL;

/// The end of a traced process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// CLOCK_MONOTONIC when it ended, in nanoseconds.
    pub end_ns: u64,
}

/// What the tracing thread and its user share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Held while a stop is handled.
    threads: Mutex<Threads>,
    /// The tracer ends at the next stop.
    pub(super) should_stop: AtomicBool,
    /// Set at the end of the first process.
    pub(super) ended: OnceLock<Ended>,
}

impl Shared {
    pub(super) fn new(mapping: Mapping) -> Self {
        Self {
            threads: Mutex::new(Threads::new(mapping)),
            should_stop: AtomicBool::new(false),
            ended: OnceLock::new(),
        }
    }

    pub(super) fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process tree, in the thread that traces it.
pub(super) struct Tracing {
    root: u32,
    shared: Arc<Shared>,
    /// How threads go on outside of calls that are recorded.
    between_calls: Resume,
}

impl Tracing {
    /// Traces the process of a command, which has not started its program.
    pub(super) fn command(root: u32, shared: Arc<Shared>) -> io::Result<Self> {
        system::seize(root, OPTIONS_OF_COMMANDS)?;
        shared.threads().add_command(root);
        Ok(Self {
            root,
            shared,
            between_calls: Resume::Run,
        })
    }

    /// Traces all threads of a process that runs already.
    pub(super) fn running(root: u32, shared: Arc<Shared>) -> io::Result<Self> {
        let (mut tried, mut seized) = (HashSet::new(), Vec::new());
        loop {
            let mut tids = counters::threads(root);
            tids.retain(|tid| tried.insert(*tid));
            if tids.is_empty() {
                break;
            }
            for tid in tids {
                match system::seize(tid, OPTIONS) {
                    Ok(()) => seized.push(tid),
                    // It has ended, or is the child of a thread that is traced by now.
                    Err(_) if tid != root => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if seized.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // While they run: a server may have many open files.
        shared.threads().add_running(root, &seized);
        for tid in &seized {
            // One that has ended is reported by a wait.
            let _ = system::interrupt(*tid);
        }
        Ok(Self {
            root,
            shared,
            between_calls: Resume::ToCall,
        })
    }

    /// Handles stops until all tracees have ended, or until `should_stop`.
    pub(super) fn run(&self) {
        // Not the children of other threads of this process.
        let flags = libc::__WALL | libc::__WNOTHREAD;
        let options = WaitOptions::from_bits_retain(flags as u32);
        while !self.shared.should_stop.load(Ordering::Acquire) {
            match wait(options) {
                Ok(Some((pid, status))) => {
                    self.changed(pid.as_raw_nonzero().get() as u32, status.as_raw());
                }
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// A thread has stopped or ended.
    fn changed(&self, tid: u32, status: i32) {
        let mut threads = self.shared.threads();
        if !libc::WIFSTOPPED(status) {
            threads.remove(tid);
            if tid == self.root {
                let status = ExitStatus::from_raw(status);
                let end_ns = now();
                // A process ends once.
                let _ = self.shared.ended.set(Ended { status, end_ns });
            }
            return;
        }
        threads.stopped(tid);
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        let mut passed = 0;
        match event {
            0 if signal == libc::SIGTRAP | CALL_BIT => threads.at_call(tid),
            0 => passed = signal,
            libc::PTRACE_EVENT_SECCOMP => threads.at_call(tid),
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                // Before the parent changes what the child inherits.
                threads.add(system::event_message(tid) as u32);
            }
            libc::PTRACE_EVENT_EXEC => threads.replace(tid),
            libc::PTRACE_EVENT_EXIT => threads.ends(tid),
            EVENT_STOP if signal != libc::SIGTRAP => {
                return system::resume(tid, Resume::Stopped, 0);
            }
            _ => threads.add(tid),
        }
        threads.resumes(tid);
        let how = if threads.is_in_call(tid) {
            Resume::ToCall
        } else {
            self.between_calls
        };
        system::resume(tid, how, passed);
    }
}
