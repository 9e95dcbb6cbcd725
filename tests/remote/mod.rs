//! Remote shares: real mounts over Unix sockets and TCP, cut connections, killed servers, and
//! clients that violate the protocol.
//!
//! ```text
//!   calls of this machine --> kernel --> folio mount unix:...  --[proxy.rs: cuts]-->  folio share --listen --> image
//!     trees.rs     whole trees, two clients           resume.rs   cut and killed
//!     host.rs      a directory that the host changes too      guest.rs    in a guest
//!     events.rs    events for programs that watch the mount
//!     hostile.rs   invalid bytes of a client (wire.rs)   keys.rs  access control
//! ```

mod events;
mod guest;
mod host;
mod hostile;
mod keys;
mod mount;
use crate::probe;
mod proxy;
mod resume;
use crate::support;
mod trees;
mod wire;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest time to wait for any event; no test depends on speed.
const PATIENCE: Duration = Duration::from_secs(600);

/// The lines of a command's standard error so far.
#[derive(Clone, Default)]
struct StderrLines(Arc<(Mutex<Vec<String>>, Condvar)>);

impl StderrLines {
    fn of(stderr: ChildStderr) -> Self {
        let this = Self::default();
        let reader = this.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                reader
                    .0
                    .0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
                reader.0.1.notify_all();
            }
            reader
                .0
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push("(end)".to_owned());
            reader.0.1.notify_all();
        });
        this
    }

    fn all(&self) -> String {
        self.0
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .join("\n")
    }

    /// Waits for the first line with `words`; panics if the command ends without it.
    #[track_caller]
    fn line(&self, words: &str) -> String {
        self.lines(words, 1)
    }

    /// Waits for a line with `words` or for the command's end; returns whether the line exists.
    fn has_line_before_end(&self, words: &str) -> bool {
        let mut lines = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if lines.iter().any(|line| line.contains(words)) {
                return true;
            }
            if lines.last().is_some_and(|line| line == "(end)") {
                return false;
            }
            lines = self.0.1.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the `count`th line with `words`.
    #[track_caller]
    fn lines(&self, words: &str, count: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(line) = lines
                .iter()
                .filter(|line| line.contains(words))
                .nth(count - 1)
            {
                return line.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let has_ended = lines.last().is_some_and(|line| line == "(end)") || left.is_zero();
            assert!(!has_ended, "no line with {words:?}: {lines:?}");
            lines = self
                .0
                .1
                .wait_timeout(lines, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// A running command; dropping it kills it.
struct RunningCommand {
    child: Child,
    stderr: StderrLines,
}

impl RunningCommand {
    fn start(words: &[&str]) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_folio")).args(words))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("folio starts");
        let stderr = StderrLines::of(child.stderr.take().expect("standard error is a pipe"));
        Self { child, stderr }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Kills the command by SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A running `folio share` of an image or a directory.
struct ShareServer {
    running: RunningCommand,
    address: String,
}

impl ShareServer {
    #[track_caller]
    fn new(source: &Path, listen: &str, words: &[&str]) -> Self {
        let source = source.to_str().unwrap();
        Self::from_running(RunningCommand::start(
            &[&["share", source, "--listen", listen], words].concat(),
        ))
    }

    /// Reads the address of a started share from its standard error.
    #[track_caller]
    fn from_running(running: RunningCommand) -> Self {
        let line = running.stderr.line("until Ctrl-C");
        let address = line
            .split(" is shared at ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { running, address }
    }

    /// Stops the server by SIGTERM, as an operator does.
    #[track_caller]
    fn stop(mut self) {
        self.running.signal(rustix::process::Signal::TERM);
        let status = self.running.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.running.stderr.all());
    }
}

/// A folder with an image of an empty ext4, and the socket of its share.
struct ImageFolder {
    folder: TempDir,
    image: PathBuf,
}

impl ImageFolder {
    fn new() -> Self {
        let folder = TempDir::with_prefix("folio-remote-").unwrap();
        let image = folder.path().join("disk.img");
        support::tools::mke2fs(&image, "64M", &[]);
        Self { folder, image }
    }

    fn socket(&self) -> String {
        format!("unix:{}", self.folder.path().join("socket").display())
    }

    /// Creates a key file.
    fn key(&self, name: &str, key: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.folder.path().join(name);
        std::fs::write(&path, key).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn share(&self) -> ShareServer {
        ShareServer::new(&self.image, &self.socket(), &[])
    }
}

/// Waits until `is_true` returns true; `event` names the event in the panic message.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "the event has no notification")]
fn wait_until(event: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < deadline, "never: {event}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
