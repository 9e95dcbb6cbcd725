//! File systems that the host's kernel mounts: its own ext4 on a loop device, `folio mount` and
//! fuse2fs.

use crate::contender::find;
use crate::measure::Meter;
use crate::mounted::Mounted;
use crate::report::with_context;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// File that limits the bytes per second of a device (cgroup v1, blkio controller).
const THROTTLE: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";

/// A mounted image; dropping it unmounts.
pub(crate) struct Hosted {
    pub(crate) mount_point: PathBuf,
    image: PathBuf,
    /// `loop7`, for the kernel's ext4.
    device: Option<String>,
    is_throttled: bool,
    mount_options: String,
    /// Whether the kernel's ext4 is mounted.
    is_mounted: bool,
    /// The FUSE server that mounts, unless the kernel does.
    server: Option<Server>,
    /// The mount of that server.
    served: Option<Mounted>,
}

/// A FUSE server in the foreground: `PROGRAM WORDS IMAGE FOLDER -o OPTIONS`.
#[derive(Debug, Clone)]
struct Server {
    program: PathBuf,
    words: &'static [&'static str],
}

impl Server {
    fn fuse2fs() -> Result<Self, String> {
        Ok(Self {
            program: find("fuse2fs").ok_or("fuse2fs is not installed")?,
            words: &["-f"],
        })
    }
}

/// Why the kernel's ext4 cannot be measured here.
pub(crate) fn kernel_missing() -> Option<String> {
    let lacks = ["mke2fs", "losetup", "mount", "umount"]
        .into_iter()
        .find(|name| find(name).is_none());
    let is_root = rustix::process::geteuid().is_root();
    lacks
        .map(|name| format!("{name} is not installed"))
        .or((!is_root).then(|| "needs root".to_owned()))
}

/// Why fuse2fs cannot be measured here.
pub(crate) fn fuse2fs_missing() -> Option<String> {
    let lacks = ["mke2fs", "fuse2fs", "umount"]
        .into_iter()
        .find(|name| find(name).is_none());
    let is_root = rustix::process::geteuid().is_root();
    lacks
        .map(|name| format!("{name} is not installed"))
        .or_else(fuse_missing)
        .or((!is_root).then(|| "needs root".to_owned()))
}

/// Why no FUSE server can be measured here.
pub(crate) fn fuse_missing() -> Option<String> {
    (!Path::new("/dev/fuse").exists()).then(|| "no /dev/fuse".to_owned())
}

/// Why `folio mount` by this program cannot be measured here.
pub(crate) fn folio_missing(program: &Path) -> Option<String> {
    let is_there = program.is_file() || find(&program.to_string_lossy()).is_some();
    let has_mke2fs = find("mke2fs").is_some();
    (!is_there)
        .then(|| "the program folio is not installed".to_owned())
        .or((!has_mke2fs).then(|| "mke2fs is not installed".to_owned()))
        .or_else(fuse_missing)
}

/// Why a device's rate cannot be limited here.
pub(crate) fn throttle_missing() -> Option<String> {
    (!Path::new(THROTTLE).exists()).then(|| format!("no {THROTTLE}"))
}

/// Runs a program by its name; what it prints.
pub(crate) fn command<A: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String, String> {
    let path = find(name).ok_or_else(|| format!("{name} is not installed"))?;
    Meter::default().run(path.as_os_str(), arguments)
}

/// Makes an empty ext4 by mke2fs.
pub(crate) fn make_image(image: &Path, size_mib: u64) -> Result<(), String> {
    let size = format!("{size_mib}M");
    // With its inode tables and journal written now, so that no thread of the kernel does it during
    // a round.
    let now = "lazy_itable_init=0,lazy_journal_init=0";
    let owner = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    // Its root directory is the user's, for mounts without root.
    let extended = format!("{now},root_owner={owner}:{group}");
    let fixed = ["-q", "-F", "-t", "ext4", "-E", &extended].map(OsStr::new);
    let arguments = fixed.into_iter();
    command(
        "mke2fs",
        arguments.chain([image.as_os_str(), OsStr::new(&size)]),
    )
    .map(drop)
}

/// Gives an image a second name: a mount removes its own.
fn link(image: &Path, name: &Path) -> Result<(), String> {
    std::fs::hard_link(image, name).map_err(with_context(name.display()))
}

