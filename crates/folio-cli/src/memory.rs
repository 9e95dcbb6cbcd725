//! Memory that a command may use beyond the page cache.

use std::path::{Path, PathBuf};

/// Part of the free memory that a command may use.
const PART: u64 = 4;
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns a quarter of the memory that is free, in this machine and in the control groups of this
/// process. Linux: Documentation/admin-guide/cgroup-v2.rst.
pub(crate) fn spare_bytes() -> u64 {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let meminfo = read(Path::new("/proc/meminfo")).unwrap_or_default();
    let mut free = available_bytes(&meminfo).unwrap_or(0);
    let membership = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    for group in groups(&membership) {
        let number = |file: &str| read(&group.join(file))?.trim().parse::<u64>().ok();
        // The file of a group without a limit has a word.
        if let Some(limit) = number("memory.max") {
            free = free.min(limit.saturating_sub(number("memory.current").unwrap_or(0)));
        }
    }
    free / PART
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Returns the folders of a control group and of those above it.
fn groups(membership: &str) -> Vec<PathBuf> {
    let path = membership
        .lines()
        .find_map(|line| line.strip_prefix("0::/"));
    let path = path.map(|path| Path::new(CGROUPS).join(path));
    let above = path.iter().flat_map(|path| path.ancestors());
    above
        .take_while(|folder| folder.starts_with(CGROUPS))
        .map(Path::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_the_kernel_are_read() {
        let meminfo = "MemTotal:       100 kB\nMemAvailable:   42 kB\n";
        assert_eq!(available_bytes(meminfo), Some(42 << 10));
        let folders = groups("0::/a/b\n");
        let names = ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"];
        assert_eq!(folders, names.map(PathBuf::from));
        assert!(groups("1:cpu:/a\n").is_empty());
    }
}
