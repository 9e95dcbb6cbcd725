//! `folio mount` of a remote share; no mount outlives its test.

use crate::Running;
use crate::support::tools::{command, text};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A mount. Dropping it detaches it and ends the command.
pub(crate) struct RemoteMount {
    folder: TempDir,
    pub(crate) running: Running,
}

impl RemoteMount {
    #[track_caller]
    pub(crate) fn new(address: &str, words: &[&str]) -> Self {
        let folder = TempDir::with_prefix("folio-remote-").unwrap();
        let target = folder.path().to_str().unwrap();
        let running = Running::start(&[&["mount", address, target], words].concat());
        running.told.line("until Ctrl-C");
        Self { folder, running }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Unmounts as its owner does.
    #[track_caller]
    pub(crate) fn unmount(mut self) {
        crate::wait_until("nobody uses the mount", || {
            let output = command("umount").arg(self.path()).output().expect("umount runs");
            assert!(output.status.success() || text(&output).contains("busy"), "umount: {}", text(&output));
            output.status.success()
        });
        let status = self.running.child.wait().unwrap();
        assert!(status.success(), "folio mount: {status}: {}", self.running.told.all());
    }
}

impl Drop for RemoteMount {
    fn drop(&mut self) {
        if let Ok(None) = self.running.child.try_wait() {
            let _ = command("umount").arg("--lazy").arg(self.path()).status();
        }
    }
}

impl RemoteMount {
    /// The same when a file of it is closed.
    #[track_caller]
    pub(crate) fn unmount_after<T>(self, file: T) {
        drop(file);
        self.unmount();
    }
}
