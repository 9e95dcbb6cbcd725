//! A disk that seeks under the kernel's own ext4, without such a disk: a model of one that lets its
//! callers wait.
//!
//! ```text
//!   ext4, read only        mounted by the kernel, page cache and all
//!   loop device            direct, rotational, read ahead and scheduler as a SATA disk has them
//!   FUSE, one file         device_file.rs: each read is one of the device
//!   SlowDevice             the model, with a queue of commands
//!   an image               in the host's memory or on its disk
//! ```

use super::device_file::{DeviceFileSystem, NAME};
use super::tree::Tree;
use crate::command::{run, tool};
use crate::hosted::{Hosted, LoopDevice, System, fuse_missing};
use crate::outcome::{Context, Outcome};
use folio::block::RawDevice;
use folio::testing::{DiskCounters, DiskModel, SlowDevice};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions, Result as FolioResult};
use folio_fuse::{Session, SessionOptions, Unmounter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Requests that the disk can choose from, as many as one with NCQ has.
const QUEUE: &str = "threads=32";
/// The queue of a SATA disk, as Linux sets it.
const QUEUE_SETTINGS: [(&str, &str); 3] = [
    ("rotational", "1"),
    ("read_ahead_kb", "128"),
    ("scheduler", "mq-deadline"),
];
/// Size of the image as a multiple of the bytes of its files.
const ROOM: u64 = 3;
const IMAGE_MIB_MIN: u64 = 64;

/// Why there can be none here.
pub(super) fn missing() -> Option<String> {
    System::EXT4.missing().or_else(fuse_missing)
}

/// The mounted disk with a tree on it; dropping it unmounts.
pub(super) struct SeekingDisk {
    pub(super) tree: Tree,
    slow: Arc<SlowDevice>,
    mount_point: PathBuf,
    is_mounted: bool,
    device: Option<LoopDevice>,
    /// Parameters of the device's queue before.
    queue: Vec<(&'static str, String)>,
    export: Option<(Unmounter, JoinHandle<FolioResult<()>>)>,
}

impl SeekingDisk {
    /// Makes a disk with an aged ext4 that holds `count` files, its image in `folder`.
    pub(super) fn new(folder: &Path, count: u64) -> Outcome<Self> {
        let image = folder.join("aged.img");
        let bytes = make_aged(folder, &image, count)?;
        let raw = RawDevice::open(&image, true)?;
        let slow = Arc::new(SlowDevice::waiting(Arc::new(raw), DiskModel::default()));
        let (export, mount_point) = (folder.join("export"), folder.join("seeking"));
        for path in [&export, &mount_point] {
            std::fs::create_dir(path).at(path)?;
        }
        let tree = Tree {
            folder: mount_point.join("tree"),
            bytes,
        };
        let mut this = Self {
            tree,
            slow,
            mount_point,
            is_mounted: false,
            device: None,
            queue: Vec::new(),
            export: None,
        };
        this.export(&export)?;
        let device = LoopDevice::attach(&export.join(NAME), &["--read-only", "--direct-io=on"])?;
        let device = this.device.insert(device);
        for (parameter, value) in QUEUE_SETTINGS {
            let before = device.set_queue(parameter, value)?;
            this.queue.push((parameter, chosen(&before)));
        }
        this.mount()?;
        Ok(this)
    }

    /// Serves the disk as a file in `target`.
    fn export(&mut self, target: &Path) -> Outcome {
        let kernel = Kernel::new(KernelOptions {
            cache_bytes: 16 << 20,
            ..KernelOptions::default()
        });
        let inside = MountOptions::parse("ro")?;
        let file_system = Arc::new(DeviceFileSystem::new(self.slow.clone()));
        kernel.mount(file_system, "/", &inside)?;
        let mut options = SessionOptions::new("folio-bench");
        for word in [QUEUE, "cache=none"] {
            options.apply(word).at(word)?;
        }
        let session = Session::mount(kernel, &inside, target, &options).at(target)?;
        let unmounter = session.unmounter();
        let server = std::thread::Builder::new().name("seeking-disk".to_owned());
        let server = server.spawn(move || session.serve()).at("thread")?;
        self.export = Some((unmounter, server));
        Ok(())
    }

    fn mount(&mut self) -> Outcome {
        let device = self.device.as_ref().ok_or("no loop device")?;
        device.mount("ext4", "ro", &self.mount_point)?;
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Outcome {
        if std::mem::take(&mut self.is_mounted) {
            run(tool("umount")?.arg(&self.mount_point))?;
        }
        Ok(())
    }

    /// Mounts again: no file, folder or inode is cached.
    pub(super) fn cold(&mut self) -> Outcome {
        self.unmount()?;
        self.mount()
    }

    /// Returns the disk's counters so far.
    pub(super) fn counters(&self) -> DiskCounters {
        self.slow.counters()
    }
}

impl Drop for SeekingDisk {
    fn drop(&mut self) {
        // A drop cannot report a failure; what cannot be undone stays for the user to see.
        let _ = self.unmount();
        if let Some(device) = self.device.take() {
            for (parameter, value) in &self.queue {
                let _ = device.set_queue(parameter, value);
            }
        }
        if let Some((unmounter, server)) = self.export.take()
            && unmounter.unmount(true).is_ok()
        {
            let _ = server.join();
        }
    }
}

/// An image of an aged ext4; how many bytes its files have.
fn make_aged(folder: &Path, image: &Path, count: u64) -> Outcome<u64> {
    let mib = ((Tree::aged_bytes(count) * ROOM) >> 20).max(IMAGE_MIB_MIN);
    let hosted = Hosted::fresh(System::EXT4, folder, mib, "nodelalloc")?;
    let tree = Tree::aged(&hosted.mount_point.join("tree"), count)?;
    // The mount ends with the value, and so does the name that it uses; the file stays.
    std::fs::rename(hosted.image(), image).at(image)?;
    Ok(tree.bytes)
}

/// Returns the chosen value of a setting that lists its choices: `none [mq-deadline]`.
fn chosen(text: &str) -> String {
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(chosen, _)| chosen);
    chosen.unwrap_or(text.trim()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_put_back_as_they_were() {
        assert_eq!(chosen("none [mq-deadline] kyber\n"), "mq-deadline");
        assert_eq!(chosen("128\n"), "128");
    }
}
