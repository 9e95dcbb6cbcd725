//! A fresh file system on a disk, mounted by a contender, and the calls that are measured on it.

use super::hosted::Hosted;
use crate::report::with_context;
use folio::block::{DiskModel, MemoryDevice, RawDevice, SlowDevice};
use folio::kernel::{FormatOptions, KernelOptions, format_ext4};
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, Process};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ROOT: &str = "/disk";
/// Name of [`Contender::FolioMount`].
pub(super) const FOLIO_MOUNT: &str = "folio mount";
/// Page cache of Folio: as the kernel's, larger than anything written here.
const CACHE_BYTES: u64 = 3 << 30;

/// A file system, and the disk that it works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Folio on a model of a SATA disk, with these mount options.
    FolioSlow(&'static str),
    /// Folio on a disk of the same rate that never seeks: what a rate limit makes of a disk.
    FolioLimited(&'static str),
    /// Folio on an image on the real disk.
    FolioReal(&'static str),
    /// The kernel on a loop device over the real disk.
    Kernel(&'static str),
    /// The same, limited to the model's rate.
    KernelLimited(&'static str),
    /// fuse2fs on an image on the real disk.
    Fuse2fs,
    /// `folio mount`, by this program, of an image on the real disk.
    FolioMount(PathBuf),
}

/// A file system of Folio's.
pub(crate) struct Own {
    kernel: Arc<Kernel>,
    process: Option<Process>,
    dir: Fd,
    disk: Arc<SlowDevice>,
    image: Option<PathBuf>,
    options: MountOptions,
}

/// A mounted file system.
pub(crate) enum Fixture {
    Own(Own),
    Host(Hosted, Option<OwnedFd>),
}

/// An open file.
pub(crate) enum Handle {
    Own(Fd),
    Host(OwnedFd),
}

impl Contender {
    /// In words.
    pub(crate) fn name(&self) -> String {
        let words = |options: &str| {
            if options.is_empty() {
                String::new()
            } else {
                format!(", {options}")
            }
        };
        match self {
            Self::FolioSlow(options) | Self::FolioLimited(options) | Self::FolioReal(options) => {
                format!("folio{}", words(options))
            }
            Self::Kernel(options) | Self::KernelLimited(options) => {
                format!("kernel{}", words(options))
            }
            Self::Fuse2fs => "fuse2fs".to_owned(),
            Self::FolioMount(_) => FOLIO_MOUNT.to_owned(),
        }
    }

    /// Makes the file system and mounts it.
    pub(crate) fn make_fixture(&self, folder: &Path, size_mib: u64) -> Result<Fixture, String> {
        let with_defaults = |options: &str| {
            if options.is_empty() {
                "defaults".to_owned()
            } else {
                options.to_owned()
            }
        };
        match self {
            Self::FolioSlow(options) | Self::FolioLimited(options) => {
                let model = match self {
                    Self::FolioSlow(_) => DiskModel::default(),
                    _ => DiskModel {
                        track_to_track_us: 0,
                        average_seek_us: 0,
                        rotation_us: 0,
                        write_cache_bytes: 0,
                        ..DiskModel::default()
                    },
                };
                let memory = Arc::new(MemoryDevice::new(size_mib << 20));
                format_ext4(&*memory, &FormatOptions::default()).map_err(with_context("format"))?;
                Own::new(SlowDevice::waiting(memory, model), None, options).map(Fixture::Own)
            }
            Self::FolioReal(options) => {
                let path = folder.join("folio.img");
                let _ = std::fs::remove_file(&path);
                let image = RawDevice::create(&path, size_mib << 20)
                    .map_err(with_context(path.display()))?;
                format_ext4(&image, &FormatOptions::default()).map_err(with_context("format"))?;
                // Only counts.
                let disk = SlowDevice::new(Arc::new(image), DiskModel::default());
                Own::new(disk, Some(path), options).map(Fixture::Own)
            }
            Self::Kernel(options) => Fixture::host(Hosted::kernel(
                folder,
                size_mib,
                &with_defaults(options),
                None,
            )?),
            Self::KernelLimited(options) => {
                let rate = DiskModel::default().media_bytes_per_s;
                Fixture::host(Hosted::kernel(
                    folder,
                    size_mib,
                    &with_defaults(options),
                    Some(rate),
                )?)
            }
            Self::Fuse2fs => Fixture::host(Hosted::fuse2fs(folder, size_mib)?),
            Self::FolioMount(program) => Fixture::host(Hosted::folio(folder, size_mib, program)?),
        }
    }
}

impl Own {
    fn new(disk: SlowDevice, image: Option<PathBuf>, options: &str) -> Result<Self, String> {
        let disk = Arc::new(disk);
        let options = MountOptions::parse(options).map_err(with_context("options"))?;
        let (kernel, process, dir) = mount(&disk, &options)?;
        Ok(Self {
            kernel,
            process: Some(process),
            dir,
            disk,
            image,
            options,
        })
    }

    fn process(&self) -> Result<&Process, String> {
        self.process
            .as_ref()
            .ok_or_else(|| "not mounted".to_owned())
    }

    fn unmount(&mut self) -> Result<(), String> {
        if self.process.take().is_some() {
            self.kernel.unmount(ROOT).map_err(with_context("unmount"))?;
        }
        Ok(())
    }
}

fn mount(
    disk: &Arc<SlowDevice>,
    options: &MountOptions,
) -> Result<(Arc<Kernel>, Process, Fd), String> {
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: CACHE_BYTES,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.mkdir(ROOT, 0o755).map_err(with_context(ROOT))?;
    kernel
        .mount_ext4(disk.clone(), ROOT, options)
        .map_err(with_context("mount"))?;
    let dir = process
        .open(ROOT, OpenFlags::DIRECTORY, 0)
        .map_err(with_context(ROOT))?;
    Ok((kernel, process, dir))
}

fn open_dir(path: &Path) -> Result<OwnedFd, String> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(with_context(path.display()))
}

impl Fixture {
    fn host(hosted: Hosted) -> Result<Self, String> {
        let dir = open_dir(&hosted.mount_point)?;
        Ok(Self::Host(hosted, Some(dir)))
    }

    /// open(2) of a file that is made if need be.
    pub(crate) fn open(&self, name: &str, truncates: Truncates) -> Result<Handle, String> {
        match self {
            Self::Own(own) => {
                let mut flags = OpenFlags::CREAT | OpenFlags::RDWR;
                flags.set(OpenFlags::TRUNC, truncates == Truncates::Yes);
                own.process()?
                    .openat(own.dir, name, flags, 0o644)
                    .map(Handle::Own)
                    .map_err(with_context(name))
            }
            Self::Host(_, dir) => {
                let mut flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
                flags.set(OFlags::TRUNC, truncates == Truncates::Yes);
                let dir = dir.as_ref().ok_or("not mounted")?;
                let opened = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644));
                opened.map(Handle::Host).map_err(with_context(name))
            }
        }
    }

    /// close(2).
    pub(crate) fn close(&self, handle: Handle) -> Result<(), String> {
        match (self, handle) {
            (Self::Own(own), Handle::Own(fd)) => {
                own.process()?.close(fd).map_err(with_context("close"))
            }
            _ => Ok(()),
        }
    }

    /// pwrite(2) of all of `bytes`.
    pub(crate) fn write(&self, handle: &Handle, bytes: &[u8], offset: u64) -> Result<(), String> {
        let written = match (self, handle) {
            (Self::Own(own), Handle::Own(fd)) => own
                .process()?
                .pwrite(*fd, bytes, offset)
                .map_err(with_context("write"))?,
            (_, Handle::Host(fd)) => {
                rustix::io::pwrite(fd, bytes, offset).map_err(with_context("write"))?
            }
            _ => 0,
        };
        if written == bytes.len() {
            Ok(())
        } else {
            Err(format!("{written} bytes written"))
        }
    }

    /// pread(2) of as much as fits.
    pub(crate) fn read(
        &self,
        handle: &Handle,
        bytes: &mut [u8],
        offset: u64,
    ) -> Result<usize, String> {
        match (self, handle) {
            (Self::Own(own), Handle::Own(fd)) => own
                .process()?
                .pread(*fd, bytes, offset)
                .map_err(with_context("read")),
            (_, Handle::Host(fd)) => {
                rustix::io::pread(fd, bytes, offset).map_err(with_context("read"))
            }
            _ => Ok(0),
        }
    }

    /// fsync(2).
    pub(crate) fn fsync(&self, handle: &Handle) -> Result<(), String> {
        match (self, handle) {
            (Self::Own(own), Handle::Own(fd)) => {
                own.process()?.fsync(*fd).map_err(with_context("fsync"))
            }
            (_, Handle::Host(fd)) => rustix::fs::fsync(fd).map_err(with_context("fsync")),
            _ => Ok(()),
        }
    }

    /// Writes a file with these bytes; an existing file is truncated first.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let handle = self.open(name, Truncates::Yes)?;
        if !bytes.is_empty() {
            self.write(&handle, bytes, 0)?;
        }
        self.close(handle)
    }

    /// unlink(2).
    pub(crate) fn remove(&self, name: &str) -> Result<(), String> {
        match self {
            Self::Own(own) => own
                .process()?
                .unlinkat(own.dir, name, Default::default())
                .map_err(with_context(name)),
            Self::Host(_, dir) => {
                let dir = dir.as_ref().ok_or("not mounted")?;
                rustix::fs::unlinkat(dir, name, AtFlags::empty()).map_err(with_context(name))
            }
        }
    }

    /// rename(2).
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), String> {
        match self {
            Self::Own(own) => {
                let flags = folio::vfs::RenameFlags::empty();
                own.process()?
                    .renameat2(own.dir, from, own.dir, to, flags)
                    .map_err(with_context(from))
            }
            Self::Host(_, dir) => {
                let dir = dir.as_ref().ok_or("not mounted")?;
                rustix::fs::renameat(dir, from, dir, to).map_err(with_context(from))
            }
        }
    }

    /// syncfs(2).
    pub(crate) fn sync(&self) -> Result<(), String> {
        match self {
            Self::Own(own) => own.process()?.syncfs(own.dir).map_err(with_context("sync")),
            Self::Host(_, dir) => {
                rustix::fs::syncfs(dir.as_ref().ok_or("not mounted")?).map_err(with_context("sync"))
            }
        }
    }

    /// Bytes that have reached the disk so far, where they are counted.
    pub(crate) fn written_bytes(&self) -> Option<u64> {
        match self {
            Self::Own(own) => Some(own.disk.counters().written_bytes),
            Self::Host(hosted, _) => hosted.written_bytes(),
        }
    }

    /// Mounts again with empty caches, the host's cache of the image included.
    pub(crate) fn forget(&mut self) -> Result<(), String> {
        match self {
            Self::Own(own) => {
                own.unmount()?;
                own.image.as_deref().map_or(Ok(()), forget_image)?;
                let (kernel, process, dir) = mount(&own.disk, &own.options)?;
                (own.kernel, own.process, own.dir) = (kernel, Some(process), dir);
            }
            Self::Host(hosted, dir) => {
                drop(dir.take());
                hosted.remount()?;
                forget_image(hosted.image())?;
                *dir = Some(open_dir(&hosted.mount_point)?);
            }
        }
        Ok(())
    }

    /// Takes it down.
    pub(crate) fn end(mut self) -> Result<(), String> {
        match &mut self {
            Self::Own(own) => {
                own.unmount()?;
                if let Some(path) = &own.image {
                    std::fs::remove_file(path).map_err(with_context(path.display()))?;
                }
            }
            Self::Host(_, dir) => drop(dir.take()),
        }
        Ok(())
    }
}

/// Whether open(2) empties the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truncates {
    Yes,
    No,
}

/// The host writes what it has of an image, and forgets it.
fn forget_image(path: &Path) -> Result<(), String> {
    let file = std::fs::File::open(path).map_err(with_context(path.display()))?;
    file.sync_all().map_err(with_context(path.display()))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(with_context(path.display()))
}
