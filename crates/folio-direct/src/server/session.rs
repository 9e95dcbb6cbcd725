//! A command that runs on an image, from its start to the end of its processes.

use super::door;
use super::options::{Failure, Options};
use super::registry::{ProcessState, Purpose, Registry};
use super::start::{First, LOADER_NAME};
use super::view::View;
use folio::Kernel;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long processes may take to end after SIGKILL.
const KILL_TIME: Duration = Duration::from_secs(10);
/// The number of the creator of the first process.
const SERVER: u64 = 0;

/// A running command, and the server that answers its calls.
pub struct Session {
    kernel: Arc<Kernel>,
    view: View,
    child: Child,
    registry: Arc<Registry>,
    door: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Session {
    /// Starts a command on the file systems of `kernel`, whose image is mounted at
    /// [`View::target`](super::View::target).
    ///
    /// # Errors
    /// If the program is not found, or the host refuses to start it.
    pub fn start(kernel: &Arc<Kernel>, options: &Options) -> Result<Self, Failure> {
        if crate::LOADER.is_empty() {
            let why = "this build has no loader: it needs Linux on x86-64";
            return Err(Failure::new(why.to_owned()));
        }
        if is_inside_another() {
            let why =
                "a command whose system calls folio answers cannot start another such command";
            return Err(Failure::new(why.to_owned()));
        }
        let joined = options.view.join_host(kernel);
        joined.map_err(|error| Failure::new(error.to_string()))?;
        let first = First::new(kernel, options)?;
        let cannot = |error: io::Error| Failure::new(format!("cannot serve: {error}"));
        let registry = Arc::new(Registry::default());
        let process = first
            .process
            .fork()
            .map_err(|error| Failure::new(error.to_string()))?;
        let token = registry
            .prepare(
                SERVER,
                ProcessState::new(process, None),
                Purpose::Child,
                None,
            )
            .map_err(cannot)?;
        let flags = SocketFlags::CLOEXEC;
        let (door, outside) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| cannot(error.into()))?;
        // The kernel adds the sender's process to each message.
        set_socket_passcred(&door, true).map_err(|error| cannot(error.into()))?;
        let child = first.start(options, token.unwrap_or_default(), outside.as_fd())?;
        drop(outside);
        let door = Arc::new(door);
        let thread = {
            let (registry, door) = (registry.clone(), door.clone());
            thread::Builder::new()
                .name("direct-door".to_owned())
                .spawn(move || door::serve(&registry, &door))
                .map_err(cannot)?
        };
        Ok(Self {
            kernel: kernel.clone(),
            view: options.view.clone(),
            child,
            registry,
            door,
            thread,
        })
    }

    /// Returns the process of the command.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the command, kills what it leaves, and closes its files. Returns its exit code, or
    /// 128 and the number of the signal that ended it.
    ///
    /// # Errors
    /// If the command cannot be waited for.
    pub fn wait(mut self) -> io::Result<u8> {
        let status = self.child.wait()?;
        self.registry.kill();
        self.registry.wait(KILL_TIME);
        // A process that never attached may have the other end still.
        let _ = shutdown(&*self.door, Shutdown::Both);
        // It does not panic.
        let _ = self.thread.join();
        self.registry.clear();
        self.registry.nodes.remove();
        self.view.leave_host(&self.kernel);
        let by_signal = || 128 + status.signal().unwrap_or_default();
        Ok(status.code().unwrap_or_else(by_signal) as u8)
    }
}

/// Returns whether this process is itself a program of a session: the loader is in its memory.
fn is_inside_another() -> bool {
    let mapped = fs::read("/proc/self/maps").unwrap_or_default();
    let name = LOADER_NAME.as_bytes();
    mapped.windows(name.len()).any(|part| part == name)
}
