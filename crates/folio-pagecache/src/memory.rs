//! How much memory there is for the page cache: the machine's, and what the control group leaves of it.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All there is: the machine's, or the control group's limit if that is less.
    pub total_bytes: u64,
    /// What a program could get without swapping (`MemAvailable` of proc(5)), within the control group's limit.
    pub available_bytes: u64,
}

impl Memory {
    /// The memory of this machine and control group, as far as /proc and /sys tell.
    pub fn here() -> Self {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let of = |name| meminfo(&text, name).unwrap_or(0);
        let machine = Self { total_bytes: of("MemTotal"), available_bytes: of("MemAvailable") };
        let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        groups(&group).iter().fold(machine, |memory, folder| memory.within(folder))
    }

    /// The same within the limit of a control group, if it has one.
    fn within(self, folder: &Path) -> Self {
        let number = |name: &str| {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let (Some(limit), Some(used)) = (number("memory.max"), number("memory.current")) else { return self };
        // Cached files that nobody writes make room at once.
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let of = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
        };
        let cached = (of("active_file") + of("inactive_file")).saturating_sub(of("file_dirty"));
        let available = limit.saturating_sub(used.saturating_sub(cached));
        Self {
            total_bytes: self.total_bytes.min(limit),
            available_bytes: self.available_bytes.min(available),
        }
    }
}

/// A line of /proc/meminfo, in bytes.
pub(crate) fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut words = line.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    Some(if words.next() == Some("kB") { number << 10 } else { number })
}

/// The folder of a control group of version 2, and those above it: each may have a limit.
fn groups(text: &str) -> Vec<PathBuf> {
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let below = path.trim_start_matches('/');
    let all = Path::new(below).ancestors().filter(|group| !group.as_os_str().is_empty());
    all.map(|group| Path::new("/sys/fs/cgroup").join(group)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_meminfo_are_read_in_bytes() {
        let text = "MemTotal:       24684136 kB\nMemAvailable:   20000000 kB\nHugePages_Total:       3\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(24_684_136 << 10));
        assert_eq!(meminfo(text, "HugePages_Total"), Some(3));
        assert_eq!(meminfo(text, "Mem"), None);
    }

    #[test]
    fn a_group_and_those_above_it_limit() {
        let found = groups("1:cpu:/x\n0::/system.slice/db.service\n");
        let wanted = ["/sys/fs/cgroup/system.slice/db.service", "/sys/fs/cgroup/system.slice"];
        assert_eq!(found, wanted.map(PathBuf::from));
        assert!(groups("0::/\n").is_empty());
        let folder = tempfile::TempDir::new().unwrap();
        let memory = Memory { total_bytes: 1000, available_bytes: 900 };
        assert_eq!(memory.within(folder.path()), memory);
        for (name, value) in [
            ("memory.max", "500\n"),
            ("memory.current", "400\n"),
            ("memory.stat", "anon 100\nactive_file 100\ninactive_file 210\nfile_dirty 10\n"),
        ] {
            fs::write(folder.path().join(name), value).unwrap();
        }
        assert_eq!(memory.within(folder.path()), Memory { total_bytes: 500, available_bytes: 400 });
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(memory.within(folder.path()), memory);
    }

    #[test]
    fn this_machine_has_memory() {
        let here = Memory::here();
        assert!(here.total_bytes >= here.available_bytes && here.available_bytes > 0, "{here:?}");
    }
}
