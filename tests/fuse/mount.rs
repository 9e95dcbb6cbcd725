//! `folio mount` as a user runs it; no mount outlives its test.

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
    /// What the command tells after it is ready.
    told: Option<BufReader<std::process::ChildStderr>>,
}

impl FuseMount {
    /// Mounts `image`, or a directory, with the words of `-o`.
    #[track_caller]
    pub(crate) fn new(image: &Path, words: &str) -> Self {
        let folder = TempDir::with_prefix("folio-fuse-").expect("a folder to mount on");
        Self::in_folder(folder, image, words)
    }

    /// Mounts in the place of this one, which has lost its server.
    #[track_caller]
    pub(crate) fn again(mut self, source: &Path, words: &str) -> Self {
        let folder = self.folder.take().expect("only this takes it");
        Self::in_folder(folder, source, words)
    }

    #[track_caller]
    fn in_folder(folder: TempDir, image: &Path, words: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        command
            .args(["mount", "-o", words])
            .arg(image)
            .arg(folder.path());
        let mut server = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("folio starts");
        let mut told = BufReader::new(server.stderr.take().expect("standard error is a pipe"));
        let mut line = String::new();
        // It speaks when it is ready, or ends.
        told.read_line(&mut line).expect("folio tells");
        let this = Self {
            folder: Some(folder),
            server,
            told: Some(told),
        };
        assert!(
            line.contains("until Ctrl-C"),
            "folio mount {}: {line}",
            image.display()
        );
        this
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder
            .as_ref()
            .map(|folder| folder.path().to_path_buf())
            .unwrap_or_default()
    }

    /// A path below it.
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// The serving process.
    pub(crate) fn process(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.server)
    }

    /// Unmounts as its owner does, and waits until the image is complete.
    #[track_caller]
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing tells when a mount is no longer busy"
    )]
    pub(crate) fn unmount(mut self) {
        // Busy for a moment: a program that another test starts holds copies of our files until its
        // exec.
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
        let (status, told) = self.ended();
        assert!(
            status.success() && told.is_empty(),
            "folio mount: {status}: {told}"
        );
    }

    /// How the command ended, and what it told since it was ready.
    pub(crate) fn ended(&mut self) -> (ExitStatus, String) {
        let mut told = String::new();
        if let Some(mut pipe) = self.told.take() {
            std::io::Read::read_to_string(&mut pipe, &mut told).expect("folio tells text");
        }
        (self.server.wait().expect("folio ends"), told)
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if let Ok(None) = self.server.try_wait() {
            // Gone from the tree now; the kernel aborts what is under way when the server ends.
            let _ = command("umount").arg("--lazy").arg(self.path()).status();
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}
