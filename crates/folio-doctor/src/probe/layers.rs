//! The chain of layers below a path: file systems, devices, and the files that hold devices.

use super::mounts::{self, Mount};
use super::server;
use folio::vfs::DeviceNumber;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// Layers that are followed down at most: loops of mounts and devices end here.
const STEPS_MAX: usize = 32;
/// Where sysfs is.
const SYS: &str = "/sys";

/// One layer, and how deep below the path it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Step {
    /// 0 is the file system of the path itself; the layer below a layer is one deeper.
    pub depth: usize,
    /// The layer.
    #[serde(flatten)]
    pub layer: Layer,
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Layer {
    /// A mounted file system.
    FileSystem(FileSystem),
    /// A disk, a partition, or a device composed of other devices.
    Disk(Disk),
    /// A file or directory that holds the layer above.
    Path {
        /// From `/`.
        path: PathBuf,
        /// Only inferred: from the name that a FUSE server gives its source.
        by_name: bool,
        /// The layer above is a file system of its own inside this file, not a view of it.
        #[serde(skip)]
        is_image: bool,
    },
    /// Memory, with nothing below it.
    Memory,
    /// Nothing below this can be seen from here.
    Unseen {
        /// Why.
        #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
        why: String,
    },
}

/// A mounted file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
pub struct FileSystem {
    /// As the kernel names it, a FUSE subtype after a dot: `ext4`, `fuse.bindfs`.
    pub fs_type: String,
    /// What it was mounted from.
    pub source: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Mounted directory of the file system: `/`, unless it is a bind mount or a subvolume.
    pub root: PathBuf,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
    /// Of ext4: all that hold, those by default as well (`/proc/fs/ext4`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub effective: Vec<String>,
    /// Of FUSE: the program that serves it, if its process is visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Of FUSE: the absolute path of a relative source, if the server has that file open.
    #[serde(skip)]
    pub served_source: Option<PathBuf>,
    /// Of FUSE: the folder in `/proc` of the server's process.
    #[serde(skip)]
    pub server_process: Option<PathBuf>,
    /// Other mount points of the same file system.
    #[serde(skip)]
    pub other_mounts: Vec<PathBuf>,
}

/// A block device, as sysfs describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
pub struct Disk {
    /// The kernel's name, `vda1`.
    pub name: String,
    /// `disk`, `partition`, `loop`, `dm`, `md`, `bcache`, `nbd` or `zram`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [
        "disk", "partition", "loop", "dm", "md", "bcache", "nbd", "zram",
    ])))]
    pub device_type: &'static str,
    /// What device mapper calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapped_name: Option<String>,
    /// Its maker's name of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether the disk has moving heads; null if unknown, as for most virtual disks.
    pub rotational: Option<bool>,
    /// Bytes.
    pub size_bytes: Option<u64>,
    /// What the kernel reads ahead, in KiB.
    pub read_ahead_kb: Option<u64>,
    /// Of a loop device: the part of the backing file that it shows.
    #[serde(skip)]
    pub loop_range: Option<LoopRange>,
}

/// The part of the backing file that a loop device shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoopRange {
    /// First byte.
    pub offset: u64,
    /// Length in bytes; 0 is up to the end of the file.
    pub limit_bytes: u64,
    /// Whether the kernel releases the device at the unmount.
    pub is_released: bool,
}

/// File systems with no device below them.
const IN_MEMORY: [&str; 14] = [
    "tmpfs",
    "ramfs",
    "devtmpfs",
    "hugetlbfs",
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "debugfs",
    "tracefs",
    "configfs",
    "securityfs",
    "bpf",
    "mqueue",
];

impl FileSystem {
    /// Whether there is nothing below it but memory.
    pub fn is_in_memory(&self) -> bool {
        IN_MEMORY.contains(&self.fs_type.as_str())
    }

    /// Whether an option is set, as `name` or `name=value`.
    pub fn has(&self, name: &str) -> bool {
        self.options
            .iter()
            .any(|option| option.split('=').next() == Some(name))
    }

    /// Whether each answer may take a message to a server: FUSE, network and virtual machine's
    /// shares.
    pub fn is_served(&self) -> bool {
        let kind = self.fs_type.split('.').next().unwrap_or_default();
        const SERVED: [&str; 14] = [
            "fuse", "fuseblk", "virtiofs", "9p", "nfs", "nfs4", "cifs", "smb3", "vboxsf", "ceph",
            "afs", "coda", "orangefs", "prl_fs",
        ];
        SERVED.contains(&kind)
    }

