//! A mount namespace of the caller's own: its mounts are seen by its children alone, and end with
//! the last of them, however that ends.

use crate::sys;
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};

/// Moves the calling thread to a new mount namespace, which threads and processes that it starts
/// later share. A user other than root needs a user namespace for that, in which all ids but the
/// user's own are unknown; it must be the first call, of a process with one thread.
///
/// # Errors
/// EPERM or ENOSPC where the host permits no namespaces, EINVAL for a user with a second thread.
///
/// Linux: unshare(2), user_namespaces(7).
pub fn unshare_mounts() -> Result<(), Errno> {
    match sys::unshare(libc::CLONE_NEWNS) {
        Err(Errno::PERM) => unshare_as_user()?,
        unshared => unshared?,
    }
    // The host's later mounts appear here, ours never there.
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
}

fn unshare_as_user() -> Result<(), Errno> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
    let write = |file: &str, text: String| {
        let written = std::fs::write(format!("/proc/self/{file}"), text);
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    write("uid_map", format!("{user} {user} 1"))?;
    // Without it a user may not map a group.
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{group} {group} 1"))
}
