//! Memory that a command may use: for its work, and for the page cache of a mount.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Part of the free memory that a command may use.
const PART: u64 = 4;
/// Part of the free memory for the page cache of a mount. As in Linux, the limits of dirty bytes
/// follow the memory.
const CACHE_PART: u64 = 16;
/// Least and largest page cache of a mount without `--cache`, in bytes.
const CACHE_BYTES: RangeInclusive<u64> = 64 << 20..=512 << 20;
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns a quarter of the memory that is free.
pub(crate) fn spare_bytes() -> u64 {
    free_bytes() / PART
}

/// Returns the size of the page cache of a mount without `--cache`.
pub(crate) fn mount_cache_bytes() -> u64 {
    cache_share(free_bytes())
}

fn cache_share(free_bytes: u64) -> u64 {
    (free_bytes / CACHE_PART).clamp(*CACHE_BYTES.start(), *CACHE_BYTES.end())
}

/// Returns the memory that is free, in this machine and in the control groups of this process.
/// Linux: Documentation/admin-guide/cgroup-v2.rst.
fn free_bytes() -> u64 {
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
    free
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
    fn cache_of_a_mount_follows_the_memory() {
        assert_eq!(cache_share(0), 64 << 20);
        assert_eq!(cache_share(4 << 30), 256 << 20);
        assert_eq!(cache_share(1 << 40), 512 << 20);
    }

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