    /// Whether a file's contents in memory can only be pages of that file: a share, but not of
    /// FUSE, whose reads may be passed through or map the server's memory.
    pub(crate) fn has_own_pages(&self) -> bool {
        let is_fuse = self.fs_type.starts_with("fuse") || self.fs_type == "virtiofs";
        self.is_served() && !is_fuse
    }
}

/// Returns the layers below `path`: from its file system down, or of a block device from the
/// device down. Never fails: an unknown layer is reported as such.
pub fn chain_of(path: &Path) -> Vec<Step> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut seeker = Seeker {
        mounts: mounts::parse(&text),
        sys: SYS.into(),
        steps: Vec::new(),
    };
    match fs::metadata(path)
        .ok()
        .filter(|found| found.file_type().is_block_device())
    {
        Some(found) => {
            let device = found.rdev();
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            seeker.device(DeviceNumber::new(major, minor), 0);
        }
        None => seeker.path(path, 0),
    }
    seeker.steps
}

/// Returns the file system of a mount, from tables of the kernel and from processes: no call waits
/// for its server.
pub(crate) fn file_system(mounts: &[Mount], mount: &Mount) -> FileSystem {
    let is_fuse = mount.fs_type.starts_with("fuse");
    let server = is_fuse.then(|| server::of(mount)).flatten();
    let others = mounts.iter().filter(|other| {
        other.id != mount.id && other.device == mount.device && other.source == mount.source
    });
    FileSystem {
        fs_type: mount.fs_type.clone(),
        source: mount.source.clone(),
        mount_point: mount.mount_point.clone(),
        root: mount.root.clone(),
        options: mount.options.clone(),
        effective: effective(mount),
        served_source: server.as_ref().and_then(|server| server.source.clone()),
        server_process: server.as_ref().map(|server| server.process.clone()),
        server: server.map(|server| server.program),
        other_mounts: others.map(|other| other.mount_point.clone()).collect(),
    }
}

