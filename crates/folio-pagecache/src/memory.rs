//! Memory available to the page cache: that of the machine, within the limits of the control group.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Memory {
    /// Total: the machine's memory, or the control group's limit if that is less.
    pub total_bytes: u64,
    /// Memory available without swapping (`MemAvailable` of proc(5)), within the control group's
    /// limit.
    pub available_bytes: u64,
}

impl Memory {
    /// Returns the memory of this machine and control group, from /proc and /sys.
    pub fn here() -> Self {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let of = |name| meminfo(&text, name).unwrap_or(0);
        let machine = Self {
            total_bytes: of("MemTotal"),
            available_bytes: of("MemAvailable"),
        };
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let old = folders(&groups, Path::new("/sys/fs/cgroup/memory"), |line| {
            let mut parts = line.splitn(3, ':');
            let controllers = parts.nth(1)?;
            parts
                .next()
                .filter(|_| controllers.split(',').any(|name| name == "memory"))
        });
        let new = folders(&groups, Path::new("/sys/fs/cgroup"), |line| {
            line.strip_prefix("0::")
        });
        let memory = old
            .iter()
            .fold(machine, |memory, folder| memory.within(folder, &OLD));
        new.iter()
            .fold(memory, |memory, folder| memory.within(folder, &NEW))
    }

    /// Applies the limit of the control group at `folder`, if it has one.
    fn within(self, folder: &Path, names: &GroupFileNames) -> Self {
        let number = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let (Some(limit), Some(used)) = (number(names.limit), number(names.used)) else {
            return self;
        };
        // Clean cached pages can be evicted at once.
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let of = |name: &str| {
            let line = stat
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let cached = (of(names.active) + of(names.inactive)).saturating_sub(of(names.dirty));
        let available = limit.saturating_sub(used.saturating_sub(cached));
        Self {
            total_bytes: self.total_bytes.min(limit),
            available_bytes: self.available_bytes.min(available),
        }
    }
}

/// GroupFileNames of a control group's files and of the fields in its `memory.stat`.
struct GroupFileNames {
    limit: &'static str,
    used: &'static str,
    active: &'static str,
    inactive: &'static str,
    dirty: &'static str,
}

/// Version 2 (Documentation/admin-guide/cgroup-v2.rst).
const NEW: GroupFileNames = GroupFileNames {
    limit: "memory.max",
    used: "memory.current",
    active: "active_file",
    inactive: "inactive_file",
    dirty: "file_dirty",
};
/// Version 1 (Documentation/admin-guide/cgroup-v1/memory.rst), with nested groups included.
const OLD: GroupFileNames = GroupFileNames {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    active: "total_active_file",
    inactive: "total_inactive_file",
    dirty: "total_dirty",
};

/// Returns the value of a line of /proc/meminfo, in bytes.
pub(crate) fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut words = line.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    Some(if words.next() == Some("kB") {
        number << 10
    } else {
        number
    })
}

/// Returns the folder of this control group below `root`, and the folders above it: each may have a
/// limit. In a container the only visible group is the root.
fn folders<'a>(
    text: &'a str,
    root: &Path,
    path: impl Fn(&'a str) -> Option<&'a str>,
) -> Vec<PathBuf> {
    let Some(path) = text.lines().find_map(path) else {
        return Vec::new();
    };
    Path::new(path.trim_start_matches('/'))
        .ancestors()
        .map(|group| root.join(group))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_line_is_parsed_in_bytes() {
        let text =
            "MemTotal:       24684136 kB\nMemAvailable:   20000000 kB\nHugePages_Total:       3\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(24_684_136 << 10));
        assert_eq!(meminfo(text, "HugePages_Total"), Some(3));
        assert_eq!(meminfo(text, "Mem"), None);
    }

    #[test]
    fn group_and_its_parents_limit_memory() {
        let text = "1:cpu:/x\n4:memory:/a\n0::/system.slice/db.service\n";
        let found = folders(text, Path::new("/g"), |line| line.strip_prefix("0::"));
        assert_eq!(
            found,
            ["/g/system.slice/db.service", "/g/system.slice", "/g/"].map(PathBuf::from)
        );
        assert!(folders("", Path::new("/g"), |line| line.strip_prefix("0::")).is_empty());
        let folder = tempfile::TempDir::new().unwrap();
        let memory = Memory {
            total_bytes: 1000,
            available_bytes: 900,
        };
        assert_eq!(memory.within(folder.path(), &NEW), memory);
        for (name, value) in [
            ("memory.max", "500\n"),
            ("memory.current", "400\n"),
            (
                "memory.stat",
                "anon 100\nactive_file 100\ninactive_file 210\nfile_dirty 10\n",
            ),
        ] {
            fs::write(folder.path().join(name), value).unwrap();
        }
        assert_eq!(
            memory.within(folder.path(), &NEW),
            Memory {
                total_bytes: 500,
                available_bytes: 400
            }
        );
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(memory.within(folder.path(), &NEW), memory);
    }

    #[test]
    fn this_machine_has_memory() {
        let here = Memory::here();
        assert!(
            here.total_bytes >= here.available_bytes && here.available_bytes > 0,
            "{here:?}"
        );
    }
}
