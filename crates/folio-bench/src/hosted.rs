//! File systems that the host's kernel mounts: its own ext4 on a loop device, and those of FUSE
//! servers.

use crate::command::{find, lacking, lacking_root, run, tool};
use crate::outcome::{Context, Outcome};
use crate::server::{Mounted, Requests};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A limit of a device's writes (cgroup v1, blkio controller).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteLimit {
    BytesPerSecond(u64),
    PerSecond(u64),
}

impl WriteLimit {
    /// Returns the file of the limit, and its value.
    fn file(self) -> (String, u64) {
        let (name, value) = match self {
            Self::BytesPerSecond(value) => ("bps", value),
            Self::PerSecond(value) => ("iops", value),
        };
        let path = format!("/sys/fs/cgroup/blkio/blkio.throttle.write_{name}_device");
        (path, value)
    }
}

/// Returns why a device's rate cannot be limited here.
pub(crate) fn throttle_missing() -> Option<String> {
    let (file, _) = WriteLimit::BytesPerSecond(0).file();
    (!Path::new(&file).exists()).then(|| format!("no {file}"))
}

/// Returns why no FUSE server can be measured here.
pub(crate) fn fuse_missing() -> Option<String> {
    (!Path::new("/dev/fuse").exists()).then(|| "no /dev/fuse".to_owned())
}

/// A loop device, detached when dropped.
pub(crate) struct LoopDevice {
    /// `loop7`.
    name: String,
    limits: Vec<WriteLimit>,
}

impl LoopDevice {
    /// Attaches a file, with options of losetup.
    pub(crate) fn attach(file: &Path, options: &[&str]) -> Outcome<Self> {
        let mut losetup = tool("losetup")?;
        let path = run(losetup.args(["--find", "--show"]).args(options).arg(file))?;
        let name = path.trim().trim_start_matches("/dev/").to_owned();
        Ok(Self {
            name,
            limits: Vec::new(),
        })
    }

    /// Mounts its file system.
    pub(crate) fn mount(&self, fs_type: &str, options: &str, mount_point: &Path) -> Outcome {
        let mut mount = tool("mount")?;
        mount.args(["-t", fs_type, "-o", options, &format!("/dev/{}", self.name)]);
        run(mount.arg(mount_point)).map(drop)
    }

    /// Sets a parameter of its queue; returns the text before.
    pub(crate) fn set_queue(&self, parameter: &str, value: &str) -> Outcome<String> {
        let path = format!("/sys/block/{}/queue/{parameter}", self.name);
        let before = std::fs::read_to_string(&path).at(&path)?;
        std::fs::write(&path, value).at(&path)?;
        Ok(before)
    }

    /// Limits the rate of writes, until it is detached.
    pub(crate) fn throttle(&mut self, limit: WriteLimit) -> Outcome {
        self.set_limit(limit)?;
        self.limits.push(limit);
        Ok(())
    }

    fn set_limit(&self, limit: WriteLimit) -> Outcome {
        let path = format!("/sys/block/{}/dev", self.name);
        let number = std::fs::read_to_string(&path).at(&path)?;
        let (file, value) = limit.file();
        std::fs::write(&file, format!("{} {value}", number.trim())).at(&file)
    }

    /// Returns the bytes written so far.
    fn written_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/sys/block/{}/stat", self.name));
        // Sectors written: Documentation/block/stat.rst.
        let text = text.unwrap_or_default();
        let sectors = text
            .split_whitespace()
            .nth(6)
            .and_then(|field| field.parse::<u64>().ok());
        sectors.unwrap_or(0) * 512
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A drop cannot report a failure; a device in use is detached with its mount.
        for limit in &self.limits {
            // 0 removes it.
            let _ = self.set_limit(match limit {
                WriteLimit::BytesPerSecond(_) => WriteLimit::BytesPerSecond(0),
                WriteLimit::PerSecond(_) => WriteLimit::PerSecond(0),
            });
        }
        let device = format!("/dev/{}", self.name);
        let _ = tool("losetup").and_then(|mut losetup| run(losetup.args(["--detach", &device])));
    }
}

/// What mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum System {
    /// A file system of the kernel, of this type, on a loop device.
    Kernel(&'static str),
    Fuse2fs,
    /// `folio mount` by this program.
    Folio(PathBuf),
}

impl System {
    /// The kernel's ext4.
    pub(crate) const EXT4: Self = Self::Kernel("ext4");

