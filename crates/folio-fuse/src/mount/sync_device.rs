//! A block device in memory, for which the kernel sends sync(2) to the server.
//!
//! For a file system of type `fuse` the kernel keeps sync(2) and syncfs(2) to itself. For
//! `fuseblk`, a server of a block device, it sends `FUSE_SYNCFS` since Linux 6.18, and
//! `FUSE_DESTROY` before umount(2) returns. Folio has the image open itself; so the device is a
//! loop device of one page of memory that no program reads. It disappears with the mount.
//!
//! Only in the machine's first mount namespace: with the last process of another one its mounts
//! end. If that process is the server, the kernel waits in its exit for its reply to
//! `FUSE_DESTROY`, without end, and each sync(2) of the machine waits for the kernel.
//! Linux: fs/fuse/inode.c, `fuse_sync_fs`, `fuse_send_destroy`; kernel/exit.c, `do_exit`.
#![allow(unsafe_code)]

use super::descriptor_table::leave_shared_table;
use super::detached;
use super::options::MountAttributes;
use crate::local::ioctl;
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};
use rustix::thread::UnshareFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Length of the device.
const DEVICE_LEN: u64 = 4096;
/// Attempts to get a free loop device: another program may take it first.
const TRIES_MAX: u32 = 16;
/// The first kernel that sends `FUSE_SYNCFS` for a block device.
const LINUX_MIN: (u32, u32) = (6, 18);

/// The device of one mount.
pub(super) struct SyncDevice(OwnedFd);

impl SyncDevice {
    /// Attaches a device, called `name` in the list of loop devices.
    fn attach(name: &str) -> Result<(Self, PathBuf)> {
        // The kernel permits 249 bytes.
        let name: String = name.chars().take(60).collect();
        let memory = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, DEVICE_LEN)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let control = rustix::fs::open("/dev/loop-control", flags, Mode::empty())?;
        for _ in 0..TRIES_MAX {
            let number = ioctl::free_loop_device(control.as_fd())?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = rustix::fs::open(&path, flags, Mode::empty())?;
            match ioctl::attach_loop_device(device.as_fd(), memory.as_fd()) {
                Err(Errno::BUSY) => {}
                attached => return attached.map(|()| (Self(device), path)),
            }
        }
        Err(Errno::BUSY)
    }

    /// Syncs the mounted file system as sync(2) does: the kernel writes back its dirty pages, then
    /// it sends `FUSE_SYNCFS`. Pins no mount, so that an unmount does not fail with EBUSY.
    ///
    /// Linux: `blkdev_flushbuf`.
    pub(super) fn sync(&self) -> Result<()> {
        ioctl::flush_block_device(self.0.as_fd())
    }

    /// Gives the calling thread a table of descriptors of its own, with this device alone.
    pub(super) fn leave_shared_table(&self) -> Result<()> {
        leave_shared_table(Some(self.0.as_fd()))
    }
}

/// Returns whether this kernel sends sync(2) to the server of a block device, and a server that is
/// killed cannot wait for itself.
pub(super) fn is_supported() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    linux_version(&release).is_some_and(|version| version >= LINUX_MIN) && is_first_namespace()
}

/// Returns whether this process is in the mount namespace of the kernel's threads, which never
/// ends. Process 2 is the first of them where the process numbers are the machine's.
fn is_first_namespace() -> bool {
    let stat = std::fs::read_to_string("/proc/2/stat").unwrap_or_default();
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt"));
    is_kernel_thread(&stat)
        && matches!((namespace("2"), namespace("self")), (Ok(first), Ok(own)) if first == own)
}

/// Returns whether a line of /proc/PID/stat is that of a thread of the kernel. Linux: `PF_KTHREAD`;
/// proc_pid_stat(5).
fn is_kernel_thread(stat: &str) -> bool {
    const KERNEL_THREAD: u32 = 0x0020_0000;
    // The name may contain spaces and parentheses.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_whitespace().nth(6);
    let flags = flags.and_then(|text| text.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// Parses major and minor version of "6.18.4-generic".
fn linux_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

/// Mounts `fuse` on `target` with a new device.
///
/// # Errors
/// EPERM without root's capabilities, and ENOENT without loop devices. `fuse` may then be in use,
/// and another descriptor of /dev/fuse is needed to mount without a device.
pub(super) fn mount(
    fuse: &OwnedFd,
    target: &Path,
    attributes: &MountAttributes,
    checks_permissions: bool,
) -> Result<SyncDevice> {
    let context = detached::context("fuseblk", fuse, attributes, checks_permissions)?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "blksize", DEVICE_LEN.to_string())?;
    let (device, path) = SyncDevice::attach(&attributes.source)?;
    create(context.as_fd(), &attributes.source, &device, &path)?;
    let flags = detached::mount_flags(attributes);
    let mount = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(mount.as_fd(), "", CWD, target, flags)?;
    Ok(device)
}

/// Creates the file system. Its source in /proc/mounts is `source`, the image, if a node of the
/// device can have that name in an empty tree; else the path of the device.
fn create(context: BorrowedFd<'_>, source: &str, device: &SyncDevice, path: &Path) -> Result<()> {
    let number = rustix::fs::fstat(&device.0)?.st_rdev;
    let create = |source: &Path| {
        rustix::mount::fsconfig_set_string(context, "source", source)?;
        rustix::mount::fsconfig_create(context)
    };
    // A thread of its own, since it changes its root directory.
    let named = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let source = Path::new(source);
            enter_tree_with(source, number)?;
            Ok(create(source))
        });
        thread.join().unwrap_or(Err(Errno::INVAL))
    });
    // Without the name nothing was created.
    named.unwrap_or_else(|_: Errno| create(path))
}

/// Makes an empty tree in memory the calling thread's root and working directory, and creates the
/// block device `number` at `source` in it.
fn enter_tree_with(source: &Path, number: u64) -> Result<()> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::empty();
    let tree = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    // SAFETY: the directories of other threads stay as they are; no descriptors are concerned.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
    rustix::process::fchdir(&tree)?;
    rustix::process::chroot(".")?;
    if let Some(parent) = source.parent() {
        std::fs::create_dir_all(Path::new(".").join(parent)).map_err(|_| Errno::INVAL)?;
    }
    rustix::fs::mknodat(CWD, source, FileType::BlockDevice, Mode::RUSR, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_thread_is_known_by_its_flags() {
        assert!(is_kernel_thread("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0"));
        assert!(!is_kernel_thread("2 (a) b) S 1 2 2 0 -1 4194560 2129984 0"));
        assert!(!is_kernel_thread(""));
    }

    #[test]
    fn linux_version_ignores_suffixes() {
        assert_eq!(linux_version("6.18.4-generic\n"), Some((6, 18)));
        assert_eq!(linux_version("7.0-rc1"), Some((7, 0)));
        assert_eq!(linux_version("5.4"), Some((5, 4)));
        assert_eq!(linux_version(""), None);
    }
}
