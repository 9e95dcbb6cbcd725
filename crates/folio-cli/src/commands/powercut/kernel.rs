//! The program on the kernel's ext4: a disk image on a FUSE mount, a loop device over it, and the
//! kernel's mount of that. Loop devices write through FUSE at once, and send fsync(2) for a flush.
//! FUSE caches nothing of the image, so it splits only writes of more than 1 MiB.

use super::mounted::{How, MountedDisk, SAFE};
use crate::exit::{Failure, Outcome};
use folio::block::Device;
use folio::{Errno, Error, Fs, Kernel, KernelOptions, Result};
use folio_fuse::{CallObserver, ObservedCall, ObservedKind};
use rustix::mount::{UnmountFlags, unmount};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// The only file of the FUSE mount.
const IMAGE: &str = "disk.img";
/// Memory beside the content of the disk, in bytes.
const MEMORY_BYTES: u64 = 64 << 20;
/// Size of the largest FUSE write in bytes: longer writes of the loop device are split.
const FUSE_WRITE_BYTES: u64 = 1 << 20;
/// Most bytes that are repeated at once; one discard may have gigabytes.
const PART_BYTES: u64 = 1 << 20;

/// Detaches the kernel's mount when it is dropped. Its users keep it, and the disk, until they end.
struct DetachAtEnd<'a>(&'a Path);

impl Drop for DetachAtEnd<'_> {
    fn drop(&mut self) {
        // It fails if the user has unmounted it.
        let _ = unmount(self.0, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
    }
}

/// A disk that the kernel has mounted.
pub(super) struct KernelMount<'a> {
    /// Detached before the disk.
    mountpoint: DetachAtEnd<'a>,
    disk: MountedDisk,
}

impl<'a> KernelMount<'a> {
    /// Mounts `device` on the directory `target` with the words of `-o`; the image is in `folder`.
    /// `calls` sees what the loop device writes.
    ///
    /// # Errors
    /// Without loop devices, those of mount(8).
    pub(super) fn new(
        device: Arc<dyn Device>,
        target: &'a Path,
        folder: &Path,
        options: &str,
        calls: Option<Arc<dyn CallObserver>>,
    ) -> Outcome<Self> {
        let fs = Fs::new(Kernel::new(KernelOptions {
            cache_bytes: device.len_bytes() + MEMORY_BYTES,
            ..KernelOptions::default()
        }));
        fill(&fs, &*device).map_err(|error| Failure::new(format!("--kernel: {error}")))?;
        let how = How {
            options: String::new(),
            cache_bytes: 0,
            is_direct: true,
            observer: Some(Arc::new(DiskObserver {
                device,
                fs: fs.clone(),
                calls,
                split_at: Mutex::new(None),
            })),
        };
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
        let disk = MountedDisk::serve(fs, SAFE, folder, &how)?;
        mount(&folder.join(IMAGE), target, options)?;
        Ok(Self {
            mountpoint: DetachAtEnd(target),
            disk,
        })
    }

    /// Unmounts; everything is then on the disk.
    ///
    /// # Errors
    /// EBUSY if a program still uses the mount.
    pub(super) fn close(self) -> Outcome {
        drop(self.mountpoint);
        // The loop device has the image open until the mount is unused.
        Ok(self.disk.close()?)
    }
}

