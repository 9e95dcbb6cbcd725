//! Limits of memory, and who presses against them.

use folio_pagecache::Memory;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory as this process sees it; the program that is slow may be in another control group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pressure {
    /// What there is: the machine's, or the control group's limit.
    pub total_bytes: u64,
    /// What could be had.
    pub available_bytes: u64,
    /// How often the control group ran into its limit.
    pub limit_hits: Option<u64>,
    /// Pages that had to be read again soon after they were evicted, since the machine started.
    pub refaulted_pages: Option<u64>,
    /// Percent of the last minute in which somebody waited for memory.
    pub memory_some_percent: Option<f64>,
    /// Percent of the last minute in which somebody waited for a device.
    pub io_some_percent: Option<f64>,
}

impl Pressure {
    /// Of this machine and control group; what they do not tell is left out.
    pub(super) fn here() -> Self {
        let memory = Memory::here();
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let groups = text("/proc/self/cgroup");
        Self {
            total_bytes: memory.total_bytes,
            available_bytes: memory.available_bytes,
            limit_hits: limit_hits(&groups, Path::new("/sys/fs/cgroup")),
            refaulted_pages: field(&text("/proc/vmstat"), "workingset_refault_file"),
            memory_some_percent: some(&text("/proc/pressure/memory")),
            io_some_percent: some(&text("/proc/pressure/io")),
        }
    }
}

/// `name value` in a line of its own.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The share of the last minute, from a file of /proc/pressure.
fn some(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("avg60="))?.parse().ok()
}

/// How often the group of /proc/self/cgroup was stopped at its limit, by the files of version 2 or 1.
fn limit_hits(groups: &str, root: &Path) -> Option<u64> {
    let path =
        |line: &str| PathBuf::from(line.rsplit(':').next().unwrap_or_default().trim_start_matches('/'));
    let second = groups.lines().find(|line| line.starts_with("0::")).and_then(|line| {
        field(&fs::read_to_string(root.join(path(line)).join("memory.events")).ok()?, "max")
    });
    second.or_else(|| {
        let is_memory =
            |line: &&str| line.split(':').nth(1).is_some_and(|all| all.split(',').any(|c| c == "memory"));
        let line = groups.lines().find(is_memory)?;
        let folder = root.join("memory").join(path(line));
        fs::read_to_string(folder.join("memory.failcnt")).ok()?.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(field("a 1\nworkingset_refault_file 77\n", "workingset_refault_file"), Some(77));
        assert_eq!(field("workingset_refault_file_x 77\n", "workingset_refault_file"), None);
        let text =
            "some avg10=1.00 avg60=2.50 avg300=0.10 total=5\nfull avg10=0.00 avg60=9.00 avg300=0 total=0\n";
        assert_eq!(some(text), Some(2.5));
        assert_eq!(some(""), None);
    }

    #[test]
    fn groups_of_both_versions_tell_of_their_limit() {
        let root = tempfile::TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("memory/db/memory.failcnt", "12\n");
        assert_eq!(limit_hits("4:memory:/db\n0::/db\n", root.path()), Some(12));
        write("db/memory.events", "low 0\nhigh 0\nmax 3\noom 0\n");
        assert_eq!(limit_hits("4:memory:/db\n0::/db\n", root.path()), Some(3));
        assert_eq!(limit_hits("0::/other\n", root.path()), None);
    }
}
