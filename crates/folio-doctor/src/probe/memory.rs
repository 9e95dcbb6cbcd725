//! Memory limits and memory pressure.

use super::memory_group::MemoryGroup;
use folio_pagecache::Memory;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Memory as this process sees it; the program that is slow may be in another control group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pressure {
    /// What there is: the machine's, or the control group's limit.
    pub total_bytes: u64,
    /// What could be had.
    pub available_bytes: u64,
    /// How often the control group ran into its limit.
    pub limit_hits: Option<u64>,
    /// Percent of the last minute in which at least one task waited for memory.
    pub memory_some_percent: Option<f64>,
    /// Percent of the last minute in which at least one task waited for a device.
    pub io_some_percent: Option<f64>,
    /// What happened while the file was read; none where it was not.
    pub during: Option<During>,
    /// Limited groups of programs that have the file open.
    pub groups: Vec<MemoryGroup>,
}

/// Events on the whole machine between two moments. Values that the kernel does not report are
/// omitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct During {
    /// Pages of files that were read in again after they had been evicted.
    pub refaulted_pages: Option<u64>,
    /// Time in which at least one task waited for memory.
    pub memory_wait_us: Option<u64>,
}

impl During {
    /// Since the machine started.
    pub(crate) fn so_far() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            // Each processor hands its share in now and then: up to 125 pages of each are not
            // counted yet.
            refaulted_pages: field(&text("/proc/vmstat"), "workingset_refault_file"),
            memory_wait_us: waited(&text("/proc/pressure/memory")),
        }
    }

    /// From the end of `before` to the end of this.
    pub(crate) fn since(self, before: Self) -> Self {
        let between = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            refaulted_pages: between(self.refaulted_pages, before.refaulted_pages),
            memory_wait_us: between(self.memory_wait_us, before.memory_wait_us),
        }
    }
}

impl Pressure {
    /// Reads the values of this machine and control group; omits those that are not reported.
    pub(super) fn here() -> Self {
        let memory = Memory::here();
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let groups = text("/proc/self/cgroup");
        Self {
            total_bytes: memory.total_bytes,
            available_bytes: memory.available_bytes,
            limit_hits: limit_hits(&groups, Path::new("/sys/fs/cgroup")),
            memory_some_percent: some(&text("/proc/pressure/memory")),
            io_some_percent: some(&text("/proc/pressure/io")),
            during: None,
            groups: Vec::new(),
        }
    }
}

/// `name value` in a line of its own.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

/// A word of the line `some` of a file of /proc/pressure.
fn pressure<T: FromStr>(text: &str, name: &str) -> Option<T> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split(' ')
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?
        .parse()
        .ok()
}

/// The share of the last minute.
fn some(text: &str) -> Option<f64> {
    pressure(text, "avg60")
}

/// Microseconds since the machine started.
fn waited(text: &str) -> Option<u64> {
    pressure(text, "total")
}

/// How often the group of /proc/self/cgroup was stopped at its limit, by the files of version 2 or
/// 1.
fn limit_hits(groups: &str, root: &Path) -> Option<u64> {
    let path = |line: &str| {
        PathBuf::from(
            line.rsplit(':')
                .next()
                .unwrap_or_default()
                .trim_start_matches('/'),
        )
    };
    let second = groups
        .lines()
        .find(|line| line.starts_with("0::"))
        .and_then(|line| {
            field(
                &fs::read_to_string(root.join(path(line)).join("memory.events")).ok()?,
                "max",
            )
        });
    second.or_else(|| {
        let is_memory = |line: &&str| {
            line.split(':')
                .nth(1)
                .is_some_and(|all| all.split(',').any(|c| c == "memory"))
        };
        let line = groups.lines().find(is_memory)?;
        let folder = root.join("memory").join(path(line));
        fs::read_to_string(folder.join("memory.failcnt"))
            .ok()?
            .trim()
            .parse()
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(
            field(
                "a 1\nworkingset_refault_file 77\n",
                "workingset_refault_file"
            ),
            Some(77)
        );
        assert_eq!(
            field("workingset_refault_file_x 77\n", "workingset_refault_file"),
            None
        );
        let text = "some avg10=1.00 avg60=2.50 avg300=0.10 total=5\nfull avg10=0.00 avg60=9.00 avg300=0 total=0\n";
        assert_eq!((some(text), waited(text)), (Some(2.5), Some(5)));
        assert_eq!((some(""), waited("")), (None, None));
    }

    #[test]
    fn what_happens_in_between_is_counted() {
        let count = |pages, us| During {
            refaulted_pages: pages,
            memory_wait_us: us,
        };
        assert_eq!(
            count(Some(9), Some(5)).since(count(Some(7), None)),
            count(Some(2), None)
        );
        let before = During::so_far();
        let during = During::so_far().since(before);
        assert_eq!(
            during.refaulted_pages.is_some(),
            before.refaulted_pages.is_some()
        );
    }

    #[test]
    fn limits_of_both_group_versions_are_read() {
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
