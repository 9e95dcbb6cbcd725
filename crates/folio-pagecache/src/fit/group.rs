//! A control group whose memory is limited: its files, of version 2 and version 1.

use super::report::Method;
use std::fs;
use std::io;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

/// The names of a version's files and values.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// The name of the method in reports.
    pub(super) method: Method,
    /// The file that holds the limit.
    pub(super) limit: &'static str,
    /// The word that lifts the limit of a new group.
    pub(super) unlimited: &'static str,
    usage: &'static str,
    /// The prefix of values of `memory.stat` that include groups below.
    prefix: &'static str,
    /// The file with the time in which tasks waited for memory, below the group.
    pressure: Option<&'static str>,
}

/// Linux: Documentation/admin-guide/cgroup-v2.rst. Tasks above memory.high are throttled and
/// reclaim; the kernel kills none of them.
const SECOND: Version = Version {
    method: Method::MemoryHigh,
    limit: "memory.high",
    unlimited: "max",
    usage: "memory.current",
    prefix: "",
    pressure: Some("memory.pressure"),
};

/// Linux: Documentation/admin-guide/cgroup-v1/memory.rst.
const FIRST: Version = Version {
    method: Method::LimitInBytes,
    limit: "memory.limit_in_bytes",
    unlimited: "-1",
    usage: "memory.usage_in_bytes",
    prefix: "total_",
    pressure: None,
};

/// Disables the OOM killer of a group of version 1: its tasks wait until the limit is raised.
const OOM_CONTROL: &str = "memory.oom_control";

/// Where groups with the memory controller are mounted.
const ROOTS: [(&str, &Version); 3] = [
    ("/sys/fs/cgroup", &SECOND),
    ("/sys/fs/cgroup/unified", &SECOND),
    ("/sys/fs/cgroup/memory", &FIRST),
];

/// The memory of a group at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Memory {
    /// Bytes of files.
    pub(super) cache_bytes: u64,
    /// All other bytes: anonymous, shared and kernel memory.
    pub(super) other_bytes: u64,
    /// Pages of files read again after their eviction, since the group was made.
    pub(super) refaults: u64,
    /// Microseconds in which at least one task waited for memory.
    pub(super) stalled_us: u64,
}

/// A control group with a memory controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) folder: PathBuf,
    pub(super) version: &'static Version,
}

impl Group {
    /// Returns the group at `folder`, or `None` if it has no files of a memory controller.
    pub(super) fn at(folder: &Path) -> Option<Self> {
        let folder = folder.to_owned();
        [&SECOND, &FIRST]
            .into_iter()
            .find(|version| folder.join(version.limit).is_file())
            .map(|version| Self { folder, version })
    }

    /// Returns the group named by a user: a folder, or a path below the mount of a controller.
    pub(super) fn named(path: &Path) -> Option<Self> {
        Self::at(path).or_else(|| Self::mounted(path))
    }

    /// Returns the group at a path below the mount of a controller, and nowhere else.
    fn mounted(path: &Path) -> Option<Self> {
        let below = path.strip_prefix("/").unwrap_or(path);
        // A group outside of the cgroup namespace starts with `..`.
        if below.components().any(|part| part == Component::ParentDir) {
            return None;
        }
        let mut folders = ROOTS.iter().map(|(root, _)| Path::new(root).join(below));
        folders.find_map(|folder| Self::at(&folder))
    }

