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
use std::sync::{Arc, OnceLock};

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
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The tracer ends at the next stop.
    pub(super) should_stop: AtomicBool,
    /// Set at the end of the first process.
    pub(super) ended: OnceLock<Ended>,
}

/// A process tree, in the thread that traces it.
pub(super) struct Tracing<'a> {
    root: u32,
    threads: Threads,
    shared: Arc<Shared>,
    /// How threads go on outside of calls that are recorded.
    between_calls: Resume,
    /// The ring, which the records are written to.
    _mapping: &'a Mapping,
}

impl<'a> Tracing<'a> {
    fn new(root: u32, mapping: &'a Mapping, shared: Arc<Shared>, between_calls: Resume) -> Self {
        Self {
            root,
            threads: Threads::new(mapping.writer()),
            shared,
            between_calls,
            _mapping: mapping,
        }
    }

    /// Traces the process of a command, which has not started its program.
    pub(super) fn command(
        root: u32,
        mapping: &'a Mapping,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        system::seize(root, OPTIONS_OF_COMMANDS)?;
        let mut tracing = Self::new(root, mapping, shared, Resume::Run);
        tracing.threads.add_command(root);
        Ok(tracing)
    }

    /// Traces all threads of a process that runs already.
    pub(super) fn running(
        root: u32,
        mapping: &'a Mapping,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let mut tracing = Self::new(root, mapping, shared, Resume::ToCall);
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
        for tid in &seized {
            // One that has ended is reported by a wait.
            let _ = system::interrupt(*tid);
        }
        tracing.threads.add_running(root, &seized);
        Ok(tracing)
    }

    /// Handles stops until all tracees have ended, or until `should_stop`.
    pub(super) fn run(&mut self) {
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
    fn changed(&mut self, tid: u32, status: i32) {
        if !libc::WIFSTOPPED(status) {
            self.threads.remove(tid);
            if tid == self.root {
                let status = ExitStatus::from_raw(status);
                let end_ns = now();
                // A process ends once.
                let _ = self.shared.ended.set(Ended { status, end_ns });
            }
            return;
        }
        self.threads.stopped(tid);
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        match event {
            0 if signal == libc::SIGTRAP | CALL_BIT => self.threads.at_call(tid),
            0 => return self.resume(tid, signal),
            libc::PTRACE_EVENT_SECCOMP => self.threads.at_call(tid),
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                // Before the parent changes what the child inherits.
                self.threads.add(system::event_message(tid) as u32);
            }
            libc::PTRACE_EVENT_EXEC => self.threads.replace(tid),
            libc::PTRACE_EVENT_EXIT => self.threads.ends(tid),
            EVENT_STOP if signal != libc::SIGTRAP => {
                return system::resume(tid, Resume::Stopped, 0);
            }
            _ => self.threads.add(tid),
        }
        self.resume(tid, 0);
    }

    fn resume(&mut self, tid: u32, signal: i32) {
        self.threads.resumes(tid);
        let how = if self.threads.is_in_call(tid) {
            Resume::ToCall
        } else {
            self.between_calls
        };
        system::resume(tid, how, signal);
    }
}
