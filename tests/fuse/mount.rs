//! `folio mount` as users run it; no mount outlives its test.

use crate::support::tools::{command, text};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use tempfile::TempDir;

/// A mount served by a command in the foreground. Dropping it detaches the mount and ends the
/// command.
pub(crate) struct FuseMount {
    folder: Option<TempDir>,
    server: Child,
    /// The command's standard error after it is ready.
    stderr: Option<BufReader<std::process::ChildStderr>>,
}

impl FuseMount {
    /// Mounts `image`, or a directory, with `-o` options.
    #[track_caller]
    pub(crate) fn new(image: &Path, options: &str) -> Self {
        let folder = TempDir::with_prefix("folio-fuse-").expect("a folder to mount on");
        Self::in_folder(folder, image, options)
    }

    /// Mounts on the same directory again, after the server has died.
    #[track_caller]
    pub(crate) fn again(mut self, source: &Path, options: &str) -> Self {
        let folder = self.folder.take().expect("only this takes it");
        Self::in_folder(folder, source, options)
    }

    #[track_caller]
    fn in_folder(folder: TempDir, image: &Path, options: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        // The tests of io_uring permit it to the whole machine meanwhile.
        let transport = if options.contains("io_uring") {
            ""
        } else {
            ",io_uring=off"
        };
        command
            .args(["mount", "-o", &format!("{options}{transport}")])
            .arg(image)
            .arg(folder.path());
        let mut server = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("folio starts");
        let mut stderr = BufReader::new(server.stderr.take().expect("standard error is a pipe"));
        let mut line = String::new();
        // The command prints a line when it is ready, or an error.
        stderr.read_line(&mut line).expect("folio prints a line");
        let this = Self {
            folder: Some(folder),
            server,
            stderr: Some(stderr),
        };
        assert!(
            line.contains("until Ctrl-C"),
            "folio mount {}: {line}",
            image.display()
        );
        this
    }

    /// Returns the directory of the mount.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder
            .as_ref()
            .map(|folder| folder.path().to_path_buf())
            .unwrap_or_default()
    }

    /// Returns a path below it.
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Returns the serving process.
    pub(crate) fn process(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.server)
    }

    /// Unmounts by umount(8), and waits until the image is complete.
    #[track_caller]
    #[expect(
        clippy::disallowed_methods,
        reason = "the end of a busy mount has no notification"
    )]
    pub(crate) fn unmount(mut self) {
        // Busy for a moment: a child of another test holds copies of this test's files until its
        // exec(2).
        for attempt in 0.. {
            let output = command("umount")
                .arg(self.path())
                .output()
                .expect("umount runs");
            if output.status.success() {
                break;
            }
            assert!(
                attempt < 50 && text(&output).contains("busy"),
                "umount: {}",
                text(&output)
            );
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let (status, stderr) = self.ended();
        assert!(
            status.success() && stderr.is_empty(),
            "folio mount: {status}: {stderr}"
        );
    }

    /// Waits for the command; returns its status and its output since it was ready.
    pub(crate) fn ended(&mut self) -> (ExitStatus, String) {
        let mut text = String::new();
        if let Some(mut stderr) = self.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut text).expect("folio prints text");
        }
        (self.server.wait().expect("folio ends"), text)
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        let is_running = matches!(self.server.try_wait(), Ok(None));
        // A mount outlives a server that was killed.
        let is_dead = || {
            let found = std::fs::metadata(self.path());
            found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotConnected)
        };
        if is_running || is_dead() {
            // Detached now; the kernel aborts pending requests when the server ends.
            let _ = command("umount").arg("--lazy").arg(self.path()).status();
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}