/// Mounts the image on a loop device, which detaches itself: mount(8).
fn mount(image: &Path, target: &Path, options: &str) -> Outcome {
    let words = ["loop", SAFE, options].join(",");
    let mut mount = Command::new("mount");
    mount.args(["-t", "ext4", "-o", words.trim_end_matches(',')]);
    let output = mount.arg(image).arg(target).output();
    let output = output.map_err(|error| Failure::new(format!("--kernel: mount: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("--kernel: {}", why.trim())))
}

/// Creates the image with the content of a device; zeros are holes.
fn fill(fs: &Fs, device: &dyn Device) -> std::io::Result<()> {
    const HOLE_BYTES: u64 = 64 << 10;
    let file = fs.create(format!("/{IMAGE}"))?;
    let len_bytes = device.len_bytes();
    file.set_len(len_bytes)?;
    let mut bytes = vec![0; HOLE_BYTES as usize];
    for offset in (0..len_bytes).step_by(HOLE_BYTES as usize) {
        let part = &mut bytes[..HOLE_BYTES.min(len_bytes - offset) as usize];
        device.read_at(part, offset)?;
        if part.iter().any(|byte| *byte != 0) {
            file.write_all_at(part, offset)?;
        }
    }
    Ok(())
}

/// Returns whether a call discards or zeroes a range.
fn is_fallocate(call: &ObservedCall) -> bool {
    call.text.starts_with("fallocate(")
}

/// Repeats what the loop device writes on the disk that records it.
struct DiskObserver {
    device: Arc<dyn Device>,
    fs: Fs,
    calls: Option<Arc<dyn CallObserver>>,
    /// Where the last call ended, if it was a write of the largest size.
    split_at: Mutex<Option<u64>>,
}

impl DiskObserver {
    /// Returns whether this is a further part of the last write, which FUSE has split. If only such
    /// a part failed, the loop device would report success (Linux 6.18: `lo_complete_rq` ignores
    /// short writes).
    fn continues_last(&self, call: &ObservedCall) -> bool {
        let written = match (call.kind, &call.range) {
            (ObservedKind::Write, Some(range)) if !is_fallocate(call) => Some(range),
            _ => None,
        };
        let is_whole = |range: &&Range<u64>| range.end - range.start == FUSE_WRITE_BYTES;
        let split_at = self.split_at.lock();
        let mut split_at = split_at.unwrap_or_else(PoisonError::into_inner);
        let last = std::mem::replace(
            &mut *split_at,
            written.filter(is_whole).map(|range| range.end),
        );
        last.is_some() && last == written.map(|range| range.start)
    }

    /// Repeats a served call.
    fn repeat(&self, call: &ObservedCall) -> Result<()> {
        match (call.kind, &call.range) {
            (ObservedKind::Sync, _) => self.device.flush(),
            (_, Some(range)) => {
                // A discard that failed has changed nothing.
                let skips_equal = is_fallocate(call);
                self.repeat_range(range, skips_equal)
            }
            (_, None) => Ok(()),
        }
    }

    /// Writes a range of the image to the disk, except for parts that it has already with
    /// `skips_equal`. The kernel does not write the same bytes twice at a time.
    fn repeat_range(&self, range: &Range<u64>, skips_equal: bool) -> Result<()> {
        let file = self.fs.open(format!("/{IMAGE}"));
        let file = file.map_err(|error| Error::io("open", error))?;
        let [mut bytes, mut old] = [const { Vec::new() }; 2];
        for offset in range.clone().step_by(PART_BYTES as usize) {
            bytes.resize(PART_BYTES.min(range.end - offset) as usize, 0);
            file.read_exact_at(&mut bytes, offset)
                .map_err(|error| Error::io("read", error))?;
            if skips_equal {
                old.resize(bytes.len(), 0);
                self.device.read_at(&mut old, offset)?;
            }
            if !skips_equal || old != bytes {
                self.device.write_at(&bytes, offset)?;
            }
        }
        Ok(())
    }
}

impl CallObserver for DiskObserver {
    fn observe(&self, call: &ObservedCall, serve: &mut dyn FnMut()) -> Option<Errno> {
        let mut repeated = Ok(());
        let mut serve = || {
            serve();
            repeated = self.repeat(call);
        };
        let failed = match &self.calls {
            Some(calls) if !self.continues_last(call) => calls.observe(call, &mut serve),
            _ => {
                serve();
                None
            }
        };
        failed.or_else(|| repeated.err().map(|error| error.errno()))
    }
}
