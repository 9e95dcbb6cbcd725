//! Kernels and their mounts.

use crate::argument::{Text, handle};
use crate::call::call;
use crate::constants::*;
use crate::device::{FolioDeviceOps, device_of};
use crate::fork;
use crate::options::{self, Growable};
use folio::block::{self, Device};
use folio::syscall::Credentials;
use folio::vfs::{AccessTime, MountOptions};
use folio::{Errno, Error, Kernel, KernelOptions, Result};
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::Arc;

/// A kernel: mounts and caches. A program may have many; they share nothing.
pub struct FolioKernel {
    pub(crate) kernel: Arc<Kernel>,
}

/// Options of folio_kernel_new(); fields that are 0 have their default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FolioKernelOptions {
    /// sizeof(struct folio_kernel_options).
    pub size: usize,
    /// Memory for cached pages, inodes and names, in bytes.
    pub cache_bytes: u64,
    /// Age in milliseconds from which background threads write dirty pages.
    pub dirty_expire_ms: u64,
    /// 1: dirty pages are written by sync calls and when memory is needed, not in the background.
    pub no_background_writeback: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: integers, the first of them a `usize`.
unsafe impl Growable for FolioKernelOptions {}

/// Makes a kernel with an empty ramfs as its root. `options` may be null. Returns null after a
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folio_kernel_new(
    options: *const FolioKernelOptions,
) -> Option<Box<FolioKernel>> {
    call("kernel_new", || {
        // SAFETY: by the contract of the crate.
        let options = unsafe { options::read(options) }?;
        let mut made = KernelOptions::default();
        if let Some(options) = options {
            if options.cache_bytes != 0 {
                made.cache_bytes = options.cache_bytes;
            }
            if options.dirty_expire_ms != 0 {
                made.dirty_expire_ms = options.dirty_expire_ms;
            }
            made.background_writeback = options.no_background_writeback == 0;
        }
        fork::note_use();
        let kernel = Kernel::new(made);
        Ok(Some(Box::new(FolioKernel { kernel })))
    })
}

/// Frees a kernel: syncs every file system and returns the first error. The file systems are
/// unmounted once the kernel's processes are freed too. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn folio_kernel_free(kernel: Option<Box<FolioKernel>>) -> c_int {
    call("kernel_free", || {
        let Some(kernel) = kernel else {
            return Ok(0);
        };
        kernel.kernel.process(Credentials::root()).sync()?;
        Ok(0)
    })
}

/// Mounts a file system over the directory `target`, as mount(2) does. `type` is "auto", with the
/// image `source` (IMAGE, or IMAGE@N for its Nth partition) of any file system that Folio reads:
/// ext2, ext3, ext4, FAT, squashfs, erofs; "ext4", to accept ext2, ext3 and ext4 alone; "hostfs",
/// with a directory of the host; "ramfs" or "tmpfs", without a source. `flags` combines FOLIO_MS_*,
/// and `data` has options of the file system as `mount -o` writes them; it may be null.
#[unsafe(no_mangle)]
pub extern "C" fn folio_mount(
    kernel: Option<&FolioKernel>,
    source: Text,
    target: Text,
    r#type: Text,
    flags: u64,
    data: Text,
) -> c_int {
    call("mount", || {
        let kernel = &handle(kernel)?.kernel;
        let target = target.path()?;
        let options = mount_options(flags, &data)?;
        match r#type.bytes()? {
            kind @ (b"auto" | b"ext4") => {
                let name = source.path()?;
                let device = open_image(name, options.read_only)?;
                let mounted = match kind {
                    b"ext4" => kernel.mount_ext4(device, target, &options),
                    _ => kernel.mount_image(device, target, &options),
                };
                mounted.map_err(|error| at(error, name))?;
            }
            b"hostfs" => kernel.mount_hostfs(source.path()?, target, &options)?,
            b"ramfs" => kernel.mount_ramfs(target, &options)?,
            b"tmpfs" => kernel.mount_tmpfs(target, &options)?,
            other => {
                let other = String::from_utf8_lossy(other);
                let message = format!(
                    "unknown file system type {other:?}: expected auto, ext4, hostfs, ramfs or tmpfs"
                );
                return Err(Error::new(Errno::NODEV, message));
            }
        }
        Ok(0)
    })
}

