//! A fresh file system on a disk, mounted by a contender.

use crate::hosted::{Hosted, System, WriteLimit};
use crate::outcome::{Context, Outcome};
use crate::report::{Evidence, Sample};
use crate::view::View;
use folio::block::{self, ImageFormat, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::Credentials;
use folio::testing::{DiskModel, SlowDevice};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const ROOT: &str = "/disk";
/// Page cache of Folio: as the kernel's, larger than anything written here.
const CACHE_BYTES: u64 = 3 << 30;

/// The disk of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disk {
    /// A model of a SATA disk.
    Sata,
    /// One of the same rate that never seeks: what a rate limit makes of a disk.
    Limited,
    /// An image on the real disk.
    Image(ImageFormat),
}

/// A file system, and the disk that it works on.
#[derive(Debug, Clone)]
pub(super) struct Contender {
    /// What mounts; without it, Folio in this process.
    pub(super) system: Option<System>,
    pub(super) disk: Disk,
    pub(super) options: &'static str,
}

impl Contender {
    /// Returns Folio in this process.
    pub(super) fn folio(disk: Disk, options: &'static str) -> Self {
        Self {
            system: None,
            disk,
            options,
        }
    }

    /// Returns a system that mounts on this machine.
    pub(super) fn hosted(system: System, disk: Disk, options: &'static str) -> Self {
        Self {
            system: Some(system),
            disk,
            options,
        }
    }

    /// In words.
    pub(super) fn name(&self) -> String {
        let system = match self.system {
            None => "folio",
            Some(System::Kernel(_)) => "kernel",
            Some(System::Fuse2fs) => "fuse2fs",
            Some(System::Folio(_)) => "folio mount",
        };
        if self.disk == Disk::Image(ImageFormat::Qcow2) {
            format!("{system}, qcow2")
        } else if self.options.is_empty() {
            system.to_owned()
        } else {
            format!("{system}, {}", self.options)
        }
    }

    /// Makes the file system and mounts it.
    pub(super) fn make_fixture(&self, folder: &Path, size_mib: u64) -> Outcome<Fixture> {
        let Some(system) = &self.system else {
            return Fixture::in_process(self, folder, size_mib << 20);
        };
        let mut hosted = Hosted::fresh(system.clone(), folder, size_mib, self.options)?;
        if self.disk == Disk::Limited {
            let rate = DiskModel::default().media_bytes_per_s;
            hosted.throttle(WriteLimit::BytesPerSecond(rate))?;
        }
        let view = View::Host(hosted.mount_point.clone());
        let mount = Mount::Hosted(hosted);
        Ok(Fixture { view, mount })
    }
}

/// A mounted file system.
pub(super) struct Fixture {
    // First: it must end before the unmount.
    pub(super) view: View,
    mount: Mount,
}

enum Mount {
    InProcess(InProcess),
    Hosted(Hosted),
}

struct InProcess {
    kernel: Arc<Kernel>,
    disk: Arc<SlowDevice>,
    image: Option<PathBuf>,
    options: MountOptions,
}

impl Fixture {
    fn in_process(contender: &Contender, folder: &Path, size_bytes: u64) -> Outcome<Self> {
        let mut image = None;
        let disk = if let Disk::Image(format) = contender.disk {
            let path = folder.join("folio.img");
            let _ = std::fs::remove_file(&path);
            let device = block::create(&path, format, size_bytes).at(&path)?;
            ext4::format(&*device, &FormatOptions::default())?;
            image = Some(path);
            // Only counts.
            SlowDevice::new(device, DiskModel::default())
        } else {
            let memory = Arc::new(MemoryDevice::new(size_bytes));
            ext4::format(&*memory, &FormatOptions::default())?;
            SlowDevice::waiting(memory, model(contender.disk))
        };
        let mut mount = InProcess {
            kernel: Kernel::new(KernelOptions::default()),
            disk: Arc::new(disk),
            image,
            options: MountOptions::parse(contender.options)?,
        };
        let view = mount.mount()?;
        Ok(Self {
            view,
            mount: Mount::InProcess(mount),
        })
    }

    /// Runs a job; returns its seconds, and the bytes that reached the disk where they are counted.
    pub(super) fn timed(&self, job: impl FnOnce(&View) -> Outcome) -> Outcome<Sample> {
        let before = self.written_bytes();
        let start = Instant::now();
        job(&self.view)?;
        let seconds = start.elapsed().as_secs_f64();
        let written = self.written_bytes().zip(before);
        let written = written.map(|(now, before)| now.saturating_sub(before) as f64);
        Ok(Sample::of(seconds).with(Evidence {
            device_written_bytes: written,
            ..Evidence::default()
        }))
    }

    fn written_bytes(&self) -> Option<u64> {
        match &self.mount {
            Mount::InProcess(mount) => Some(mount.disk.counters().written_bytes),
            Mount::Hosted(hosted) => hosted.written_bytes(),
        }
    }

    /// Mounts again with empty caches, the host's cache of the image included.
    pub(super) fn forget(&mut self) -> Outcome {
        match &mut self.mount {
            Mount::InProcess(mount) => {
                // Ends the process, which uses the mount.
                self.view = View::Host(PathBuf::new());
                mount.kernel.unmount(ROOT)?;
                mount.image.as_deref().map_or(Ok(()), forget_image)?;
                self.view = mount.mount()?;
                Ok(())
            }
            Mount::Hosted(hosted) => {
                hosted.remount()?;
                forget_image(hosted.image())
            }
        }
    }

    /// Unmounts and removes it.
    pub(super) fn end(self) -> Outcome {
        drop(self.view);
        if let Mount::InProcess(mount) = self.mount {
            mount.kernel.unmount(ROOT)?;
            if let Some(path) = &mount.image {
                std::fs::remove_file(path).at(path)?;
            }
        }
        Ok(())
    }
}

impl InProcess {
    fn mount(&mut self) -> folio::Result<View> {
        self.kernel = Kernel::new(KernelOptions {
            cache_bytes: CACHE_BYTES,
            ..KernelOptions::default()
        });
        let process = self.kernel.process(Credentials::root());
        process.mkdir(ROOT, 0o755)?;
        self.kernel
            .mount_ext4(self.disk.clone(), ROOT, &self.options)?;
        process.chdir(ROOT)?;
        Ok(View::Folio(process))
    }
}

fn model(disk: Disk) -> DiskModel {
    if disk == Disk::Sata {
        return DiskModel::default();
    }
    DiskModel {
        track_to_track_us: 0,
        average_seek_us: 0,
        rotation_us: 0,
        write_cache_bytes: 0,
        ..DiskModel::default()
    }
}

/// The host writes what it has of an image, and forgets it.
fn forget_image(path: &Path) -> Outcome {
    let file = File::open(path).at(path)?;
    file.sync_all().at(path)?;
    crate::evidence::forget(&[&file])
}
