//! The program that serves a FUSE mount.
//!
//! Linux reports in /proc/PID/fdinfo which connection a descriptor of /dev/fuse serves
//! (`fuse_connection`: the minor number of the mount's device). An older kernel omits it. The
//! server is then inferred from the words that processes were started with, if one program fits.

use super::mounts::Mount;
use crate::bounded;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The device that a server holds open for each connection.
const DEVICE: &str = "/dev/fuse";
const CONNECTION: &str = "fuse_connection:";

/// The server of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// The name of its program.
    pub(super) program: String,
    /// The folder in `/proc` of its process.
    pub(super) process: PathBuf,
    /// The absolute path of the mount's relative source, if the server has that file open.
    pub(super) source: Option<PathBuf>,
}

/// A process that has /dev/fuse open.
#[derive(Debug)]
struct Process {
    folder: PathBuf,
    program: String,
    words: Vec<PathBuf>,
    /// The connections that it serves, as far as the kernel reports them.
    connections: Vec<u32>,
}

/// Returns the server of a FUSE mount; `None` if it cannot be determined.
pub(super) fn of(mount: &Mount) -> Option<Server> {
    let mut entries: Vec<_> = fs::read_dir("/proc").ok()?.flatten().collect();
    // A child inherits the descriptor; its parent usually has the lower number.
    entries.sort_by_key(|entry| {
        let name = entry.file_name();
        name.to_str().and_then(|name| name.parse::<u32>().ok())
    });
    let all: Vec<Process> = entries
        .iter()
        .filter_map(|entry| Process::at(&entry.path()))
        .collect();
    let process = among(&all, mount)?;
    Some(Server {
        program: process.program.clone(),
        process: process.folder.clone(),
        source: process.source(&mount.source),
    })
}

fn among<'a>(all: &'a [Process], mount: &Mount) -> Option<&'a Process> {
    // The kernel's form of a device number. The major number of `fuseblk` is not zero.
    let number = mount.device.major << 20 | mount.device.minor;
    if all.iter().any(|process| !process.connections.is_empty()) {
        return all
            .iter()
            .find(|process| process.connections.contains(&number));
    }
    let named: Vec<_> = all
        .iter()
        .filter(|process| process.is_started_with(&mount.mount_point))
        .collect();
    let programs: BTreeSet<_> = named.iter().map(|process| &process.program).collect();
    named.first().copied().filter(|_| programs.len() == 1)
}

impl Process {
    fn at(folder: &Path) -> Option<Self> {
        let mut is_server = false;
        let mut connections = Vec::new();
        for fd in fs::read_dir(folder.join("fd")).ok()?.flatten() {
            if !fs::read_link(fd.path()).is_ok_and(|path| path == Path::new(DEVICE)) {
                continue;
            }
            is_server = true;
            let text = fs::read_to_string(folder.join("fdinfo").join(fd.file_name()));
            connections.extend(text.ok().as_deref().and_then(connection));
        }
        if !is_server {
            return None;
        }
        let line = fs::read(folder.join("cmdline")).ok()?;
        let mut words = line
            .split(|byte| *byte == 0)
            .map(|word| PathBuf::from(OsStr::from_bytes(word)));
        let program = words.next()?.file_name()?.to_string_lossy().into_owned();
        Some(Self {
            folder: folder.to_owned(),
            program,
            words: words.collect(),
            connections,
        })
    }

    /// Returns whether a word of the command line is the mount point, or the end of it: servers
    /// change to `/` at their start, so a relative word cannot be resolved.
    fn is_started_with(&self, mount_point: &Path) -> bool {
        let names = |word: &PathBuf| word.file_name().is_some() && mount_point.ends_with(word);
        self.words.iter().any(names)
    }

    /// Finds the open file that a relative source names.
    fn source(&self, source: &str) -> Option<PathBuf> {
        let source = Path::new(source);
        if source.is_absolute() || source.file_name().is_none() {
            return None;
        }
        let open = fs::read_dir(self.folder.join("fd")).ok()?.flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok())
            .filter(|path| path.is_absolute() && path.ends_with(source))
            .find(|path| bounded::metadata(path).is_some())
    }
}

fn connection(fdinfo: &str) -> Option<u32> {
    let line = fdinfo
        .lines()
        .find_map(|line| line.strip_prefix(CONNECTION))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::vfs::DeviceNumber;

    fn process(program: &str, words: &[&str], connections: &[u32]) -> Process {
        Process {
            folder: PathBuf::new(),
            program: program.into(),
            words: words.iter().map(PathBuf::from).collect(),
            connections: connections.to_vec(),
        }
    }

    fn mount() -> Mount {
        Mount {
            id: 7,
            device: DeviceNumber::new(0, 39),
            root: "/".into(),
            mount_point: "/srv/share/mount".into(),
            fs_type: "fuse".into(),
            source: "disk.img".into(),
            options: Vec::new(),
        }
    }

    fn found(all: &[Process]) -> Option<&str> {
        among(all, &mount()).map(|process| process.program.as_str())
    }

    #[test]
    fn connection_number_decides_over_words() {
        let other = process("sshfs", &["host:", "/other/mount"], &[38]);
        let server = process("fuse2fs", &["disk.img"], &[40, 39]);
        assert_eq!(found(&[other, server]), Some("fuse2fs"));
        let unrelated = process("sshfs", &["host:", "/srv/share/mount"], &[38]);
        assert_eq!(found(&[unrelated]), None, "it serves another connection");
    }

    #[test]
    fn ambiguous_words_name_no_server() {
        let one = process("sshfs", &["host:", "mount"], &[]);
        let two = process("bindfs", &["/srv", "share/mount"], &[]);
        assert_eq!(found(&[one, two]), None);
        let one = process("sshfs", &["host:", "mount"], &[]);
        let child = process("sshfs", &["host:", "mount"], &[]);
        let other = process("bindfs", &["/srv", "elsewhere"], &[]);
        assert_eq!(found(&[one, child, other]), Some("sshfs"));
    }

    #[test]
    fn fdinfo_names_the_connection() {
        let text = "pos:\t0\nflags:\t0100002\nmnt_id:\t24\nfuse_connection:\t39\n";
        assert_eq!(connection(text), Some(39));
        assert_eq!(connection("pos:\t0\nmnt_id:\t24\n"), None);
    }
}
