//! Executes the calling program again from a read-only mount of its file.
//!
//! A program of an image may name /proc/self/exe as its interpreter, and then runs as the file that
//! the calling process was started from, with libraries of the image. From a read-only mount it
//! cannot change mode, owner, attributes or content of that file.

use crate::channel::{Channel, Message};
use crate::failure::Failure;
use crate::sys::{self, Fork};
use rustix::fs::{CWD, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags};
use rustix::process::{WaitOptions, waitpid};
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

/// The program of the calling process.
const SELF: &str = "/proc/self/exe";

/// Executes the calling program again, with the same arguments, from a read-only mount. Returns if
/// it was started from one. The calling process must have one thread.
///
/// # Errors
/// A kernel that permits no user namespaces.
pub fn execute_read_only() -> Result<(), Failure> {
    let cannot =
        |errno| Failure::of("cannot start from a read-only mount", errno).of_machine(errno);
    let mounted = rustix::fs::statvfs(SELF).map_err(cannot)?;
    if mounted.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    let program = read_only_mount().map_err(cannot)?;
    let string = |string: OsString| CString::new(string.into_vec()).map_err(|_| Errno::INVAL);
    let arguments = std::env::args_os().map(string);
    let arguments = arguments.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
    let variables = std::env::vars_os().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        string(name)
    });
    let variables = variables.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
    Err(cannot(sys::execute_open(
        program.as_fd(),
        &arguments,
        &variables,
    )))
}

/// Mounts the program's file read-only, attached nowhere. A process with namespaces of its own does
/// it, since the caller may not be permitted to mount.
#[expect(
    clippy::disallowed_methods,
    reason = "the process is a fork: nothing of its parent is to be closed here"
)]
fn read_only_mount() -> Result<OwnedFd, Errno> {
    let (ours, theirs) = Channel::pair()?;
    match sys::fork()? {
        Fork::Child => {
            let sent = clone_program().and_then(|mount| theirs.send(&Message::Device(mount)));
            let exit = sent.map_or_else(Errno::raw_os_error, |()| 0);
            std::process::exit(exit)
        }
        Fork::Parent(child) => {
            drop(theirs);
            let received = ours.receive();
            let ended = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
            match received? {
                Some(Message::Device(mount)) => Ok(mount),
                _ => {
                    let status = ended.and_then(|(_, status)| status.exit_status());
                    Err(Errno::from_raw_os_error(status.unwrap_or(libc::EIO)))
                }
            }
        }
    }
}

fn clone_program() -> Result<OwnedFd, Errno> {
    let path = rustix::fs::readlink(SELF, Vec::new())?;
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(CWD, path, flags)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
        .union(MountAttrFlags::MOUNT_ATTR_NODEV);
    sys::set_mount_attributes(mount.as_fd(), attributes.bits().into(), None)?;
    Ok(mount)
}
