//! Shares in a real guest: `folio share`, QEMU, a Linux kernel that mounts virtiofs, and a shell
//! script.
//!
//! ```text
//!   script in the guest --> its kernel --> QEMU --> folio share --> image --> e2fsck, debugfs
//!     image.rs      an ext4 image: every operation, both directions, guests in sequence
//!     directory.rs  a directory, changed by host and guest
//!     events.rs     changes of the host are events in the guest
//!     socket.rs     no guest: the socket, signals, and invalid monitors
//! ```

mod directory;
mod events;
mod image;
use crate::probe;
mod socket;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

/// A running `folio share`, killed on drop.
struct SharedSource {
    child: Child,
    socket: PathBuf,
    stderr: BufReader<ChildStderr>,
}

impl SharedSource {
    /// Shares `source` at a socket beside it.
    #[track_caller]
    fn new(source: &Path, args: &[&str]) -> Self {
        let socket = source.with_extension("sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        command
            .arg("share")
            .arg(source)
            .arg("--socket")
            .arg(&socket)
            .args(args);
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("folio runs");
        let mut stderr = BufReader::new(child.stderr.take().expect("standard error is a pipe"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("folio prints a line");
        assert!(
            line.contains("until Ctrl-C"),
            "folio share {}: {line}",
            source.display()
        );
        Self {
            child,
            socket,
            stderr,
        }
    }

    /// Ends the command by SIGTERM; it must succeed without a message.
    #[track_caller]
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let (status, stderr) = self.ended();
        assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
        assert!(!self.socket.exists(), "the socket still exists");
    }

    /// Waits for the command; returns its status and its output since it was ready.
    fn ended(&mut self) -> (ExitStatus, String) {
        let mut text = String::new();
        self.stderr
            .read_to_string(&mut text)
            .expect("folio prints text");
        (self.child.wait().expect("folio ends"), text)
    }
}

impl Drop for SharedSource {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
