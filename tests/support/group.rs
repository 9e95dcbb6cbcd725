//! Control groups that limit memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A control group with a memory limit, of version 1 or 2. Dropping it removes the group; no
/// process may be in it then.
pub struct Group(PathBuf);

impl Group {
    /// Makes a group; `None` where control groups cannot be made, or do not limit memory.
    pub fn new(limit_bytes: u64) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "folio-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        for (root, file) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ] {
            let folder = Path::new(root).join(&name);
            if std::fs::create_dir(&folder).is_ok() {
                let group = Self(folder);
                if std::fs::write(group.0.join(file), limit_bytes.to_string()).is_ok() {
                    return Some(group);
                }
            }
        }
        None
    }

    /// Returns the folder of the group.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns the command with which a shell enters the group.
    pub fn entry(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