    /// Returns the group of a process, by the lines of its /proc/PID/cgroup. The root is none: it
    /// cannot be limited.
    pub(super) fn of_process(pid: u32) -> Option<Self> {
        Self::of_lines(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
    }

    fn of_lines(lines: &str) -> Option<Self> {
        lines.lines().find_map(|line| {
            let mut words = line.splitn(3, ':').skip(1);
            let (controllers, path) = (words.next()?, words.next()?.trim_start_matches('/'));
            let is_memory = controllers.split(',').any(|name| name == "memory");
            if path.is_empty() || !(controllers.is_empty() || is_memory) {
                return None;
            }
            Self::mounted(Path::new(path))
        })
    }

    /// Makes a group for a command: below this process's group, or beside it where a group with
    /// processes cannot have groups below it (version 2). Returns it with the `cgroup.procs` of
    /// this process's group.
    pub(super) fn create() -> io::Result<(Self, PathBuf)> {
        let name = format!("folio-fit-{}", std::process::id());
        let lines = fs::read_to_string("/proc/self/cgroup")?;
        let own = |controller: &str| {
            let line = lines.lines().find_map(|line| {
                let mut words = line.splitn(3, ':').skip(1);
                let list = words.next()?;
                let path = words.next()?;
                list.split(',')
                    .any(|name| name == controller)
                    .then_some(path)
            });
            line.map(|path| path.trim_start_matches('/').to_owned())
        };
        let mut reason = io::Error::new(
            io::ErrorKind::NotFound,
            "no control group with a memory controller is mounted below /sys/fs/cgroup",
        );
        for (root, version) in ROOTS {
            let controller = if version == &FIRST { "memory" } else { "" };
            let Some(path) = own(controller) else {
                continue;
            };
            for above in Path::new(&path).ancestors().take(2) {
                let folder = Path::new(root).join(above).join(&name);
                match Self::make(&folder) {
                    Ok(Some(group)) => {
                        let own = Path::new(root).join(&path).join("cgroup.procs");
                        return Ok((group, own));
                    }
                    Ok(None) => {}
                    Err(error) => reason = error,
                }
            }
        }
        Err(reason)
    }

    fn make(folder: &Path) -> io::Result<Option<Self>> {
        let parent = folder.parent().unwrap_or(folder);
        if !parent.join("cgroup.procs").is_file() {
            return Ok(None);
        }
        fs::create_dir(folder)?;
        let group = Self::at(folder).filter(Self::may_limit);
        if group.is_none() {
            fs::remove_dir(folder)?;
        }
        Ok(group)
    }

    fn text(&self, name: &str) -> io::Result<String> {
        fs::read_to_string(self.folder.join(name))
    }

    /// Whether this process may change the limit.
    pub(super) fn may_limit(&self) -> bool {
        fs::File::options()
            .write(true)
            .open(self.folder.join(self.version.limit))
            .is_ok()
    }

    /// Returns the limit as the kernel shows it.
    pub(super) fn limit(&self) -> io::Result<String> {
        Ok(self.text(self.version.limit)?.trim().to_owned())
    }

    /// Sets the limit.
    pub(super) fn set_limit(&self, word: &str) -> io::Result<()> {
        match write(&self.folder.join(self.version.limit), word) {
            // Version 1 could not evict enough; the next attempt may.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
            other => other,
        }
    }

    /// Returns the file that controls the OOM killer and its value, if the version has one.
    pub(super) fn oom_killer(&self) -> Option<(PathBuf, String)> {
        let file = self.folder.join(OOM_CONTROL);
        let text = fs::read_to_string(&file).ok()?;
        let before = value(&text, "oom_kill_disable")?;
        Some((file, before.to_string()))
    }

    /// Keeps the kernel from killing tasks at the limit.
    pub(super) fn disable_oom_killer(&self) -> io::Result<()> {
        write(&self.folder.join(OOM_CONTROL), "1")
    }

    /// Whether tasks wait because the limit is below what cannot be evicted.
    pub(super) fn is_out_of_memory(&self) -> bool {
        let text = self.text(OOM_CONTROL).unwrap_or_default();
        value(&text, "under_oom").is_some_and(|count| count > 0)
    }

    /// Reads the memory in use.
    pub(super) fn memory(&self) -> io::Result<Memory> {
        let stat = self.text("memory.stat")?;
        let of = |name: &str| {
            let name = format!("{}{name}", self.version.prefix);
            value(&stat, &name).unwrap_or(0)
        };
        let usage = self.text(self.version.usage)?;
        let usage: u64 = usage.trim().parse().map_err(io::Error::other)?;
        let cache_bytes = of("inactive_file") + of("active_file");
        let pressure = self.version.pressure.map(|name| self.folder.join(name));
        let pressure = pressure.unwrap_or_else(|| PathBuf::from("/proc/pressure/memory"));
        Ok(Memory {
            cache_bytes,
            other_bytes: usage.saturating_sub(cache_bytes),
            refaults: of("workingset_refault_file"),
            stalled_us: fs::read_to_string(pressure)
                .ok()
                .and_then(|text| some_us(&text))
                .unwrap_or(0),
        })
    }

    /// Returns the processes of the group and of groups below it.
    pub(super) fn processes(&self) -> Vec<u32> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            folders.extend(
                entries
                    .map(|entry| entry.path())
                    .filter(|path| path.is_dir()),
            );
        }
        found
    }
}

