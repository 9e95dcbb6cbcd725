//! A mount by `folio mount` over a server's mount, in the mount namespace of the calling thread.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Names, attributes and pages are valid for a second; other programs change the server's files.
const OPTIONS: &str = "allow_other,ttl=1s,cache=writethrough";

/// The mount; dropping it unmounts.
pub(super) struct CachedMount {
    mount_point: PathBuf,
    server: Child,
    is_mounted: bool,
}

impl CachedMount {
    pub(super) fn new(source: &Path, mount_point: &Path) -> Result<Self, String> {
        let start = || {
            Command::new(std::env::current_exe()?)
                .args(["--quiet", "mount", "-o", OPTIONS, "--ready-fd", "1"])
                .args([source, mount_point])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
        };
        let failed = |error| format!("folio mount: {error}");
        let mut server = start().map_err(failed)?;
        let out = server.stdout.take();
        let mut this = Self {
            mount_point: mount_point.to_owned(),
            server,
            is_mounted: false,
        };
        let mut line = String::new();
        if let Some(out) = out {
            BufReader::new(out).read_line(&mut line).map_err(failed)?;
        }
        this.is_mounted = !line.is_empty();
        if !this.is_mounted {
            return Err("folio mount failed over the mount".to_owned());
        }
        Ok(this)
    }

    /// Unmounts, and waits until all is written.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<(), String> {
        if !self.is_mounted {
            return Ok(());
        }
        self.is_mounted = false;
        let flags = rustix::mount::UnmountFlags::DETACH;
        rustix::mount::unmount(&self.mount_point, flags)
            .map_err(|errno| format!("unmount of {}: {errno}", self.mount_point.display()))?;
        match self.server.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("folio mount: {status}")),
            Err(error) => Err(format!("folio mount: {error}")),
        }
    }
}

impl Drop for CachedMount {
    fn drop(&mut self) {
        // Its failure is that of the trial already.
        let _ = self.unmount();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
