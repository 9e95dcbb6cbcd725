//! The contenders, and a fresh file system mounted by one of them.

use crate::ext4::hosted::{self, Hosted};
use crate::mounted::{Mounted, Requests};
use crate::report::with_context;
use crate::run::scratch_in;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The way a contender mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `folio mount` of an image with ext4.
    Image,
    /// `folio mount` of a directory.
    Directory,
    /// The kernel's ext4 on a loop device.
    Kernel,
    /// fuse2fs of the same image.
    Fuse2fs,
}

/// One way to mount a fresh file system.
#[derive(Debug, Clone)]
pub(super) struct Contender {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// The program of [`Kind::Image`] and [`Kind::Directory`].
    pub(super) folio: PathBuf,
    /// Options of -o.
    pub(super) words: Option<String>,
    /// Whether the server counts its requests.
    pub(super) counts_requests: bool,
}

impl Contender {
    /// Returns why it cannot run here.
    pub(super) fn missing(&self) -> Option<String> {
        match self.kind {
            Kind::Image | Kind::Directory => hosted::fuse_missing(),
            Kind::Kernel => hosted::kernel_missing(),
            Kind::Fuse2fs => hosted::fuse2fs_missing(),
        }
    }

    /// Returns a command of `folio`.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.folio);
        command.arg("--quiet").args(words);
        command
    }

    fn mount(&self, folder: &Path) -> Result<Mounted, String> {
        let mut command = self.command(&["mount"]);
        if let Some(words) = &self.words {
            command.args(["-o", words]);
        }
        command.arg(behind(folder, self.kind));
        let mount_point = folder.join(MOUNT_POINT);
        command.arg(&mount_point);
        Mounted::start(command, &mount_point)
    }
}

const MOUNT_POINT: &str = "mount";

/// The image or directory that `folio mount` mounts.
fn behind(folder: &Path, kind: Kind) -> PathBuf {
    folder.join(match kind {
        Kind::Directory => "directory",
        _ => "image",
    })
}

/// The mount of a contender.
enum Backend {
    Folio(Mounted),
    Hosted(Hosted),
}

/// A fresh file system, mounted; dropping it unmounts and removes it.
pub(super) struct Target<'a> {
    contender: &'a Contender,
    backend: Backend,
    // Last: removed after the unmount.
    folder: TempDir,
}

impl<'a> Target<'a> {
    /// Makes a file system in a folder of its own in `scratch`, and mounts it.
    pub(super) fn new(
        contender: &'a Contender,
        scratch: &Path,
        image_mib: u64,
    ) -> Result<Self, String> {
        let folder = scratch_in(scratch)?;
        let path = folder.path();
        let behind = behind(path, contender.kind);
        let backend = match contender.kind {
            Kind::Kernel => Backend::Hosted(Hosted::kernel(path, image_mib, "defaults", None)?),
            Kind::Fuse2fs => Backend::Hosted(Hosted::fuse2fs(path, image_mib)?),
            Kind::Directory => {
                std::fs::create_dir(&behind).map_err(with_context(behind.display()))?;
                Backend::Folio(contender.mount(path)?)
            }
            Kind::Image => {
                make_image(contender, &behind, image_mib)?;
                Backend::Folio(contender.mount(path)?)
            }
        };
        Ok(Self {
            contender,
            backend,
            folder,
        })
    }

    /// Returns the root of the mounted file system.
    pub(super) fn root(&self) -> PathBuf {
        match &self.backend {
            Backend::Folio(_) => self.folder.path().join(MOUNT_POINT),
            Backend::Hosted(hosted) => hosted.mount_point.clone(),
        }
    }

    /// Unmounts and mounts again: the kernel then knows no name.
    pub(super) fn remount(&mut self) -> Result<(), String> {
        match &mut self.backend {
            Backend::Hosted(hosted) => hosted.remount(),
            Backend::Folio(mounted) => {
                mounted.unmount()?;
                *mounted = self.contender.mount(self.folder.path())?;
                Ok(())
            }
        }
    }

    /// Waits until everything written is on the disk.
    pub(super) fn sync(&self) -> Result<(), String> {
        let root = File::open(self.root()).map_err(with_context("root"))?;
        rustix::fs::syncfs(root).map_err(with_context("syncfs"))
    }

    /// Returns the requests that the server has counted so far.
    pub(super) fn requests(&mut self) -> Result<Option<Requests>, String> {
        match &mut self.backend {
            Backend::Folio(mounted) if self.contender.counts_requests => {
                mounted.requests().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns a reason with the standard error of the server, if it has one.
    pub(super) fn explain(&self, reason: String) -> String {
        match &self.backend {
            Backend::Folio(mounted) => mounted.explain(reason),
            Backend::Hosted(_) => reason,
        }
    }
}

/// Makes the image that the kernel mounts too, or one of Folio's own where mke2fs is missing.
fn make_image(contender: &Contender, image: &Path, image_mib: u64) -> Result<(), String> {
    if crate::contender::find("mke2fs").is_some() {
        return hosted::make_image(image, image_mib);
    }
    let mut command = contender.command(&["mkfs", "--size", &format!("{image_mib}M")]);
    let output = command
        .arg(image)
        .output()
        .map_err(with_context("folio mkfs"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| format!("folio mkfs: {}", error.trim()))
}