/// Mounts the file system on a device of the program's own. `ops` is copied; `context` is
/// passed to its calls. After a failure `ops->release` was called, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folio_mount_device(
    kernel: Option<&FolioKernel>,
    ops: *const FolioDeviceOps,
    context: *mut c_void,
    target: Text,
    flags: u64,
    data: Text,
) -> c_int {
    call("mount_device", || {
        // SAFETY: by the contract of the crate.
        let device = unsafe { device_of(ops, context) }?;
        let kernel = &handle(kernel)?.kernel;
        let options = mount_options(flags, &data)?;
        kernel.mount_image(
            block::partition::select(device, None)?,
            target.path()?,
            &options,
        )?;
        Ok(0)
    })
}

/// Syncs and detaches the file system mounted at `target`. Fails with -EBUSY while files on it are
/// open.
#[unsafe(no_mangle)]
pub extern "C" fn folio_umount(kernel: Option<&FolioKernel>, target: Text) -> c_int {
    call("umount", || {
        handle(kernel)?.kernel.unmount(target.path()?)?;
        Ok(0)
    })
}

/// Opens the device that holds the file system of `IMAGE[@PARTITION]`.
fn open_image(name: &Path, read_only: bool) -> Result<Arc<dyn Device>> {
    let (image, partition) = block::partition::split_partition(name.as_os_str());
    let options = block::OpenOptions {
        read_only,
        ..block::OpenOptions::default()
    };
    let device = block::open(&image, &options)?;
    let number = partition.map(|partition| partition.number(&*device));
    let selected = number
        .transpose()
        .and_then(|number| block::partition::select(device, number));
    selected.map_err(|error| at(error, name))
}

pub(crate) fn at(error: Error, name: &Path) -> Error {
    error.at(name.display().to_string())
}

/// Returns the options of mount(2): flags, then the words of `data`.
fn mount_options(flags: u64, data: &Text) -> Result<MountOptions> {
    const KNOWN: u64 = FOLIO_MS_RDONLY
        | FOLIO_MS_NOSUID
        | FOLIO_MS_NODEV
        | FOLIO_MS_NOEXEC
        | FOLIO_MS_SYNCHRONOUS
        | FOLIO_MS_DIRSYNC
        | FOLIO_MS_NOATIME
        | FOLIO_MS_NODIRATIME
        | FOLIO_MS_SILENT
        | FOLIO_MS_RELATIME
        | FOLIO_MS_STRICTATIME
        | FOLIO_MS_LAZYTIME;
    if flags & !KNOWN != 0 {
        let message = format!("unknown mount flags {:#x}", flags & !KNOWN);
        return Err(Error::new(Errno::INVAL, message));
    }
    let has = |flag| flags & flag != 0;
    let mut options = MountOptions {
        read_only: has(FOLIO_MS_RDONLY),
        is_sync: has(FOLIO_MS_SYNCHRONOUS),
        is_directory_sync: has(FOLIO_MS_DIRSYNC),
        is_lazy_time: has(FOLIO_MS_LAZYTIME),
        no_set_id: has(FOLIO_MS_NOSUID),
        no_devices: has(FOLIO_MS_NODEV),
        no_execution: has(FOLIO_MS_NOEXEC),
        no_directory_access_time: has(FOLIO_MS_NODIRATIME),
        ..MountOptions::default()
    };
    // As in Linux, noatime is the weakest.
    if has(FOLIO_MS_STRICTATIME) {
        options.access_time = AccessTime::Strict;
    } else if has(FOLIO_MS_NOATIME) {
        options.access_time = AccessTime::Never;
    }
    options.add(data.text("the mount options")?.unwrap_or_default())?;
    Ok(options)
}