/// Writes to a file that exists, which is not truncated.
fn write(file: &Path, word: &str) -> io::Result<()> {
    let mut file = fs::File::options().write(true).open(file)?;
    file.write_all(word.as_bytes())
}

/// Returns a value of a file with lines `name value`.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?
        .trim()
        .parse()
        .ok()
}

/// Returns the total of the line `some` of a pressure file.
fn some_us(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn group(files: &[(&str, &str)]) -> (TempDir, Option<Group>) {
        let folder = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let group = Group::at(folder.path());
        (folder, group)
    }

    #[test]
    fn group_of_version_2_is_read() {
        let (_folder, group) = group(&[
            ("memory.high", "max\n"),
            ("memory.current", "9000\n"),
            (
                "memory.stat",
                "anon 5\ninactive_file 4096\nactive_file 1000\nworkingset_refault_file 7\n",
            ),
            (
                "memory.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull total=1\n",
            ),
            ("cgroup.procs", "12\n13\n"),
        ]);
        let group = group.unwrap();
        let wanted = Memory {
            cache_bytes: 5096,
            other_bytes: 3904,
            refaults: 7,
            stalled_us: 12,
        };
        assert_eq!(group.memory().unwrap(), wanted);
        assert_eq!(group.limit().unwrap(), "max");
        assert_eq!(group.processes(), [12, 13]);
        assert!(!group.is_out_of_memory());
    }

    #[test]
    fn group_of_version_1_counts_groups_below() {
        let (folder, group) = group(&[
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.usage_in_bytes", "8192\n"),
            (
                "memory.stat",
                "active_file 1\ntotal_active_file 4096\ntotal_workingset_refault_file 3\n",
            ),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 1\n"),
        ]);
        let group = group.unwrap();
        let found = group.memory().unwrap();
        assert_eq!((found.cache_bytes, found.other_bytes), (4096, 4096));
        assert_eq!(found.refaults, 3);
        assert!(group.is_out_of_memory());
        let (file, before) = group.oom_killer().unwrap();
        assert_eq!(
            (file.clone(), before.as_str()),
            (folder.path().join(OOM_CONTROL), "0")
        );
        group.disable_oom_killer().unwrap();
        assert!(fs::read_to_string(file).unwrap().starts_with('1'));
    }

    #[test]
    fn group_of_process_is_below_a_mount() {
        let folder = TempDir::new_in(".").unwrap();
        fs::write(folder.path().join("memory.high"), "max\n").unwrap();
        let name = Path::new(folder.path().file_name().unwrap());
        assert!(Group::named(name).is_some());
        assert_eq!(Group::of_lines(&format!("0::/{}\n", name.display())), None);
        let absolute = fs::canonicalize(folder.path()).unwrap();
        let outside = format!("0::/../../..{}\n", absolute.display());
        assert_eq!(Group::of_lines(&outside), None);
    }

    #[test]
    fn limit_is_written_to_a_present_file_only() {
        let (folder, group) = group(&[("memory.high", "4096 and more")]);
        let (group, file) = (group.unwrap(), folder.path().join("memory.high"));
        group.set_limit("8192").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "8192 and more");
        fs::remove_file(&file).unwrap();
        assert!(group.set_limit("8192").is_err());
        assert!(!file.exists());
    }
}
