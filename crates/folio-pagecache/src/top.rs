//! The files that fill the page cache: those of all local mounts, and deleted files that programs
//! still hold open.
//!
//! Not reported: block devices, whose pages the kernel counts as `Buffers`, and shared memory
//! without a file.

use crate::residency::ResidencyReport;
use crate::scan::{Scan, Walked};
use crate::survey::State;
use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// File systems without file pages, or whose pages belong to another file system.
const BARE: [&str; 22] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "efivarfs",
    "fusectl",
    "fuse.gvfsd-fuse",
    "fuse.portal",
    "mqueue",
    "nfsd",
    "nsfs",
    "overlay",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "sysfs",
    "tracefs",
];
/// File systems that may be remote, or served by a program that hangs: a full walk may be slow.
const REMOTE: [&str; 12] = [
    "9p",
    "afs",
    "ceph",
    "cifs",
    "fuse",
    "gfs2",
    "glusterfs",
    "lustre",
    "nfs",
    "nfs4",
    "ocfs2",
    "smb3",
];

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number.
    device: String,
    /// Mounted root within the file system.
    root: PathBuf,
    /// Mount point.
    pub path: PathBuf,
    /// File system type.
    pub kind: String,
}

/// The mounts to walk, and the ones skipped because they may be slow.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mounts {
    /// Mounts to walk.
    pub near: Vec<Mount>,
    /// Skipped mounts.
    pub far: Vec<Mount>,
}

/// A file with resident pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedFile {
    /// The file; for a file found through a program, the path in its table of open files.
    pub state: State,
    /// Process id and name of the program through which the file was found, if any.
    pub holder: Option<(u32, String)>,
}

/// The result of [`top`].
#[derive(Debug, Default)]
pub struct Top {
    /// Files with resident pages, largest residency first.
    pub held: Vec<CachedFile>,
    /// Count of files whose residency is unknown.
    pub unknown_files: u64,
    /// Paths that could not be examined, each with the reason.
    pub failures: Vec<(PathBuf, String)>,
}