impl Hosted {
    /// Returns what `image` makes in `folder`, not mounted.
    fn unmounted(
        folder: &Path,
        name: &str,
        image: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<Self, String> {
        let (path, mount_point) = (folder.join(format!("{name}.img")), folder.join(name));
        std::fs::create_dir_all(&mount_point).map_err(with_context(mount_point.display()))?;
        image(&path)?;
        Ok(Self {
            mount_point,
            image: path,
            device: None,
            is_throttled: false,
            mount_options: String::new(),
            is_mounted: false,
            server: None,
            served: None,
        })
    }

    /// A fresh ext4 in `folder`, mounted by the kernel with these options, at this many bytes a
    /// second if any.
    pub(crate) fn kernel(
        folder: &Path,
        size_mib: u64,
        mount_options: &str,
        bytes_per_s: Option<u64>,
    ) -> Result<Self, String> {
        let mut hosted = Self::unmounted(folder, "kernel", |path| make_image(path, size_mib))?;
        hosted.attach()?;
        if let Some(bytes_per_s) = bytes_per_s {
            hosted.throttle(bytes_per_s)?;
            hosted.is_throttled = true;
        }
        hosted.mount(mount_options)?;
        Ok(hosted)
    }

    /// Makes a fresh ext4 in `folder`, mounted by fuse2fs.
    pub(crate) fn fuse2fs(folder: &Path, size_mib: u64) -> Result<Self, String> {
        let image = |path: &Path| make_image(path, size_mib);
        Self::served(folder, "fuse2fs", image, Server::fuse2fs()?, "rw")
    }

    /// Makes a fresh ext4 in `folder`, mounted by this program's `folio mount`.
    pub(crate) fn folio(folder: &Path, size_mib: u64, program: &Path) -> Result<Self, String> {
        let server = Server {
            program: program.to_owned(),
            words: &["--quiet", "mount"],
        };
        let image = |path: &Path| make_image(path, size_mib);
        Self::served(folder, "folio", image, server, "rw")
    }

    fn served(
        folder: &Path,
        name: &str,
        image: impl FnOnce(&Path) -> Result<(), String>,
        server: Server,
        options: &str,
    ) -> Result<Self, String> {
        let mut hosted = Self::unmounted(folder, name, image)?;
        hosted.server = Some(server);
        hosted.mount(options)?;
        Ok(hosted)
    }

    /// Mounts an image that exists in `folder`, read only, by the kernel.
    pub(crate) fn kernel_reader(folder: &Path, image: &Path) -> Result<Self, String> {
        let mut hosted = Self::unmounted(folder, "kernel", |path| link(image, path))?;
        hosted.attach()?;
        hosted.mount("ro")?;
        Ok(hosted)
    }

    /// Mounts an image that exists in `folder`, read only, by fuse2fs.
    pub(crate) fn fuse2fs_reader(folder: &Path, image: &Path) -> Result<Self, String> {
        let image = |path: &Path| link(image, path);
        Self::served(folder, "fuse2fs", image, Server::fuse2fs()?, "ro")
    }

    fn attach(&mut self) -> Result<(), String> {
        let show = ["--find", "--show"].map(OsStr::new);
        let device = command("losetup", show.into_iter().chain([self.image.as_os_str()]))?;
        self.device = device.trim().strip_prefix("/dev/").map(str::to_owned);
        Ok(())
    }

    fn mount(&mut self, options: &str) -> Result<(), String> {
        options.clone_into(&mut self.mount_options);
        if let Some(server) = &self.server {
            let mut command = Command::new(&server.program);
            command
                .args(server.words)
                .args([&self.image, &self.mount_point])
                .args(["-o", options]);
            self.served = Some(Mounted::start(command, &self.mount_point)?);
        } else if let Some(device) = &self.device {
            let device = format!("/dev/{device}");
            let arguments = ["-t", "ext4", "-o", options, &device].map(OsStr::new);
            command(
                "mount",
                arguments.into_iter().chain([self.mount_point.as_os_str()]),
            )?;
            self.is_mounted = true;
        }
        Ok(())
    }

    /// Unmounts and mounts again, so that nothing is cached above the image.
    pub(crate) fn remount(&mut self) -> Result<(), String> {
        self.unmount()?;
        self.mount(&self.mount_options.clone())
    }

    /// Returns the image, for a caller that drops it from the host's page cache.
    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    fn unmount(&mut self) -> Result<(), String> {
        if let Some(mut served) = self.served.take() {
            return served.unmount();
        }
        command("umount", [&self.mount_point])?;
        self.is_mounted = false;
        Ok(())
    }

    fn throttle(&self, bytes_per_s: u64) -> Result<(), String> {
        let Some(device) = &self.device else {
            return Ok(());
        };
        let path = format!("/sys/block/{device}/dev");
        let number = std::fs::read_to_string(&path).map_err(with_context(path))?;
        std::fs::write(THROTTLE, format!("{} {bytes_per_s}", number.trim()))
            .map_err(with_context(THROTTLE))
    }

    /// Returns the bytes written to the loop device so far; `None` for FUSE servers.
    pub(crate) fn written_bytes(&self) -> Option<u64> {
        let device = self.device.as_ref()?;
        let text = std::fs::read_to_string(format!("/sys/block/{device}/stat")).unwrap_or_default();
        // Sectors written: Documentation/block/stat.rst.
        let sectors: u64 = text
            .split_whitespace()
            .nth(6)
            .and_then(|field| field.parse().ok())
            .unwrap_or(0);
        Some(sectors * 512)
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        // A drop cannot report a failure; a mount that cannot be undone stays visible to the user.
        if self.is_throttled {
            let _ = self.throttle(0);
        }
        if self.is_mounted {
            let _ = self.unmount();
        }
        // Its drop unmounts.
        self.served = None;
        if let Some(device) = &self.device {
            let _ = command("losetup", ["--detach", &format!("/dev/{device}")]);
        }
        let _ = std::fs::remove_file(&self.image);
    }
}
