//! Images served as network block devices: real clients, several connections, clients that violate
//! the protocol.
//!
//! ```text
//!   nbdinfo, nbdcopy, qemu-img, qemu-io, nbdsh  --.
//!   wire.rs: a client of raw bytes              --+-->  folio serve nbd  -->  image  -->  qemu-img check
//!     clients.rs   each operation, by foreign clients       protocol.rs  replies byte by byte
//!     sharing.rs   several connections, signals, locks      hostile.rs   invalid and malicious bytes
//! ```

mod clients;
mod hostile;
mod protocol;
mod sharing;
use crate::support;
mod wire;

use crate::support::tools::start_server;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use tempfile::TempDir;

/// A running server; dropping it kills it.
struct NbdServer {
    child: Child,
    uri: String,
    socket: PathBuf,
}

impl NbdServer {
    /// Serves `image` on a socket next to it.
    #[track_caller]
    fn new(image: &Path, words: &[&str]) -> Self {
        let socket = image.with_extension("sock");
        Self::start(
            image,
            &[&["--socket", socket.to_str().unwrap()], words].concat(),
        )
    }

    #[track_caller]
    fn start(image: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        command
            .args(["serve", "nbd", "--json"])
            .arg(image)
            .args(words);
        let (child, line) = start_server(&mut command);
        let ready: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        let uri = ready["uri"].as_str().unwrap().to_owned();
        Self {
            child,
            uri,
            socket: image.with_extension("sock"),
        }
    }

    fn signal(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Stops the server by SIGTERM, as an operator does.
    #[track_caller]
    fn stop(mut self) {
        self.signal();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(!self.socket.exists(), "the socket file still exists");
    }

    fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a command that has to fail; returns its standard error.
#[track_caller]
fn stderr_of_failure(command: &mut Command) -> String {
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success(), "{command:?} succeeds");
    stderr
}

/// Creates an image of 64 MiB, qcow2 or raw by its name: 0x11 at 1 MiB for 2 MiB, 0x22 at 63 MiB
/// for 1 MiB, holes elsewhere.
fn image(folder: &TempDir, name: &str) -> PathBuf {
    use folio::block::{ImageFormat, create};
    let path = folder.path().join(name);
    let format = if name.ends_with("qcow2") {
        ImageFormat::Qcow2
    } else {
        ImageFormat::Raw
    };
    let device = create(&path, format, 64 << 20).unwrap();
    device.write_at(&[0x11; 2 << 20], 1 << 20).unwrap();
    device.write_at(&[0x22; 1 << 20], 63 << 20).unwrap();
    device.flush().unwrap();
    path
}

/// Reads bytes of the disk in an image.
fn bytes(image: &Path, offset: u64, len: usize) -> Vec<u8> {
    let options = folio::block::OpenOptions {
        read_only: true,
        ..Default::default()
    };
    let device = folio::block::open(image, &options).unwrap();
    let mut bytes = vec![0; len];
    device.read_at(&mut bytes, offset).unwrap();
    bytes
}
