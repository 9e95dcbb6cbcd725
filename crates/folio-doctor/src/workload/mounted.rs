//! The mounts of the files that a command used.

use crate::probe::layers::{self, FileSystem};
use crate::probe::mounts::{self, Mount};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// File systems without files on a disk or a server: devices, kernel state, pipes.
const NOT_FILES: [&str; 12] = [
    "proc",
    "sysfs",
    "devtmpfs",
    "devpts",
    "cgroup",
    "cgroup2",
    "debugfs",
    "tracefs",
    "securityfs",
    "mqueue",
    "bpf",
    "pstore",
];

/// A mount that a command used.
#[derive(Debug, Clone)]
pub struct MountedOn {
    /// Its file system.
    pub file_system: FileSystem,
    /// Whether calls on it are calls on files.
    pub has_files: bool,
    /// Whether it answered after the command. Of one that did not, nothing is measured.
    pub is_answering: bool,
}

/// All mounts, and those in use.
pub(super) struct Mounted {
    table: Vec<Mount>,
    by_point: HashMap<PathBuf, usize>,
    used: Vec<MountedOn>,
}

impl Mounted {
    pub(super) fn read() -> Self {
        let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self {
            table: mounts::parse(&text),
            by_point: HashMap::new(),
            used: Vec::new(),
        }
    }

    /// Returns the index of a path's mount.
    pub(super) fn of(&mut self, path: &Path) -> usize {
        let found = mounts::of(&self.table, None, path);
        let point = found.map_or_else(|| PathBuf::from("/"), |mount| mount.mount_point.clone());
        if let Some(known) = self.by_point.get(&point) {
            return *known;
        }
        let file_system = match found {
            Some(mount) => layers::file_system(&self.table, mount),
            None => FileSystem {
                mount_point: point.clone(),
                ..FileSystem::default()
            },
        };
        let has_files =
            !NOT_FILES.contains(&file_system.fs_type.as_str()) && !point.starts_with("/dev/pts");
        self.used.push(MountedOn {
            file_system,
            has_files,
            is_answering: true,
        });
        self.by_point.insert(point, self.used.len() - 1);
        self.used.len() - 1
    }

    pub(super) fn get(&self, index: usize) -> &MountedOn {
        &self.used[index]
    }

    pub(super) fn into_mounts(self) -> Vec<MountedOn> {
        self.used
    }
}
