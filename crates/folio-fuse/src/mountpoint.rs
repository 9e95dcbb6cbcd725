//! Mounts: /dev/fuse for whoever may mount, and the helper fusermount3 for others. Linux:
//! fs/fuse/inode.c.

use folio::{Errno, Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// How a mount appears to this machine; the words of mount.fuse3(8).
#[derive(Debug, Clone, Default)]
pub struct MountAttributes {
    /// What /proc/mounts tells.
    pub source: String,
    /// Whether the kernel lets other users use it.
    pub allow_other: bool,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether set-user-id bits count for nothing.
    pub no_set_id: bool,
    /// Whether device nodes lead nowhere.
    pub no_devices: bool,
    /// Whether no program of it is run.
    pub no_execution: bool,
}

/// A mount whose requests come from a device; it is taken away when dropped, if it is still there.
pub struct Mountpoint {
    device: Arc<OwnedFd>,
    unmounter: Unmounter,
}

impl Mountpoint {
    /// Mounts on the directory `target`. With `checks_permissions` the kernel checks them before it
    /// asks.
    pub fn new(target: &Path, words: &MountAttributes, checks_permissions: bool) -> Result<Self> {
        let mount = || {
            let target = find(target)?;
            let device = mount(&target, words, checks_permissions)?;
            Ok(Self {
                device: Arc::new(device),
                unmounter: Unmounter { target },
            })
        };
        mount().map_err(|error: Error| error.at(target.display().to_string()))
    }

    /// What requests are read from, and replies and notices written to.
    pub fn device(&self) -> &Arc<OwnedFd> {
        &self.device
    }

    /// What takes it away.
    pub fn unmounter(&self) -> &Unmounter {
        &self.unmounter
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        // The kernel has let go of the device when it has unmounted; something else may be in the
        // place by now.
        let mut ready = [PollFd::new(&self.device, PollFlags::empty())];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut ready, Some(&now)).is_ok() && !ready[0].revents().contains(PollFlags::ERR) {
            // Whoever uses it still gets ENOTCONN.
            let _ = self.unmounter.unmount(true);
        }
    }
}

/// Mounts on `target`, an absolute path of a directory. Gives what the kernel's requests are read
/// from.
fn mount(target: &Path, words: &MountAttributes, checks_permissions: bool) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mounted = match rustix::fs::open("/dev/fuse", flags, Mode::empty()) {
        Ok(device) => match mount_directly(&device, target, words, checks_permissions) {
            Ok(()) => return Ok(device),
            Err(Errno::PERM) => mount_by_helper(target, words, checks_permissions),
            Err(errno) => return Err(Error::io("cannot mount", errno.into())),
        },
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            let why = "cannot mount: no /dev/fuse; load the module fuse (modprobe fuse), or give the container the device";
            return Err(Error::new(Errno::NODEV, why));
        }
        // The helper may.
        Err(_) => mount_by_helper(target, words, checks_permissions),
    };
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
    words: &MountAttributes,
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
        (words.allow_other, ",allow_other"),
    ] {
        if is_set {
            data.push_str(word);
        }
    }
    let mut flags = MountFlags::empty();
    for (is_set, flag) in [
        (words.read_only, MountFlags::RDONLY),
        (words.no_set_id, MountFlags::NOSUID),
        (words.no_devices, MountFlags::NODEV),
        (words.no_execution, MountFlags::NOEXEC),
    ] {
        flags.set(flag, is_set);
    }
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(
        words.source.as_str(),
        target,
        "fuse.folio",
        flags,
        data.as_c_str(),
    )
}

/// Has the setuid program mount; it opens the device and passes it on (libfuse, fusermount.c).
fn mount_by_helper(
    target: &Path,
    words: &MountAttributes,
    checks_permissions: bool,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // It is inherited.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    // Commas and the like would be more options.
    let source = words.source.replace([',', '\\', '\n'], "_");
    let mut options = format!("fsname={source},subtype=folio");
    for (is_set, word) in [
        (checks_permissions, ",default_permissions"),
        (words.allow_other, ",allow_other"),
        (words.read_only, ",ro"),
        // Without these words the helper adds nosuid and nodev for users itself.
        (words.no_set_id, ",nosuid"),
        (words.no_devices, ",nodev"),
        (words.no_execution, ",noexec"),
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
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        io::Read::read_to_string(&mut stderr, &mut said)?;
    }
    child.wait()?;
    match device? {
        Some(device) => Ok(device),
        None => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            said.trim().to_owned(),
        )),
    }
}

/// The descriptor that comes with a byte; `None` if the other side closes.
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

/// Takes a mount away, from any thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    /// Absolute, so that the working directory does not matter.
    target: PathBuf,
}

/// Where a mount on `target` will be. A FUSE mount there whose server has died is taken away first:
/// those who use it get ENOTCONN, and will go on getting it.
fn find(target: &Path) -> Result<PathBuf> {
    let cannot = |error| Error::io("cannot mount here", error);
    let is_dead = |error: &io::Error| error.kind() == io::ErrorKind::NotConnected;
    let absolute = match target.canonicalize() {
        Err(error) if is_dead(&error) => at_parent(target).ok_or(error),
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
    match metadata.map_err(cannot)?.is_dir() {
        true => Ok(absolute),
        false => Err(Error::new(
            Errno::NOTDIR,
            "not a directory, so nothing can be mounted on it",
        )),
    }
}

/// The absolute path of what cannot be looked at itself.
fn at_parent(target: &Path) -> Option<PathBuf> {
    let parent = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    Some(parent.canonicalize().ok()?.join(target.file_name()?))
}

impl Unmounter {
    /// For what is mounted on `target`, an absolute path.
    pub fn new(target: PathBuf) -> Self {
        Self { target }
    }

    /// The place, as messages have it.
    pub(crate) fn target(&self) -> String {
        self.target.display().to_string()
    }

    /// Unmounts; EBUSY while files are open or directories in use. `lazily` it is gone from the
    /// tree at once, and the session ends when the last user is gone.
    pub fn unmount(&self, lazily: bool) -> Result<()> {
        // Never through a link that somebody has put in the mountpoint's place.
        let flags = UnmountFlags::NOFOLLOW;
        let flags = if lazily {
            flags | UnmountFlags::DETACH
        } else {
            flags
        };
        match rustix::mount::unmount(&self.target, flags) {
            // A user's mount is the setuid helper's to take away.
            Err(Errno::PERM) => self.unmount_by_helper(lazily),
            unmounted => unmounted.map_err(|errno| self.place(errno.into())),
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
            .map_err(|error| self.place(Error::io("fusermount3", error)))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let errno = if said.contains("busy") {
            Errno::BUSY
        } else {
            Errno::PERM
        };
        Err(self.place(Error::new(errno, said)))
    }

    fn place(&self, error: Error) -> Error {
        error.at(self.target())
    }
}