/// Returns the options that ext4 itself reports.
fn effective(mount: &Mount) -> Vec<String> {
    let folder = Some(mount)
        .filter(|mount| mount.fs_type == "ext4")
        .and_then(|mount| device_folder(Path::new(SYS), mount.device));
    let Some(name) = folder.as_deref().and_then(Path::file_name) else {
        return Vec::new();
    };
    let text = fs::read_to_string(Path::new("/proc/fs/ext4").join(name).join("options"));
    text.unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Returns the folder of a device in sysfs.
fn device_folder(sys: &Path, device: DeviceNumber) -> Option<PathBuf> {
    let DeviceNumber { major, minor } = device;
    sys.join(format!("dev/block/{major}:{minor}"))
        .canonicalize()
        .ok()
}

struct Seeker {
    mounts: Vec<Mount>,
    /// Where sysfs is.
    sys: PathBuf,
    steps: Vec<Step>,
}

impl Seeker {
    fn push(&mut self, depth: usize, layer: Layer) {
        self.steps.push(Step { depth, layer });
    }

    fn unseen(&mut self, depth: usize, why: impl Into<String>) {
        self.push(depth, Layer::Unseen { why: why.into() });
    }

    /// The file system of a path, and all below.
    fn path(&mut self, path: &Path, depth: usize) {
        if self.steps.len() >= STEPS_MAX {
            return self.unseen(depth, "too many layers");
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let Some(mut mount) = mounts::of(&self.mounts, mount_id(&path), &path).cloned() else {
            return self.unseen(depth, "the mount is not in /proc/self/mountinfo");
        };
        let file_system = file_system(&self.mounts, &mount);
        let source = file_system.served_source.clone();
        self.push(depth, Layer::FileSystem(file_system));
        if let Some(source) = source {
            mount.source = source.display().to_string();
        }
        self.below(&mount, &path, depth + 1);
    }

    fn below(&mut self, mount: &Mount, path: &Path, depth: usize) {
        match mount.fs_type.split('.').next().unwrap_or_default() {
            "overlay" => self.overlay(mount, path, depth),
            kind if IN_MEMORY.contains(&kind) => self.push(depth, Layer::Memory),
            "fuse" => self.fuse(mount, path, depth),
            // Its block device holds nothing: folio has the image open itself.
            "fuseblk" if mount.fs_type == "fuseblk.folio" => self.fuse(mount, path, depth),
            "virtiofs" | "9p" | "vboxsf" | "prl_fs" => {
                self.unseen(
                    depth,
                    format!(
                        "{} of the host, which cannot be seen from here",
                        mount.source
                    ),
                );
            }
            "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "afs" => {
                self.unseen(
                    depth,
                    format!(
                        "the server {}, which cannot be seen from here",
                        mount.source
                    ),
                );
            }
            _ => match self.device_of(mount) {
                Some(device) => self.device(device, depth),
                None => self.unseen(depth, format!("sysfs has no device {}", mount.source)),
            },
        }
    }

    /// Btrfs and other file systems have a device number of their own; the mount source then names
    /// the device.
    fn device_of(&self, mount: &Mount) -> Option<DeviceNumber> {
        if self.folder(mount.device).is_some() {
            return Some(mount.device);
        }
        let source = fs::metadata(&mount.source)
            .ok()
            .filter(|_| mount.source.starts_with('/'))?;
        let device = DeviceNumber::new(
            rustix::fs::major(source.rdev()),
            rustix::fs::minor(source.rdev()),
        );
        self.folder(device).map(|_| device)
    }

    fn folder(&self, device: DeviceNumber) -> Option<PathBuf> {
        device_folder(&self.sys, device)
    }

    /// The layer of an overlay that has the file.
    fn overlay(&mut self, mount: &Mount, path: &Path, depth: usize) {
        let inside = path
            .strip_prefix(&mount.mount_point)
            .unwrap_or(Path::new(""));
        let inside = relative(&mount.root).join(inside);
        let upper = mount.option("upperdir").map(PathBuf::from);
        let lower = mount.option("lowerdir").into_iter().flat_map(split_lower);
        let added = mount
            .options
            .iter()
            .filter_map(|option| option.strip_prefix("lowerdir+="));
        let folders = upper
            .into_iter()
            .chain(lower)
            .chain(added.map(PathBuf::from));
        let found = folders
            .map(|folder| folder.join(&inside))
            .find(|path| path.symlink_metadata().is_ok());
        match found {
            Some(found) => {
                self.push(
                    depth,
                    Layer::Path {
                        path: found.clone(),
                        by_name: false,
                        is_image: false,
                    },
                );
                self.path(&found, depth + 1);
            }
            None => self.unseen(depth, "the layers of the overlay cannot be seen from here"),
        }
    }

    /// Only a FUSE server knows what it reads; most servers name it as the mount source.
    fn fuse(&mut self, mount: &Mount, path: &Path, depth: usize) {
        let source = PathBuf::from(&mount.source);
        if !source.is_absolute() || !source.exists() || source.starts_with(&mount.mount_point) {
            return self.unseen(depth, "what the FUSE server reads cannot be seen");
        }
        let inside = path
            .strip_prefix(&mount.mount_point)
            .unwrap_or(Path::new(""));
        let below = source.join(relative(&mount.root)).join(inside);
        let is_image = !source.is_dir();
        let below = if !is_image && below.exists() {
            below
        } else {
            source
        };
        self.push(
            depth,
            Layer::Path {
                path: below.clone(),
                by_name: true,
                is_image,
            },
        );
        self.path(&below, depth + 1);
    }

    fn device(&mut self, device: DeviceNumber, depth: usize) {
        if self.steps.len() >= STEPS_MAX {
            return self.unseen(depth, "too many layers");
        }
        let Some(folder) = self.folder(device) else {
            return self.unseen(
                depth,
                format!("device {}:{} is not in sysfs", device.major, device.minor),
            );
        };
        self.push(depth, Layer::Disk(disk(&folder)));
        if let Some(file) = word(&folder.join("loop/backing_file")) {
            let path = PathBuf::from(&file);
            if !path.exists() {
                return self.unseen(
                    depth + 1,
                    format!("{file} is deleted, or not to be seen from here"),
                );
            }
            self.push(
                depth + 1,
                Layer::Path {
                    path: path.clone(),
                    by_name: false,
                    is_image: true,
                },
            );
            return self.path(&path, depth + 2);
        }
        let parts = fs::read_dir(folder.join("slaves"))
            .into_iter()
            .flatten()
            .flatten();
        let mut parts: Vec<_> = parts.filter_map(|part| numbers(&part.path())).collect();
        parts.sort_unstable();
        for part in parts {
            self.device(part, depth + 1);
        }
        if folder.join("partition").exists()
            && let Some(whole) = folder.parent().and_then(numbers)
        {
            self.device(whole, depth + 1);
        }
    }
}

/// A path without its root, so that it can be joined to another.
fn relative(path: &Path) -> PathBuf {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect()
}

/// `lowerdir`: separated by colons, which a backslash protects; `::` begins layers that hold only
/// data.
fn split_lower(text: &str) -> Vec<PathBuf> {
    let mut folders = vec![String::new()];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ':' => folders.push(String::new()),
            '\\' => folders
                .last_mut()
                .into_iter()
                .for_each(|last| last.extend(letters.next())),
            _ => folders
                .last_mut()
                .into_iter()
                .for_each(|last| last.push(letter)),
        }
    }
    folders
        .into_iter()
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .collect()
}

