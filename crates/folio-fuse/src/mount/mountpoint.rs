//! Mount and unmount: by /dev/fuse with the privilege to mount, else by the helper fusermount3.
//! Linux: fs/fuse/inode.c.

use super::options::MountAttributes;
use super::sync_device::{self, SyncDevice};
use crate::local::ioctl;
use crate::wire::abi::REMOUNT_LEN;
use folio::{Errno, Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A mount and its FUSE device; unmounted when dropped, if it is still mounted.
pub struct Mountpoint {
    device: Arc<OwnedFd>,
    sync_device: Option<SyncDevice>,
    unmounter: Unmounter,
}

impl Mountpoint {
    /// Mounts on the directory `target`. With `checks_permissions` the kernel checks permissions
    /// before it sends a request.
    ///
    /// # Errors
    /// ENODEV without /dev/fuse, EPERM if the helper is missing or refuses, ENOTDIR for a file,
    /// else those of mount(2).
    pub fn new(
        target: &Path,
        attributes: &MountAttributes,
        checks_permissions: bool,
    ) -> Result<Self> {
        let mount = || {
            let target = absolute_target(target)?;
            let (device, sync_device) = mount(&target, attributes, checks_permissions)?;
            Ok(Self {
                device: Arc::new(device),
                sync_device,
                unmounter: Unmounter { target },
            })
        };
        mount().map_err(|error: Error| error.at(target.display().to_string()))
    }

    /// Returns the device: requests are read from it, replies and notices are written to it.
    pub fn device(&self) -> &Arc<OwnedFd> {
        &self.device
    }

    /// Takes the block device of the mount, if it has one. It remains until it is dropped, also
    /// after an unmount.
    pub(super) fn take_sync_device(&mut self) -> Option<SyncDevice> {
        self.sync_device.take()
    }

    /// Returns the handle that unmounts it.
    pub fn unmounter(&self) -> &Unmounter {
        &self.unmounter
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        // After an unmount the device reports an error; another mount may be at the target by now.
        let mut ready = [PollFd::new(&self.device, PollFlags::empty())];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut ready, Some(&now)).is_ok() && !ready[0].revents().contains(PollFlags::ERR) {
            self.unmounter.abort();
        }
    }
}

/// Mounts on `target`, an absolute path of a directory; returns the device of requests, and the
/// block device if the kernel sends sync(2).
fn mount(
    target: &Path,
    attributes: &MountAttributes,
    checks_permissions: bool,
) -> Result<(OwnedFd, Option<SyncDevice>)> {
    let open = || {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open("/dev/fuse", flags, Mode::empty())
    };
    if attributes.sends_sync
        && sync_device::is_supported()
        && let Ok(device) = open()
        && let Ok(sync) = sync_device::mount(&device, target, attributes, checks_permissions)
    {
        return Ok((device, Some(sync)));
    }
    let mounted = match open() {
        Ok(device) => match mount_directly(&device, target, attributes, checks_permissions) {
            Ok(()) => return Ok((device, None)),
            Err(Errno::PERM) => mount_by_helper(target, attributes, checks_permissions),
            Err(errno) => return Err(Error::io("cannot mount", errno.into())),
        },
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            let why = "cannot mount: no /dev/fuse; load the module fuse (modprobe fuse), or give the container the device";
            return Err(Error::new(Errno::NODEV, why));
        }
        // The helper may have access.
        Err(_) => mount_by_helper(target, attributes, checks_permissions),
    };
    let mounted = mounted.map(|device| (device, None));
    mounted.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let why =
                "cannot mount: users other than root need the program fusermount3 (package fuse3)";
            Error::new(Errno::PERM, why)
        }
        io::ErrorKind::PermissionDenied if error.to_string().contains("user_allow_other") => {
            let why = "cannot mount: allow_other needs the line user_allow_other in /etc/fuse.conf";
            Error::new(Errno::PERM, why)
        }
        _ => Error::io("cannot mount", error),
    })
}

fn mount_directly(
    device: &OwnedFd,
    target: &Path,
    attributes: &MountAttributes,
    checks_permissions: bool,
) -> Result<(), Errno> {
    let (user, group) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    // The root is a directory.
    let mut data = format!(
        "fd={},rootmode=40000,user_id={user},group_id={group}",
        device.as_raw_fd()
    );
    for (is_set, word) in [
        (checks_permissions, ",default_permissions"),
        (attributes.allow_other, ",allow_other"),
    ] {
        if is_set {
            data.push_str(word);
        }
    }
    let mut flags = MountFlags::empty();
    for (is_set, flag) in [
        (attributes.read_only, MountFlags::RDONLY),
        (attributes.no_set_id, MountFlags::NOSUID),
        (attributes.no_devices, MountFlags::NODEV),
        (attributes.no_execution, MountFlags::NOEXEC),
    ] {
        flags.set(flag, is_set);
    }
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(
        attributes.source.as_str(),
        target,
        "fuse.folio",
        flags,
        data.as_c_str(),
    )
}

