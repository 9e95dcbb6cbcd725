//! The calls of programs that the preloaded library does not reach: system calls, by ptrace(2).
//!
//! ```text
//!   [`Tracer`]       a thread that traces a process tree, and writes into the ring
//!      tracing.rs    its loop: stops and ends of the tree's threads
//!      threads.rs    the threads of the tree: their calls and counters as records
//!      table.rs      the table of calls by number, and the filter of seccomp(2) that stops at them
//!      counters.rs   /proc                  system.rs    ptrace(2)
//!      program.rs    whether a program needs this
//! ```
//!
//! A command starts with the filter: further system calls do not stop. It ends with the tracer, as
//! the filter fails its calls without one. A process that runs already has no filter: each of its
//! system calls stops twice. It survives the tracer, which only has to end its thread: the kernel
//! then detaches from all of its tracees, stopped or not, and interrupts none.

mod counters;
mod program;
mod system;
mod table;
mod threads;
mod tracing;

pub use program::{Reach, reach};
pub use threads::now;
pub use tracing::Ended;

use crate::ring::Ring;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use system::Program;
use table::{ARCHITECTURE, Table};
use tracing::{Shared, Tracing};

/// A process tree that is traced, by a thread of its own.
#[derive(Debug)]
pub struct Tracer {
    pid: u32,
    shared: Arc<Shared>,
    thread: JoinHandle<io::Result<()>>,
}

impl Tracer {
    /// Starts a command whose file calls are recorded into `ring`, with those of its children. They
    /// are killed if this process ends before them.
    ///
    /// # Errors
    /// If the command cannot be started or traced, `Unsupported` on another architecture than
    /// x86-64, and `InvalidInput` for a command with an environment of its own.
    pub fn spawn(mut command: Command, ring: &Ring) -> io::Result<Self> {
        let shared = shared_if_supported(ring)?;
        let (mut own, mut child) = UnixStream::pair()?;
        let mut result = own.try_clone()?;
        let program = Program::of(&command)?;
        let mut filter = Table::new().filter();
        // The standard library waits for a child that reports a failure, and would take its stops
        // from the tracer. So this child starts its program itself.
        system::before_program(&mut command, move || {
            child.write_all(&std::process::id().to_ne_bytes())?;
            child.read_exact(&mut [0])?;
            let error = match system::install(&mut filter) {
                Ok(()) => program.execute(),
                Err(error) => error,
            };
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            let _ = child.write_all(&number.to_ne_bytes());
            system::leave()
        });
        let for_thread = shared.clone();
        let thread = start(move || {
            let mut pid = [0; 4];
            own.read_exact(&mut pid)?;
            let pid = u32::from_ne_bytes(pid);
            let tracing = Tracing::command(pid, for_thread);
            let tracing = tracing.inspect_err(|_| {
                // The child does not start its program. A socket that is closed already is fine.
                let _ = own.shutdown(Shutdown::Both);
            })?;
            own.write_all(&[0])?;
            drop(own);
            tracing.run();
            Ok(())
        })?;
        let spawned = command.spawn();
        // With its end of the socket, which a new program closes, too.
        drop(command);
        let mut number = [0; 4];
        let started = spawned.and_then(|child| match result.read_exact(&mut number) {
            Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number))),
            Err(_) => Ok(child.id()),
        });
        let pid = match started {
            Ok(pid) => pid,
            Err(error) => {
                let is_end = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
                let of_tracer = join(thread).err().filter(|error| !is_end(error));
                return Err(of_tracer.unwrap_or(error));
            }
        };
        Ok(Self {
            pid,
            shared,
            thread,
        })
    }

    /// Traces the threads of a process that runs already, and of the children that it starts from
    /// now on. It goes on as before when the tracer ends, however that does.
    ///
    /// # Errors
    /// If the process does not exist or may not be traced, `InvalidInput` for a thread that is not
    /// the first of its process, and `Unsupported` on another architecture than x86-64.
    pub fn attach(pid: u32, ring: &Ring) -> io::Result<Self> {
        match counters::process_of(pid) {
            Some((leader, _)) if leader == pid => {}
            Some((leader, _)) => {
                let why = format!("{pid} is a thread of process {leader}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            None => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
        let shared = shared_if_supported(ring)?;
        let for_thread = shared.clone();
        let (report, attached) = mpsc::sync_channel(1);
        let thread = start(move || {
            let (result, tracing) = match Tracing::running(pid, for_thread) {
                Ok(tracing) => (Ok(()), Some(tracing)),
                Err(error) => (Err(error), None),
            };
            // `attach` waits for it.
            let _ = report.send(result);
            if let Some(tracing) = tracing {
                tracing.run();
            }
            Ok(())
        })?;
        let result = attached.recv();
        result.unwrap_or_else(|_| Err(io::ErrorKind::Interrupted.into()))?;
        Ok(Self {
            pid,
            shared,
            thread,
        })
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns how and when the process ended; `None` while it runs.
    ///
    /// # Errors
    /// If the tracing thread failed.
    pub fn ended(&self) -> io::Result<Option<Ended>> {
        let is_finished = self.thread.is_finished();
        match self.shared.ended.get() {
            None if is_finished => Err(io::Error::other("the tracer has failed")),
            ended => Ok(ended.copied()),
        }
    }

    /// Returns whether all processes have ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of all processes of a command.
    ///
    /// # Errors
    /// If the tracing thread failed.
    pub fn join(self) -> io::Result<()> {
        join(self.thread)
    }

    /// Ends the trace of a process that ran already, and records its counters. The kernel detaches
    /// from it at its next system call, or at the end of this process.
    ///
    /// # Errors
    /// If the tracing thread failed.
    pub fn detach(self) -> io::Result<()> {
        self.shared.should_stop.store(true, Ordering::Release);
        if self.ended()?.is_none() {
            self.shared.threads().leave(self.pid);
        }
        Ok(())
    }
}

fn shared_if_supported(ring: &Ring) -> io::Result<Arc<Shared>> {
    if ARCHITECTURE == 0 {
        let why = "system calls are traced on x86-64 only";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(Arc::new(Shared::new(ring.map()?)))
}

fn start<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new()
        .name("folio-tracer".into())
        .spawn(run)
}

fn join(thread: JoinHandle<io::Result<()>>) -> io::Result<()> {
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the tracer has panicked")))
}
