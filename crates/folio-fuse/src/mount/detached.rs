//! FUSE mounts that are in no tree yet, for a program that builds a mount namespace of its own.
//! Linux: fs/fuse/inode.c, fs/fsopen.c.

use super::options::MountAttributes;
use folio::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A FUSE mount without a place in the tree of mounts. It lasts as long as `mount` is open or
/// attached somewhere by move_mount(2).
#[derive(Debug)]
pub struct DetachedMount {
    /// The device: requests are read from it, replies are written to it. The mounting process's
    /// user namespace is that of all user and group ids in requests and replies.
    pub device: OwnedFd,
    /// The root of the mount.
    pub mount: OwnedFd,
}

impl DetachedMount {
    /// Opens /dev/fuse and mounts. The calling process needs `CAP_SYS_ADMIN` in its user namespace,
    /// which any user has in a new one. With `checks_permissions` the kernel checks permissions
    /// before it sends a request.
    ///
    /// # Errors
    /// ENOENT or ENODEV without /dev/fuse, EACCES without access to it, EPERM without the
    /// capability, else those of fsmount(2).
    pub fn new(attributes: &MountAttributes, checks_permissions: bool) -> Result<Self> {
        let cannot = |what: &'static str| move |errno: io::Errno| Error::io(what, errno.into());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty());
        let device = device.map_err(cannot("cannot open /dev/fuse"))?;
        let mount = || {
            let context = context("fuse", &device, attributes, checks_permissions)?;
            rustix::mount::fsconfig_set_string(
                context.as_fd(),
                "source",
                attributes.source.as_str(),
            )?;
            rustix::mount::fsconfig_create(context.as_fd())?;
            let close = FsMountFlags::FSMOUNT_CLOEXEC;
            rustix::mount::fsmount(context.as_fd(), close, mount_flags(attributes))
        };
        let mount = mount().map_err(cannot("cannot mount FUSE"))?;
        Ok(Self { device, mount })
    }
}

/// Opens a context of the FUSE type `name` for the device `fuse`, complete but for the source.
pub(super) fn context(
    name: &str,
    fuse: &OwnedFd,
    attributes: &MountAttributes,
    checks_permissions: bool,
) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set =
        |key: &str, value: &str| rustix::mount::fsconfig_set_string(context.as_fd(), key, value);
    set("subtype", "folio")?;
    set("fd", &fuse.as_raw_fd().to_string())?;
    // The root is a directory.
    set("rootmode", "40000")?;
    set("user_id", &rustix::process::geteuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getegid().as_raw().to_string())?;
    for (is_set, flag) in [
        (checks_permissions, "default_permissions"),
        (attributes.allow_other, "allow_other"),
        (attributes.read_only, "ro"),
    ] {
        if is_set {
            rustix::mount::fsconfig_set_flag(context.as_fd(), flag)?;
        }
    }
    Ok(context)
}

/// Returns the flags of the mount itself.
pub(super) fn mount_flags(attributes: &MountAttributes) -> MountAttrFlags {
    let mut flags = MountAttrFlags::empty();
    for (is_set, flag) in [
        (attributes.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (attributes.no_set_id, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (attributes.no_devices, MountAttrFlags::MOUNT_ATTR_NODEV),
        (attributes.no_execution, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ] {
        flags.set(flag, is_set);
    }
    flags
}
