//! Remote shares: real mounts over Unix sockets and TCP, connections that are cut, servers that are
//! killed, clients that break the rules.
//!
//! ```text
//!   calls of this machine --> kernel --> folio mount unix:...  --[proxy.rs: cuts]-->  folio share --listen --> image
//!     trees.rs     whole trees, two clients           resume.rs   cut and killed
//!     host.rs      a directory that the host changes too      guest.rs    in a guest
//!     hostile.rs   what no client should send (wire.rs)   keys.rs  who may
//! ```

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

/// How long anything may take; nothing is right because it was fast.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a command tells on standard error, as it comes.
#[derive(Clone, Default)]
struct Told(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Told {
    fn of(stderr: ChildStderr) -> Self {
        let this = Self::default();
        let theirs = this.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                theirs
                    .0
                    .0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
                theirs.0.1.notify_all();
            }
            theirs
                .0
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push("(end)".to_owned());
            theirs.0.1.notify_all();
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

    /// The first line with these words; fails if the command ends without.
    #[track_caller]
    fn line(&self, words: &str) -> String {
        self.lines(words, 1)
    }

    /// Whether a line has these words; waits for it or for the command's end.
    fn is_told_before_the_end(&self, words: &str) -> bool {
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

    /// The line with these words that comes as the `count`th.
    #[track_caller]
    fn lines(&self, words: &str, count: usize) -> String {
        let until = Instant::now() + PATIENCE;
        let mut lines = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(line) = lines
                .iter()
                .filter(|line| line.contains(words))
                .nth(count - 1)
            {
                return line.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            let is_over = lines.last().is_some_and(|line| line == "(end)") || left.is_zero();
            assert!(!is_over, "{words:?} is not told: {lines:?}");
            lines = self
                .0
                .1
                .wait_timeout(lines, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// A command that runs until it is stopped, or the value is dropped.
struct Running {
    child: Child,
    told: Told,
}

impl Running {
    fn start(words: &[&str]) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_folio")).args(words))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("folio starts");
        let told = Told::of(child.stderr.take().expect("standard error is a pipe"));
        Self { child, told }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// As when the power fails.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A share of an image or a directory.
struct Shared {
    running: Running,
    address: String,
}

impl Shared {
    #[track_caller]
    fn new(source: &Path, listen: &str, words: &[&str]) -> Self {
        let source = source.to_str().unwrap();
        Self::told(Running::start(
            &[&["share", source, "--listen", listen], words].concat(),
        ))
    }

    /// One that is started somehow.
    #[track_caller]
    fn told(running: Running) -> Self {
        let line = running.told.line("until Ctrl-C");
        let address = line
            .split(" is shared at ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { running, address }
    }

    /// Ends it as an operator would.
    #[track_caller]
    fn stop(mut self) {
        self.running.signal(rustix::process::Signal::TERM);
        let status = self.running.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.running.told.all());
    }
}

/// An image with an empty ext4 in a folder of its own, and where its share listens.
struct Bench {
    folder: TempDir,
    image: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let folder = TempDir::with_prefix("folio-remote-").unwrap();
        let image = folder.path().join("disk.img");
        support::tools::mke2fs(&image, "64M", &[]);
        Self { folder, image }
    }

    fn socket(&self) -> String {
        format!("unix:{}", self.folder.path().join("socket").display())
    }

    /// A file with a key.
    fn key(&self, name: &str, key: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.folder.path().join(name);
        std::fs::write(&path, key).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn share(&self) -> Shared {
        Shared::new(&self.image, &self.socket(), &[])
    }
}

/// Waits until something is so.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "nothing tells when it is")]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
