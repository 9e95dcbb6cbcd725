//! The contenders: how each one builds an image from a tree, or extracts a tree from an image.

use crate::measure::Meter;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// One way to do the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    FolioRaw,
    FolioQcow2,
    Mke2fs,
    Debugfs,
    Kernel,
}

/// The programs that contenders run.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) folio: PathBuf,
}

/// One image or tree to make.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) programs: &'a Programs,
    /// The tree to copy, or the image to extract.
    pub(crate) from: &'a Path,
    /// The image or the folder to make; absent before.
    pub(crate) to: &'a Path,
    /// Path of the tree in the image.
    pub(crate) place: &'a str,
    /// An empty folder to mount on.
    pub(crate) mount_point: &'a Path,
    pub(crate) size_mib: u64,
}

/// Finds a program on PATH and in the folders of system programs.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

impl Contender {
    /// The contenders that build images.
    pub(crate) const BUILDERS: [Self; 4] =
        [Self::FolioRaw, Self::FolioQcow2, Self::Mke2fs, Self::Kernel];
    /// The contenders that extract trees.
    pub(crate) const EXTRACTORS: [Self; 4] = [
        Self::FolioRaw,
        Self::FolioQcow2,
        Self::Debugfs,
        Self::Kernel,
    ];

    /// Returns its commands, in words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FolioRaw => "folio, raw",
            Self::FolioQcow2 => "folio, qcow2",
            Self::Mke2fs => "mke2fs -d, raw",
            Self::Debugfs => "debugfs rdump, raw",
            Self::Kernel => "kernel loop mount, raw",
        }
    }

    /// Why it cannot run here.
    pub(crate) fn missing(self) -> Option<String> {
        let programs: &[&str] = match self {
            Self::FolioRaw | Self::FolioQcow2 => &[],
            Self::Mke2fs => &["mke2fs"],
            Self::Debugfs => &["debugfs"],
            Self::Kernel => &["mke2fs", "losetup", "mount", "umount", "cp"],
        };
        if let Some(name) = programs.iter().find(|name| find(name).is_none()) {
            return Some(format!("{name} is not installed"));
        }
        (self == Self::Kernel && !rustix::process::geteuid().is_root())
            .then(|| "needs root".to_owned())
    }

    /// Returns whether it works on qcow2.
    pub(crate) fn is_qcow2(self) -> bool {
        self == Self::FolioQcow2
    }

    /// Builds the image.
    pub(crate) fn build(self, job: &Job<'_>, meter: &mut Meter) -> Result<(), String> {
        match self {
            Self::FolioRaw | Self::FolioQcow2 => {
                let size = format!("{}M", job.size_mib);
                let to = inside(job.to, job.place);
                let arguments = [
                    OsStr::new("cp"),
                    OsStr::new("-a"),
                    job.from.as_os_str(),
                    &to,
                ];
                let create = ["--create", &size].map(OsStr::new);
                meter
                    .run(
                        job.programs.folio.as_os_str(),
                        arguments.into_iter().chain(create),
                    )
                    .map(drop)
            }
            Self::Mke2fs | Self::Debugfs => mke2fs(job.to, job.size_mib, Some(job.from), meter),
            Self::Kernel => {
                mke2fs(job.to, job.size_mib, None, meter)?;
                mounted(job.to, job.mount_point, meter, |meter| {
                    let to = job.mount_point.join(job.place.trim_start_matches('/'));
                    copy(job.from, &to, meter)
                })
            }
        }
    }

    /// Extracts the tree of the image.
    pub(crate) fn extract(self, job: &Job<'_>, meter: &mut Meter) -> Result<(), String> {
        match self {
            Self::FolioRaw | Self::FolioQcow2 => {
                let from = inside(job.from, job.place);
                let arguments = [
                    OsStr::new("cp"),
                    OsStr::new("-a"),
                    &from,
                    job.to.as_os_str(),
                ];
                meter
                    .run(job.programs.folio.as_os_str(), arguments)
                    .map(drop)
            }
            Self::Debugfs | Self::Mke2fs => {
                std::fs::create_dir(job.to)
                    .map_err(|error| format!("{}: {error}", job.to.display()))?;
                let request = format!("rdump {} {}", job.place, job.to.display());
                let arguments = ["-R", &request]
                    .map(OsStr::new)
                    .into_iter()
                    .chain([job.from.as_os_str()]);
                program("debugfs", arguments, meter).map(drop)
            }
            Self::Kernel => mounted(job.from, job.mount_point, meter, |meter| {
                copy(
                    &job.mount_point
                        .join(job.place.trim_start_matches('/'))
                        .join("."),
                    job.to,
                    meter,
                )
            }),
        }
    }
}

/// A place in an image, as folio names it.
fn inside(image: &Path, place: &str) -> OsString {
    let mut whole = image.as_os_str().to_owned();
    whole.push(":");
    whole.push(place);
    whole
}

fn program<A: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = A>,
    meter: &mut Meter,
) -> Result<String, String> {
    let path = find(name).ok_or_else(|| format!("{name} is not installed"))?;
    meter.run(path.as_os_str(), arguments)
}

fn copy(from: &Path, to: &Path, meter: &mut Meter) -> Result<(), String> {
    program(
        "cp",
        [OsStr::new("-a"), from.as_os_str(), to.as_os_str()],
        meter,
    )
    .map(drop)
}

/// A new ext4, with the tree as its root if there is one.
fn mke2fs(
    image: &Path,
    size_mib: u64,
    tree: Option<&Path>,
    meter: &mut Meter,
) -> Result<(), String> {
    let mut arguments: Vec<OsString> = ["-q", "-F", "-t", "ext4"].map(OsString::from).into();
    if let Some(tree) = tree {
        arguments.extend([OsString::from("-d"), tree.into()]);
    }
    arguments.extend([image.into(), format!("{size_mib}M").into()]);
    program("mke2fs", arguments, meter).map(drop)
}

fn mounted(
    image: &Path,
    mount_point: &Path,
    meter: &mut Meter,
    work: impl FnOnce(&mut Meter) -> Result<(), String>,
) -> Result<(), String> {
    let show = ["--find", "--show"].map(OsStr::new);
    let device = program(
        "losetup",
        show.into_iter().chain([image.as_os_str()]),
        meter,
    )?;
    let device = device.trim();
    let arguments = ["-t", "ext4", device]
        .map(OsStr::new)
        .into_iter()
        .chain([mount_point.as_os_str()]);
    let is_mounted = program("mount", arguments, meter);
    // A loop device in use is released with its mount.
    program("losetup", ["--detach", device], meter)?;
    is_mounted?;
    let worked = work(meter);
    program("umount", [mount_point], meter)?;
    worked
}