    /// Returns why it cannot be measured here.
    pub(crate) fn missing(&self) -> Option<String> {
        match self {
            Self::Kernel(fs_type) => {
                let mkfs = format!("mkfs.{fs_type}");
                lacking(&[&mkfs, "losetup", "mount", "umount"]).or_else(lacking_root)
            }
            Self::Fuse2fs => lacking(&["mke2fs", "fuse2fs", "umount"])
                .or_else(fuse_missing)
                .or_else(lacking_root),
            Self::Folio(program) => {
                let is_there = program.is_file() || find(&program.to_string_lossy()).is_some();
                let missing = (!is_there).then(|| "the program folio is not installed".to_owned());
                missing.or_else(fuse_missing)
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Kernel(_) => "kernel",
            Self::Fuse2fs => "fuse2fs",
            Self::Folio(_) => "folio",
        }
    }

    /// Makes an empty file system: ext4 by mke2fs, or by folio where that is missing.
    pub(crate) fn make_image(&self, image: &Path, size_mib: u64) -> Outcome {
        if let Self::Kernel(fs_type @ ("xfs" | "btrfs")) = self {
            let file = std::fs::File::create(image).at(image)?;
            file.set_len(size_mib << 20).at(image)?;
            return run(tool(&format!("mkfs.{fs_type}"))?.arg(image)).map(drop);
        }
        let size = format!("{size_mib}M");
        if let Self::Folio(program) = self
            && find("mke2fs").is_none()
        {
            let mut mkfs = Command::new(program);
            return run(mkfs.args(["--quiet", "mkfs", "--size", &size]).arg(image)).map(drop);
        }
        // With its inode tables and journal written now, so that no thread of the kernel does it
        // during a round. Its root directory is the user's, for mounts without root.
        let owner = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let extended = format!("lazy_itable_init=0,lazy_journal_init=0,root_owner={owner}:{group}");
        let mut mke2fs = tool("mke2fs")?;
        mke2fs.args(["-q", "-F", "-t", "ext4", "-E", &extended]);
        run(mke2fs.arg(image).arg(&size)).map(drop)
    }
}

/// A mounted image or directory; dropping it unmounts and removes the image.
pub(crate) struct Hosted {
    pub(crate) mount_point: PathBuf,
    system: System,
    backing: PathBuf,
    options: String,
    /// Whether the kernel's file system is mounted.
    is_mounted: bool,
    device: Option<LoopDevice>,
    /// The mount of a FUSE server.
    served: Option<Mounted>,
}

impl Hosted {
    /// Mounts a fresh file system in `folder`.
    pub(crate) fn fresh(
        system: System,
        folder: &Path,
        size_mib: u64,
        options: &str,
    ) -> Outcome<Self> {
        let image = folder.join(format!("{}.img", system.name()));
        system.make_image(&image, size_mib)?;
        Self::new(system, folder, image, options)
    }

    /// Mounts an image that exists in `folder`, read only.
    pub(crate) fn reader(system: System, folder: &Path, image: &Path) -> Outcome<Self> {
        // A second name of the image: the mount removes its own.
        let own = folder.join(format!("{}.img", system.name()));
        std::fs::hard_link(image, &own).at(&own)?;
        Self::new(system, folder, own, "ro")
    }

    /// Mounts a directory in `folder` by `folio mount`; it is made if it does not exist.
    pub(crate) fn directory(program: &Path, folder: &Path, options: &str) -> Outcome<Self> {
        let directory = folder.join("directory");
        std::fs::create_dir_all(&directory).at(&directory)?;
        Self::new(
            System::Folio(program.to_owned()),
            folder,
            directory,
            options,
        )
    }

    fn new(system: System, folder: &Path, backing: PathBuf, options: &str) -> Outcome<Self> {
        let mount_point = folder.join(system.name());
        std::fs::create_dir_all(&mount_point).at(&mount_point)?;
        let mut hosted = Self {
            mount_point,
            system,
            backing,
            options: options.to_owned(),
            is_mounted: false,
            device: None,
            served: None,
        };
        if matches!(hosted.system, System::Kernel(_)) {
            hosted.device = Some(LoopDevice::attach(&hosted.backing, &[])?);
        }
        hosted.mount()?;
        Ok(hosted)
    }

    fn mount(&mut self) -> Outcome {
        if let (System::Kernel(fs_type), Some(device)) = (&self.system, &self.device) {
            let options = if self.options.is_empty() {
                "defaults"
            } else {
                &self.options
            };
            device.mount(fs_type, options, &self.mount_point)?;
            self.is_mounted = true;
            return Ok(());
        }
        let mut command = match &self.system {
            System::Folio(program) => Command::new(program),
            _ => tool("fuse2fs")?,
        };
        let is_folio = self.system != System::Fuse2fs;
        command.args(if is_folio {
            &["--quiet", "mount"][..]
        } else {
            &["-f"]
        });
        command.arg(&self.backing).arg(&self.mount_point);
        if !self.options.is_empty() {
            command.args(["-o", &self.options]);
        }
        self.served = Some(Mounted::start(command, &self.mount_point)?);
        Ok(())
    }

    /// Unmounts and mounts again, so that nothing is cached above the image.
    pub(crate) fn remount(&mut self) -> Outcome {
        self.unmount()?;
        self.mount()
    }

    /// Unmounts.
    pub(crate) fn unmount(&mut self) -> Outcome {
        if let Some(mut served) = self.served.take() {
            return served.unmount();
        }
        run(tool("umount")?.arg(&self.mount_point))?;
        self.is_mounted = false;
        Ok(())
    }

    /// Returns the image, for a caller that drops it from the host's page cache.
    pub(crate) fn image(&self) -> &Path {
        &self.backing
    }

    /// Limits the rate of writes by the kernel.
    pub(crate) fn throttle(&mut self, limit: WriteLimit) -> Outcome {
        self.device
            .as_mut()
            .map_or(Ok(()), |device| device.throttle(limit))
    }

    /// Returns the bytes written to the loop device so far; `None` for FUSE servers.
    pub(crate) fn written_bytes(&self) -> Option<u64> {
        self.device.as_ref().map(LoopDevice::written_bytes)
    }

    /// Returns the requests that `folio mount` has counted so far.
    pub(crate) fn requests(&mut self) -> Outcome<Requests> {
        let served = self.served.as_mut().ok_or("no FUSE server")?;
        served.requests()
    }

    /// Returns a reason with the standard error of the server, if it has one.
    pub(crate) fn explain(&self, reason: &str) -> String {
        let explain = |served: &Mounted| served.explain(reason);
        self.served
            .as_ref()
            .map_or_else(|| reason.to_owned(), explain)
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        // A drop cannot report a failure; a mount that cannot be undone stays visible to the user.
        if self.is_mounted || self.served.is_some() {
            let _ = self.unmount();
        }
        self.device = None;
        let _ = std::fs::remove_file(&self.backing);
    }
}
