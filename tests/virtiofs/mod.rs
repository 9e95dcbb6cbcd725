//! Shares in a real guest: `folio share`, QEMU, a Linux kernel that mounts virtiofs, and a script
//! that looks around.
//!
//! ```text
//!   script in the guest --> its kernel --> QEMU --> folio share --> image --> e2fsck, a look by debugfs
//!     image.rs      an ext4 image: every operation, both directions, and who comes after whom
//!     directory.rs  a directory of the host, which host and guest change
//!     socket.rs     no guest: the socket, signals, and monitors that break the rules
//! ```

mod directory;
mod image;
use crate::probe;
mod socket;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

/// A share, which ends with the value.
struct Shared {
    child: Child,
    socket: PathBuf,
    told: BufReader<ChildStderr>,
}

impl Shared {
    /// Shares `source` at a socket beside it.
    #[track_caller]
    fn new(source: &Path, words: &[&str]) -> Self {
        let socket = source.with_extension("sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        command
            .arg("share")
            .arg(source)
            .arg("--socket")
            .arg(&socket)
            .args(words);
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("folio runs");
        let mut told = BufReader::new(child.stderr.take().expect("standard error is a pipe"));
        let mut line = String::new();
        told.read_line(&mut line).expect("folio tells");
        assert!(
            line.contains("until Ctrl-C"),
            "folio share {}: {line}",
            source.display()
        );
        Self {
            child,
            socket,
            told,
        }
    }

    /// Ends it as an operator would, and nothing was wrong.
    #[track_caller]
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let (status, said) = self.ended();
        assert!(status.success() && said.is_empty(), "{status}: {said}");
        assert!(!self.socket.exists(), "the socket is gone");
    }

    /// How the command ended, and what it told since it was ready.
    fn ended(&mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        self.told
            .read_to_string(&mut said)
            .expect("folio tells text");
        (self.child.wait().expect("folio ends"), said)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
