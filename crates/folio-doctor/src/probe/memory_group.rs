//! Control groups that limit the memory of programs with the file open.

use crate::text::quote;
use serde::Serialize;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A control group with a memory limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryGroup {
    /// The program in it that has the file open.
    pub program: String,
    /// The folder of the group.
    pub folder: PathBuf,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// How often its tasks met the limit.
    pub limit_hits: u64,
    /// The file that holds the limit, and the word that lifts it.
    limit_file: (&'static str, &'static str),
}

/// Where control groups are mounted: version 2, version 1.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"];

/// Returns the groups, of programs with this file open, that met their limit; each once.
pub(super) fn limiting(found: &Metadata) -> Vec<MemoryGroup> {
    let mut groups: Vec<MemoryGroup> = Vec::new();
    let own = std::process::id().to_string();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if process.file_name() == *own || !has_open(&process.path(), found) {
            continue;
        }
        let text = |name: &str| fs::read_to_string(process.path().join(name)).unwrap_or_default();
        let program = text("comm").trim().to_owned();
        if let Some(group) = group(&text("cgroup"), ROOTS.map(Path::new), program)
            && !groups.iter().any(|other| other.folder == group.folder)
        {
            groups.push(group);
        }
    }
    groups
}

fn has_open(process: &Path, found: &Metadata) -> bool {
    let is_it = |fd: fs::DirEntry| {
        fs::metadata(fd.path())
            .is_ok_and(|open| (open.dev(), open.ino()) == (found.dev(), found.ino()))
    };
    fs::read_dir(process.join("fd")).is_ok_and(|fds| fds.flatten().any(is_it))
}

/// Returns the nearest group with a limit that was met, by the lines of /proc/PID/cgroup.
fn group(lines: &str, [second, first]: [&Path; 2], program: String) -> Option<MemoryGroup> {
    let is_memory = |list: &str| list.split(',').any(|name| name == "memory");
    lines.lines().find_map(|line| {
        let mut words = line.splitn(3, ':');
        let (number, controllers, path) = (words.next()?, words.next()?, words.next()?);
        let (root, files) = match (number, controllers) {
            ("0", "") => (second, ["memory.max", "memory.events", "max"]),
            (_, list) if is_memory(list) => {
                (first, ["memory.limit_in_bytes", "memory.failcnt", "-1"])
            }
            _ => return None,
        };
        let start = root.join(path.trim_start_matches('/'));
        let mut folders = start.ancestors().take_while(|folder| *folder != root);
        folders.find_map(|folder| limit(folder, files, &program))
    })
}

fn limit(folder: &Path, files: [&'static str; 3], program: &str) -> Option<MemoryGroup> {
    let [limit, hits, lift] = files;
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let limit_bytes = text(limit)?.trim().parse().ok()?;
    let hits = text(hits)?;
    let count = hits.lines().find_map(|line| line.strip_prefix("max "));
    let limit_hits = count.unwrap_or(&hits).trim().parse().ok()?;
    (limit_hits > 0).then(|| MemoryGroup {
        program: program.to_owned(),
        folder: folder.to_owned(),
        limit_bytes,
        limit_hits,
        limit_file: (limit, lift),
    })
}

impl MemoryGroup {
    /// The command that lifts the limit.
    pub(crate) fn lift(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        let is_unit = [".service", ".scope", ".slice"]
            .iter()
            .any(|ending| name.to_string_lossy().ends_with(ending));
        if is_unit && Path::new("/run/systemd/system").exists() {
            let unit = quote(Path::new(name));
            return format!("systemctl set-property --runtime {unit} MemoryMax=infinity");
        }
        let (file, word) = self.limit_file;
        format!("echo {word} > {}", quote(&self.folder.join(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_limit_that_was_met_is_found() {
        let root = tempfile::TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let first = root.path().join("memory");
        let found = |lines: &str| group(lines, [root.path(), &first], "db".into());
        write("db/inner/memory.max", "max\n");
        write("db/inner/memory.events", "low 0\nmax 0\n");
        write("db/memory.max", "4096\n");
        write("db/memory.events", "low 0\nmax 0\n");
        assert_eq!(found("0::/db/inner\n"), None, "never met");
        write("db/memory.events", "low 0\nmax 3\n");
        let group = found("0::/db/inner\n").unwrap();
        assert_eq!((group.limit_bytes, group.limit_hits), (4096, 3));
        let file = root.path().join("db/memory.max");
        assert_eq!(group.lift(), format!("echo max > {}", file.display()));
        write("memory/old/memory.limit_in_bytes", "8192\n");
        write("memory/old/memory.failcnt", "5\n");
        let group = found("4:cpu,memory:/old\n0::/\n").unwrap();
        assert_eq!((group.limit_bytes, group.limit_hits), (8192, 5));
        assert!(group.lift().starts_with("echo -1 > "), "{}", group.lift());
    }

    #[test]
    fn open_file_is_found_in_its_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let own = Path::new("/proc/self");
        assert!(has_open(own, &metadata));
        let closed = other.as_file().metadata().unwrap();
        drop(other);
        assert!(!has_open(own, &closed));
    }
}
