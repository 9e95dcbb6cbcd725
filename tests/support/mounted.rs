//! Loop mount of a raw image by the kernel, unmounted at drop.

use super::tools::{command, run};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A loop mount. Dropping it unmounts, which also detaches the loop device.
pub struct Mounted {
    folder: Option<TempDir>,
    mounted: bool,
}

impl Mounted {
    /// Mounts `image` with the mount options given (`"rw"`, `"ro,noload"`).
    #[track_caller]
    pub fn new(image: &Path, options: &str) -> Self {
        Self::attempt(image, options)
            .unwrap_or_else(|said| panic!("mount of {}: {said}", image.display()))
    }

    /// Mounts `image`; returns what mount(8) says if the kernel refuses it.
    #[track_caller]
    pub fn attempt(image: &Path, options: &str) -> Result<Self, String> {
        Self::attempt_as("ext4", image, options)
    }

    /// Mounts an image of the file system `kind`; returns what mount(8) says if the kernel refuses
    /// it.
    #[track_caller]
    pub fn attempt_as(kind: &str, image: &Path, options: &str) -> Result<Self, String> {
        let folder = TempDir::with_prefix("folio-mount-").expect("a folder to mount on");
        let shown = run(
            "losetup",
            [
                OsStr::new("--find"),
                OsStr::new("--show"),
                image.as_os_str(),
            ],
        );
        let device = shown.trim();
        let output = command("mount")
            .args(["-t", kind, "-o", options, device])
            .arg(folder.path())
            .output();
        // Detaching a device in use only marks it: the kernel frees it at the unmount, even after
        // this process was killed.
        let detached = command("losetup").args(["--detach", device]).status();
        let output = output.expect("mount runs");
        let mounted = output.status.success();
        let this = Self {
            folder: Some(folder),
            mounted,
        };
        assert!(
            detached.is_ok_and(|status| status.success()),
            "losetup --detach {device}"
        );
        if mounted {
            Ok(this)
        } else {
            Err(super::tools::text(&output))
        }
    }

    /// Returns the mount point.
    pub fn path(&self) -> PathBuf {
        self.folder
            .as_ref()
            .map(|folder| folder.path().to_path_buf())
            .unwrap_or_default()
    }

    /// Unmounts; panics if that fails. A mount may be busy for a moment: a program that another
    /// test starts holds copies of this process's files until its exec, and the kernel finishes
    /// closing after close(2) returns.
    #[track_caller]
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel does not report when a mount is no longer busy"
    )]
    pub fn unmount(mut self) {
        let path = self.path();
        for _ in 0..50 {
            let output = command("umount").arg(&path).output().expect("umount runs");
            if output.status.success() {
                self.mounted = false;
                return;
            }
            assert!(
                super::tools::text(&output).contains("busy"),
                "umount: {}",
                super::tools::text(&output)
            );
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("{} stays busy", path.display());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            let path = self.path();
            let unmounted = command("umount")
                .arg(&path)
                .status()
                .is_ok_and(|status| status.success());
            if !unmounted {
                // Lazily: leaves the tree now, is freed after its last use.
                let _ = command("umount").arg("--lazy").arg(&path).status();
            }
        }
    }
}
