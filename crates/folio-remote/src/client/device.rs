//! Mounts: /dev/fuse for whoever may mount, and the helper fusermount3 for others. Linux: fs/fuse/inode.c.

use folio::{Errno, Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// How a share appears to this machine; the words of mount.fuse3(8).
#[derive(Debug, Clone, Default)]
pub struct MountWords {
    /// What /proc/mounts tells.
    pub source: String,
    /// Whether other users may use it.
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

/// Mounts on `target`, an absolute path of a directory. Gives what the kernel's requests are read from.
pub(super) fn mount(target: &Path, words: &MountWords, checks_permissions: bool) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mounted = match rustix::fs::open("/dev/fuse", flags, Mode::empty()) {
        Ok(device) => match mount_directly(&device, target, words, checks_permissions) {
            Ok(()) => return Ok(device),
            Err(Errno::PERM) => mount_by_helper(target, words, checks_permissions),
            Err(errno) => return Err(Error::io("cannot mount", errno.into())),
        },
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            let why = "no /dev/fuse; load the module fuse (modprobe fuse), or give the container the device";
            return Err(Error::new(Errno::NODEV, why));
        }
        // The helper may.
        Err(_) => mount_by_helper(target, words, checks_permissions),
    };
    mounted.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let why = "cannot mount: users other than root need the program fusermount3 (package fuse3)";
            Error::new(Errno::PERM, why)
        }
        _ => Error::io("cannot mount", error),
    })
}

fn mount_directly(
    device: &OwnedFd,
    target: &Path,
    words: &MountWords,
    checks_permissions: bool,
) -> Result<(), Errno> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // The root is a directory.
    let mut data = format!("fd={},rootmode=40000,user_id={user},group_id={group}", device.as_raw_fd());
    for (is_set, word) in [(checks_permissions, ",default_permissions"), (words.allow_other, ",allow_other")]
    {
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
    rustix::mount::mount(words.source.as_str(), target, "fuse.folio", flags, data.as_c_str())
}

/// Has the setuid program mount; it opens the device and passes it on (libfuse, fusermount.c).
fn mount_by_helper(target: &Path, words: &MountWords, checks_permissions: bool) -> io::Result<OwnedFd> {
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
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    drop(theirs);
    let device = receive_fd(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        io::Read::read_to_string(&mut stderr, &mut said)?;
    }
    child.wait()?;
    match device? {
        Some(device) => Ok(device),
        None => Err(io::Error::new(io::ErrorKind::PermissionDenied, said.trim().to_owned())),
    }
}

/// The descriptor that comes with a byte; `None` if the other side closes.
fn receive_fd(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(stream, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC).map(|_| ())
    })?;
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(fd)
}