/// Mounts by the setuid program, which opens the device and sends its descriptor (libfuse,
/// fusermount.c).
fn mount_by_helper(
    target: &Path,
    attributes: &MountAttributes,
    checks_permissions: bool,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // The child inherits it.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    // A comma would begin another option.
    let source = attributes.source.replace([',', '\\', '\n'], "_");
    let mut options = format!("fsname={source},subtype=folio");
    for (is_set, word) in [
        (checks_permissions, ",default_permissions"),
        (attributes.allow_other, ",allow_other"),
        (attributes.read_only, ",ro"),
        // For users other than root the helper adds nosuid and nodev by itself.
        (attributes.no_set_id, ",nosuid"),
        (attributes.no_devices, ",nodev"),
        (attributes.no_execution, ",noexec"),
    ] {
        if is_set {
            options.push_str(word);
        }
    }
    let mut command = Command::new("fusermount3");
    command.args(["-o", &options, "--"]).arg(target);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(theirs);
    let device = receive_fd(&ours);
    let mut message = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        io::Read::read_to_string(&mut stderr, &mut message)?;
    }
    child.wait()?;
    match device? {
        Some(device) => Ok(device),
        None => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            message.trim().to_owned(),
        )),
    }
}

/// Receives the descriptor that is sent with a byte; `None` if the other side closes.
fn receive_fd(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(stream, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            .map(|_| ())
    })?;
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(fd)
}

/// Has the server of the mount on `target` change an option of its file system: a word of mount(8).
/// The kernel's own flags are changed by mount(2).
///
/// # Errors
/// ENOTTY if no server of this library is mounted there, EPERM without privilege, EINVAL for a word
/// that the file system does not know, EOPNOTSUPP for one that only a new mount changes, EROFS for
/// `rw` if it was mounted read-only.
pub fn remount(target: &Path, word: &str) -> Result<()> {
    let mut argument = [0; REMOUNT_LEN];
    let bytes = word.as_bytes();
    // A zero byte ends it.
    if bytes.len() >= argument.len() || bytes.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    argument[..bytes.len()].copy_from_slice(bytes);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(target, flags, Mode::empty())
        .and_then(|root| ioctl::remount(root.as_fd(), argument))
        .map_err(Error::from)
}

/// Unmounts, from any thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    /// Absolute, so that the working directory does not matter.
    target: PathBuf,
}

/// Returns the absolute path of the directory `target`. Unmounts a FUSE mount there whose server
/// has died; its users get ENOTCONN before and after.
fn absolute_target(target: &Path) -> Result<PathBuf> {
    let cannot = |error| Error::io("cannot mount here", error);
    let is_dead = |error: &io::Error| error.kind() == io::ErrorKind::NotConnected;
    let absolute = match target.canonicalize() {
        Err(error) if is_dead(&error) => absolute_by_parent(target).ok_or(error),
        absolute => absolute,
    };
    let absolute = absolute.map_err(cannot)?;
    let metadata = match absolute.metadata() {
        Err(error) if is_dead(&error) => {
            Unmounter {
                target: absolute.clone(),
            }
            .unmount(true)?;
            absolute.metadata()
        }
        metadata => metadata,
    };
    if metadata.map_err(cannot)?.is_dir() {
        Ok(absolute)
    } else {
        Err(Error::new(Errno::NOTDIR, "cannot mount: not a directory"))
    }
}

/// Returns the absolute path of a dead mount, found through its parent.
fn absolute_by_parent(target: &Path) -> Option<PathBuf> {
    let parent = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    Some(parent.canonicalize().ok()?.join(target.file_name()?))
}

impl Unmounter {
    /// Returns the unmounter of `target`, an absolute path.
    pub fn new(target: PathBuf) -> Self {
        Self { target }
    }

    /// Returns the mountpoint, as an absolute path.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Unmounts. With `lazily` it leaves the tree at once, and the session ends with its last user.
    ///
    /// # Errors
    /// EBUSY while files are open or directories are in use, else those of umount(2).
    ///
    /// Linux: umount2(2), `MNT_DETACH`.
    pub fn unmount(&self, lazily: bool) -> Result<()> {
        // Never through a symbolic link that has replaced the mountpoint.
        let flags = UnmountFlags::NOFOLLOW;
        let flags = if lazily {
            flags | UnmountFlags::DETACH
        } else {
            flags
        };
        match rustix::mount::unmount(&self.target, flags) {
            // Only the setuid helper can unmount a user's mount.
            Err(Errno::PERM) => self.unmount_by_helper(lazily),
            unmounted => unmounted.map_err(|errno| self.at_target(errno.into())),
        }
    }

    /// Detaches a mount that no thread serves; its users get ENOTCONN. Without the abort the kernel
    /// would wait for the reply to `FUSE_DESTROY`.
    fn abort(&self) {
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE;
        if rustix::mount::unmount(&self.target, flags).is_err() {
            let _ = self.unmount_by_helper(true);
        }
    }

    fn unmount_by_helper(&self, lazily: bool) -> Result<()> {
        let mut command = Command::new("fusermount3");
        command
            .arg(if lazily { "-uz" } else { "-u" })
            .arg("--")
            .arg(&self.target)
            .stdin(Stdio::null());
        let output = command
            .output()
            .map_err(|error| self.at_target(Error::io("fusermount3", error)))?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let errno = if message.contains("busy") {
            Errno::BUSY
        } else {
            Errno::PERM
        };
        Err(self.at_target(Error::new(errno, message)))
    }

    fn at_target(&self, error: Error) -> Error {
        error.at(self.target.display().to_string())
    }
}
