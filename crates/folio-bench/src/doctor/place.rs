//! File systems to put set-ups on.

use crate::command::lacking_root;
use crate::hosted::{Hosted, System, WriteLimit, throttle_missing};
use crate::outcome::{Context, Outcome};
use crate::race::{Run, scratch_in};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const SIZE_MIB: u64 = 1024;
/// Rate of a slow disk.
const SLOW_BYTES_PER_S: u64 = 32 << 20;
/// Writes per second of a slow disk: a flush of the journal takes some.
const SLOW_PER_S: u64 = 2000;
/// Memory of a control group.
const GROUP_BYTES: u64 = 64 << 20;
/// Controllers of memory: their folder, and the file of the limit.
const GROUPS: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
];

/// A file system on a loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoopOptions {
    pub(super) fs_type: &'static str,
    /// Options of the mount.
    pub(super) options: &'static str,
    /// Whether its disk is slow, and always as slow.
    pub(super) is_slow: bool,
}

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// The folder on the real disk.
    Disk,
    /// That folder, for commands with little memory.
    Group,
    Memory,
    /// A file system of the kernel on a loop device.
    Loop(LoopOptions),
    /// A folder of the host by `folio mount`, with these options.
    Share(&'static str),
    /// An image by `folio mount`.
    Image,
}

impl Place {
    /// Returns a file system on a disk that is as fast as it can be.
    pub(super) const fn fast(fs_type: &'static str, options: &'static str) -> Self {
        Self::Loop(LoopOptions {
            fs_type,
            options,
            is_slow: false,
        })
    }

    /// Returns a file system on a slow disk.
    pub(super) const fn slow(fs_type: &'static str, options: &'static str) -> Self {
        Self::Loop(LoopOptions {
            fs_type,
            options,
            is_slow: true,
        })
    }

    /// In words.
    pub(super) fn name(self) -> String {
        let with = |name: &str, options: &str| match options {
            "" => name.to_owned(),
            options => format!("{name} -o {options}"),
        };
        match self {
            Self::Disk => "disk".to_owned(),
            Self::Group => "disk, 64 MiB of memory".to_owned(),
            Self::Memory => "tmpfs".to_owned(),
            Self::Loop(disk) if disk.is_slow => {
                with(&format!("slow {}", disk.fs_type), disk.options)
            }
            Self::Loop(disk) => with(disk.fs_type, disk.options),
            Self::Share(options) => with("share", options),
            Self::Image => "image".to_owned(),
        }
    }

    /// Returns why it cannot be made here.
    pub(super) fn missing(self, folio: &Path) -> Option<String> {
        match self {
            Self::Disk | Self::Memory => None,
            Self::Group => group_folder().err().or_else(lacking_root),
            Self::Loop(disk) => {
                let limit = disk.is_slow.then(throttle_missing).flatten();
                System::Kernel(disk.fs_type).missing().or(limit)
            }
            Self::Share(_) | Self::Image => System::Folio(folio.to_owned()).missing(),
        }
    }
}

/// Returns the folder of the memory controller and the name of its limit.
fn group_folder() -> Result<(PathBuf, &'static str), String> {
    let mut groups = GROUPS.into_iter();
    let found = groups.find(|(folder, _)| {
        let names =
            ["memory.usage_in_bytes", "memory.current"].map(|name| Path::new(folder).join(name));
        let has_controller =
            std::fs::read_to_string(Path::new(folder).join("cgroup.subtree_control"));
        names.iter().any(|name| name.exists())
            || has_controller.is_ok_and(|text| text.contains("memory"))
    });
    let (folder, limit) = found.ok_or("no memory controller of control groups")?;
    Ok((Path::new(folder).join("folio-bench-doctor"), limit))
}

/// A place that is ready; dropping it unmounts it.
pub(super) struct OpenPlace {
    pub(super) place: Place,
    /// The folder for set-ups.
    pub(super) root: PathBuf,
    /// Of [`Place::Group`].
    group: Option<Group>,
    _keeps: Keeps,
}

/// What a place needs while it is in use.
enum Keeps {
    Nothing,
    Folder { _folder: TempDir },
    Mount { _mount: Hosted },
}

impl OpenPlace {
    /// Makes a place below `scratch`.
    pub(super) fn open(place: Place, scratch: &Path, run: &Run<'_>) -> Outcome<Self> {
        let mut group = None;
        let (root, keeps) = match place {
            Place::Disk => (scratch.join("disk"), Keeps::Nothing),
            Place::Group => {
                group = Some(Group::new()?);
                (scratch.join("group"), Keeps::Nothing)
            }
            Place::Memory => {
                let folder = scratch_in(Path::new("/dev/shm"))?;
                let root = folder.path().to_owned();
                (root, Keeps::Folder { _folder: folder })
            }
            Place::Loop(disk) => {
                let system = System::Kernel(disk.fs_type);
                let mut mount = Hosted::fresh(system, scratch, SIZE_MIB, disk.options)?;
                if disk.is_slow {
                    mount.throttle(WriteLimit::BytesPerSecond(SLOW_BYTES_PER_S))?;
                    mount.throttle(WriteLimit::PerSecond(SLOW_PER_S))?;
                }
                (mount.mount_point.clone(), Keeps::Mount { _mount: mount })
            }
            Place::Share(options) => {
                let mount = Hosted::directory(&run.folio, scratch, options)?;
                (mount.mount_point.clone(), Keeps::Mount { _mount: mount })
            }
            Place::Image => {
                let system = System::Folio(run.folio.clone());
                let mount = Hosted::fresh(system, scratch, SIZE_MIB, "")?;
                (mount.mount_point.clone(), Keeps::Mount { _mount: mount })
            }
        };
        std::fs::create_dir_all(&root).at(&root)?;
        Ok(Self {
            place,
            root,
            group,
            _keeps: keeps,
        })
    }

    /// Returns a command that runs with the memory of the place.
    pub(super) fn command(&self, program: &OsStr) -> Command {
        let Some(group) = &self.group else {
            return Command::new(program);
        };
        let mut shell = Command::new("sh");
        let enter = format!(
            "echo $$ > {}/cgroup.procs && exec \"$@\"",
            group.folder.display()
        );
        shell.args(["-c", &enter, "sh"]).arg(program);
        shell
    }
}

/// A control group with little memory.
struct Group {
    folder: PathBuf,
}

impl Group {
    fn new() -> Outcome<Self> {
        let (folder, limit) = group_folder()?;
        std::fs::create_dir_all(&folder).at(&folder)?;
        let group = Self { folder };
        let limit = group.folder.join(limit);
        std::fs::write(&limit, GROUP_BYTES.to_string()).at(&limit)?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A drop cannot report a failure; the group has no process any more.
        let _ = std::fs::remove_dir(&self.folder);
    }
}