impl Mounts {
    /// Returns the mounts in this process's mount namespace.
    pub fn here() -> Self {
        Self::of(&fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    /// Selects one mount for each file system: the one that shows most of it. Overlays count only
    /// if `/` is one, because their pages belong to the file systems below. See
    /// proc_pid_mountinfo(5).
    fn of(text: &[u8]) -> Self {
        let all = text.split(|byte| *byte == b'\n').filter_map(Mount::parse);
        let mut near: Vec<Mount> = Vec::new();
        let mut far: Vec<Mount> = Vec::new();
        for mount in all {
            let is_whole = mount.kind == "overlay" && mount.path == Path::new("/");
            if BARE.contains(&mount.kind.as_str()) && !is_whole {
                continue;
            }
            let kind = mount.kind.split('.').next().unwrap_or_default();
            let list = if REMOTE.contains(&kind) {
                &mut far
            } else {
                &mut near
            };
            if list.iter().any(|other| other.shows(&mount)) {
                continue;
            }
            list.retain(|other| !mount.shows(other));
            list.push(mount);
        }
        Self { near, far }
    }
}

impl Mount {
    /// Returns whether the file system is on the block device with this number (`st_rdev`).
    pub fn is_on(&self, device: u64) -> bool {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        self.device == format!("{major}:{minor}")
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|byte| *byte == b' ').skip(2);
        let device = String::from_utf8_lossy(words.next()?).into_owned();
        let (root, path) = (unescape(words.next()?), unescape(words.next()?));
        let kind =
            String::from_utf8_lossy(words.skip_while(|word| *word != b"-").nth(1)?).into_owned();
        Some(Self {
            device,
            root,
            path,
            kind,
        })
    }

    /// Returns whether this mount shows everything that `other` shows.
    fn shows(&self, other: &Self) -> bool {
        self.device == other.device && other.root.starts_with(&self.root)
    }
}

/// Decodes octal escapes such as `\040`.
fn unescape(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut at = 0;
    while let Some(byte) = word.get(at) {
        let digits = word.get(at + 1..at + 4).filter(|_| *byte == b'\\');
        let number =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(number.unwrap_or(*byte));
        at += if number.is_some() { 4 } else { 1 };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Examines all files below `paths`, without crossing mount points. With `is_whole`, also examines
/// files that programs have open or mapped and that no walk finds. `seen` counts the files examined
/// so far.
pub fn top(scan: &Scan, paths: &[PathBuf], is_whole: bool, seen: &AtomicU64) -> Top {
    let unknown = AtomicU64::new(0);
    let look = |path: &Path| -> std::io::Result<Option<State>> {
        seen.fetch_add(1, Ordering::Relaxed);
        let state = State::look(path)?;
        match &state.known {
            ResidencyReport::Unknown(_) => unknown.fetch_add(1, Ordering::Relaxed),
            ResidencyReport::Known(found) if found.resident_bytes > 0 => return Ok(Some(state)),
            ResidencyReport::Known(_) => 0,
        };
        Ok(None)
    };
    let Walked {
        found, failures, ..
    } = scan.each(paths, |path, _| look(path));
    let mut ids = HashSet::new();
    let mut held: Vec<CachedFile> = found
        .into_iter()
        .map(|state| CachedFile {
            state,
            holder: None,
        })
        .filter(|held| ids.insert(held.state.id))
        .collect();
    if is_whole {
        for process in Process::all() {
            held.append(&mut process.held(&mut ids, &look));
        }
    }
    let bytes = |held: &CachedFile| {
        held.state
            .residency()
            .map_or(0, |found| found.resident_bytes)
    };
    held.sort_by(|a, b| {
        bytes(b)
            .cmp(&bytes(a))
            .then_with(|| a.state.path.cmp(&b.state.path))
    });
    Top {
        held,
        unknown_files: unknown.into_inner(),
        failures,
    }
}

/// A running program.
struct Process {
    number: u32,
    folder: PathBuf,
}

impl Process {
    fn all() -> impl Iterator<Item = Self> {
        let own = std::process::id();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            (number != own).then(|| Self {
                number,
                folder: entry.path(),
            })
        })
    }

    /// Returns the files that the process has open, and the deleted files that it has mapped,
    /// except those in `ids`. Skips files that were closed meanwhile, and processes of other users.
    fn held(
        &self,
        ids: &mut HashSet<(u64, u64)>,
        look: &impl Fn(&Path) -> std::io::Result<Option<State>>,
    ) -> Vec<CachedFile> {
        let mut held = Vec::new();
        let open = fs::read_dir(self.folder.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        for link in open.chain(self.deleted_maps()) {
            let Ok(found) = fs::metadata(&link) else {
                continue;
            };
            if !found.is_file() || !ids.insert((found.dev(), found.ino())) {
                continue;
            }
            let Ok(Some(mut state)) = look(&link) else {
                continue;
            };
            state.path = fs::read_link(&link).unwrap_or(link);
            held.push(CachedFile {
                state,
                holder: Some((self.number, self.name())),
            });
        }
        held
    }

    /// Returns the deleted files that the process has mapped: libraries before an update, for
    /// example.
    fn deleted_maps(&self) -> Vec<PathBuf> {
        let text = fs::read(self.folder.join("maps")).unwrap_or_default();
        let lines = text
            .split(|byte| *byte == b'\n')
            .filter(|line| line.ends_with(b" (deleted)"));
        let ranges = lines.filter_map(|line| line.split(|byte| *byte == b' ').next());
        ranges
            .map(|range| {
                self.folder
                    .join("map_files")
                    .join(std::ffi::OsStr::from_bytes(range))
            })
            .collect()
    }

    fn name(&self) -> String {
        let name = fs::read(self.folder.join("comm")).unwrap_or_default();
        String::from_utf8_lossy(&name).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn file_system_is_walked_once_and_remote_skipped() {
        let text = br"21 1 254:0 /srv /srv rw - ext4 /dev/vda rw
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /proc rw - proc proc rw
24 22 254:0 /var/lib /mnt/with\040space rw - ext4 /dev/vda rw
25 22 0:40 /a /home rw - btrfs /dev/vdb rw
26 22 0:40 /b /opt rw - btrfs /dev/vdb rw
27 22 0:41 / /net rw - nfs4 server:/x rw
28 22 0:42 / /ssh rw - fuse.sshfs x rw
29 22 0:43 / /merged rw - overlay overlay rw
30 22 0:44 / /dev/shm rw - tmpfs tmpfs rw
broken
";
        let mounts = Mounts::of(text);
        let paths = |mounts: &[Mount]| {
            mounts
                .iter()
                .map(|mount| mount.path.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            paths(&mounts.near),
            ["/", "/home", "/opt", "/dev/shm"].map(PathBuf::from)
        );
        assert_eq!(paths(&mounts.far), ["/net", "/ssh"].map(PathBuf::from));
        assert_eq!(unescape(br"/a\040b\134"), PathBuf::from("/a b\\"));
        let whole = Mounts::of(b"1 0 0:43 / / rw - overlay overlay rw");
        assert_eq!(paths(&whole.near), [PathBuf::from("/")]);
    }

    #[test]
    fn deleted_file_is_found_through_its_process() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("held");
        fs::write(&path, vec![7; 50_000]).unwrap();
        let file = fs::File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let process = Process {
            number: std::process::id(),
            folder: "/proc/self".into(),
        };
        let mut ids = HashSet::new();
        let held = process.held(&mut ids, &|path| State::look(path).map(Some));
        let id = (
            file.metadata().unwrap().dev(),
            file.metadata().unwrap().ino(),
        );
        let found = held.iter().find(|held| held.state.id == id).unwrap();
        assert!(
            found
                .state
                .path
                .to_str()
                .unwrap()
                .ends_with("held (deleted)"),
            "{found:?}"
        );
        assert_eq!(found.state.residency().unwrap().resident_bytes, 50_000);
        assert!(
            process
                .held(&mut ids, &|path| State::look(path).map(Some))
                .iter()
                .all(|held| held.state.id != id)
        );
    }

    #[test]
    fn resident_files_are_sorted_largest_first() {
        let folder = tempfile::TempDir::new().unwrap();
        for (name, len) in [("small", 5000), ("large", 50_000), ("empty", 0)] {
            let mut file = fs::File::create(folder.path().join(name)).unwrap();
            file.write_all(&vec![7; len]).unwrap();
        }
        let found = top(
            &Scan::default(),
            &[folder.path().to_owned()],
            false,
            &AtomicU64::new(0),
        );
        let names: Vec<_> = found
            .held
            .iter()
            .map(|held| held.state.path.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["large", "small"]);
    }
}
