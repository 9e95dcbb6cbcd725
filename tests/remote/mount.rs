//! `folio mount` of a remote share. Each mount ends with its test.

use crate::remote::RunningCommand;
use crate::support::tools::{command, text};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A mounted share. Dropping it detaches the mount and ends the command.
pub(crate) struct RemoteMount {
    folder: TempDir,
    pub(crate) running: RunningCommand,
}

impl RemoteMount {
    #[track_caller]
    pub(crate) fn new(address: &str, words: &[&str]) -> Self {
        let this = Self::start(address, words);
        this.running.stderr.line("until Ctrl-C");
        this
    }

    fn start(address: &str, words: &[&str]) -> Self {
        let folder = TempDir::with_prefix("folio-remote-").unwrap();
        let target = folder.path().to_str().unwrap();
        let running = RunningCommand::start(&[&["mount", address, target], words].concat());
        Self { folder, running }
    }

    /// Mounts; returns `None` if that fails.
    pub(crate) fn try_new(address: &str, words: &[&str]) -> Option<Self> {
        let this = Self::start(address, words);
        let is_mounted = this.running.stderr.has_line_before_end("until Ctrl-C");
        // The line is printed before the server has answered the kernel's first request.
        (is_mounted && std::fs::read_dir(this.path()).is_ok()).then_some(this)
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Unmounts by umount(8), once no process uses the mount.
    #[track_caller]
    pub(crate) fn unmount(mut self) {
        crate::remote::wait_until("nobody uses the mount", || {
            let output = command("umount")
                .arg(self.path())
                .output()
                .expect("umount runs");
            assert!(
                output.status.success() || text(&output).contains("busy"),
                "umount: {}",
                text(&output)
            );
            output.status.success()
        });
        let status = self.running.child.wait().unwrap();
        assert!(
            status.success(),
            "folio mount: {status}: {}",
            self.running.stderr.all()
        );
    }
}

impl Drop for RemoteMount {
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        if self
            .path()
            .to_str()
            .is_some_and(|path| mounts.contains(path))
        {
            let _ = command("umount").arg("--lazy").arg(self.path()).status();
        }
    }
}

impl RemoteMount {
    /// Closes `file`, then unmounts.
    #[track_caller]
    pub(crate) fn unmount_after<T>(self, file: T) {
        drop(file);
        self.unmount();
    }
}