/// The number of the mount that a path is on, from /proc/self/fdinfo.
fn mount_id(path: &Path) -> Option<u64> {
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?
        .trim()
        .parse()
        .ok()
}

/// The number of a device by its folder in sysfs.
fn numbers(folder: &Path) -> Option<DeviceNumber> {
    let text = word(&folder.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some(DeviceNumber::new(major.parse().ok()?, minor.parse().ok()?))
}

/// What a file of one line says.
fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn disk(folder: &Path) -> Disk {
    let name = folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let is_partition = folder.join("partition").exists();
    // A partition has its queue one folder up.
    let queues = [folder.join("queue"), folder.join("../queue")];
    let queue = |file: &str| queues.iter().find_map(|queue| word(&queue.join(file)));
    let device_type = match () {
        () if is_partition => "partition",
        () if folder.join("loop").exists() || name.starts_with("loop") => "loop",
        () if folder.join("dm").exists() => "dm",
        () if folder.join("md").exists() => "md",
        () if name.starts_with("bcache") => "bcache",
        () if name.starts_with("nbd") => "nbd",
        () if name.starts_with("zram") => "zram",
        () => "disk",
    };
    Disk {
        device_type,
        mapped_name: word(&folder.join("dm/name")),
        model: word(&folder.join("device/model")),
        rotational: rotational(&name, queue("rotational")),
        // sysfs counts sectors of 512 bytes, whatever the device has.
        size_bytes: word(&folder.join("size"))
            .and_then(|text| text.parse::<u64>().ok()?.checked_mul(512)),
        read_ahead_kb: queue("read_ahead_kb").and_then(|text| text.parse().ok()),
        loop_range: loop_range(&folder.join("loop")),
        name,
    }
}

fn loop_range(folder: &Path) -> Option<LoopRange> {
    let number = |name: &str| word(&folder.join(name))?.parse::<u64>().ok();
    Some(LoopRange {
        offset: number("offset")?,
        limit_bytes: number("sizelimit")?,
        is_released: number("autoclear")? == 1,
    })
}

/// Drivers of virtual and network disks say of all of them that heads move, whatever the host has;
/// a loop device has no heads of its own.
fn rotational(name: &str, queue: Option<String>) -> Option<bool> {
    let is_anything = ["vd", "xvd", "nbd", "rbd", "loop"]
        .iter()
        .any(|driver| name.starts_with(driver));
    queue
        .map(|text| text == "1")
        .filter(|moves| !(*moves && is_anything))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs with a disk, its partition, and a device made of that.
    fn sysfs() -> tempfile::TempDir {
        let sys = tempfile::TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = sys.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("devices/sda/dev", "8:0\n");
        write("devices/sda/size", "2048\n");
        write("devices/sda/queue/rotational", "1\n");
        write("devices/sda/queue/read_ahead_kb", "128\n");
        write("devices/sda/device/model", "ST4000  \n");
        write("devices/sda/sda1/dev", "8:1\n");
        write("devices/sda/sda1/partition", "1\n");
        write("devices/dm-0/dev", "253:0\n");
        write("devices/dm-0/dm/name", "vg-data\n");
        write("devices/dm-0/queue/rotational", "1\n");
        fs::create_dir_all(sys.path().join("devices/dm-0/slaves")).unwrap();
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        symlink(
            "../../sda/sda1",
            sys.path().join("devices/dm-0/slaves/sda1"),
        )
        .unwrap();
        for (number, folder) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("253:0", "dm-0")] {
            symlink(
                format!("../../devices/{folder}"),
                sys.path().join("dev/block").join(number),
            )
            .unwrap();
        }
        sys
    }

    #[test]
    fn devices_are_followed_down_to_the_disk() {
        let sys = sysfs();
        let mut seeker = Seeker {
            mounts: Vec::new(),
            sys: sys.path().into(),
            steps: Vec::new(),
        };
        seeker.device(DeviceNumber::new(253, 0), 1);
        let disks: Vec<_> = seeker
            .steps
            .iter()
            .map(|step| match &step.layer {
                Layer::Disk(disk) => (
                    step.depth,
                    disk.name.as_str(),
                    disk.device_type,
                    disk.rotational,
                ),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            disks,
            [
                (1, "dm-0", "dm", Some(true)),
                (2, "sda1", "partition", Some(true)),
                (3, "sda", "disk", Some(true))
            ]
        );
        let Layer::Disk(disk) = &seeker.steps[2].layer else {
            panic!()
        };
        assert_eq!(
            (disk.size_bytes, disk.read_ahead_kb),
            (Some(1 << 20), Some(128))
        );
        assert_eq!(disk.model.as_deref(), Some("ST4000"));
        let mut seeker = Seeker {
            steps: Vec::new(),
            ..seeker
        };
        seeker.device(DeviceNumber::new(9, 9), 1);
        assert!(matches!(&seeker.steps[0].layer, Layer::Unseen { why } if why.contains("9:9")));
    }

    #[test]
    fn virtual_disk_does_not_count_as_rotational() {
        let of = |name, queue: &str| rotational(name, Some(queue.to_owned()));
        assert_eq!(
            (of("sda", "1"), of("sda", "0"), rotational("sda", None)),
            (Some(true), Some(false), None)
        );
        assert_eq!(
            (of("vda", "1"), of("vda", "0"), of("loop0", "1")),
            (None, Some(false), None)
        );
    }

    #[test]
    fn the_layer_of_an_overlay_that_has_the_file_is_found() {
        let folder = tempfile::TempDir::new().unwrap();
        for name in ["upper", "a:b", "low"] {
            fs::create_dir_all(folder.path().join(name).join("etc")).unwrap();
        }
        fs::write(folder.path().join("a:b/etc/conf"), "").unwrap();
        fs::write(folder.path().join("low/etc/conf"), "").unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let lower = format!("{}:{}", at("a:b").replace("a:b", "a\\:b"), at("low"));
        assert_eq!(
            split_lower(&lower),
            [folder.path().join("a:b"), folder.path().join("low")]
        );
        let mount = Mount {
            id: 1,
            device: DeviceNumber::new(0, 1),
            root: "/".into(),
            mount_point: "/merged".into(),
            fs_type: "overlay".into(),
            source: "overlay".into(),
            options: vec![
                format!("upperdir={}", at("upper")),
                format!("lowerdir={lower}"),
            ],
        };
        let mut seeker = Seeker {
            mounts: Vec::new(),
            sys: "/nowhere".into(),
            steps: Vec::new(),
        };
        seeker.overlay(&mount, Path::new("/merged/etc/conf"), 1);
        let Layer::Path { path, .. } = &seeker.steps[0].layer else {
            panic!("{:?}", seeker.steps)
        };
        assert_eq!(path, &folder.path().join("a:b/etc/conf"));
    }

    #[test]
    fn the_chain_of_this_folder_starts_with_a_file_system() {
        let steps = chain_of(Path::new("."));
        assert!(
            matches!(
                steps[0],
                Step {
                    depth: 0,
                    layer: Layer::FileSystem(_)
                }
            ),
            "{steps:?}"
        );
        assert!(steps.len() <= STEPS_MAX + 1);
    }

    #[test]
    fn served_and_local_file_systems_differ() {
        let of = |fs_type: &str| FileSystem {
            fs_type: fs_type.into(),
            source: String::new(),
            mount_point: "/".into(),
            root: "/".into(),
            options: vec!["nodelalloc".into(), "commit=5".into()],
            ..FileSystem::default()
        };
        assert!(
            of("tmpfs").is_in_memory() && of("proc").is_in_memory() && !of("ext4").is_in_memory()
        );
        assert!(
            of("fuse.bindfs").is_served() && of("9p").is_served() && of("virtiofs").is_served()
        );
        assert!(!of("ext4").is_served() && !of("overlay").is_served());
        assert!(of("ext4").has("nodelalloc") && of("ext4").has("commit") && !of("ext4").has("com"));
    }
}
