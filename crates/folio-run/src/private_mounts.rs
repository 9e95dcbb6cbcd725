//! A mount namespace of the caller's own: its mounts are seen by its children alone, and end with
//! the last of them, however that ends.

use crate::sys::{self, Fork};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{WaitOptions, getegid, geteuid, waitpid};

/// Moves the calling thread to a new mount namespace, which threads and processes that it starts
/// later share. A user other than root needs a user namespace for that, in which all ids but the
/// user's own are unknown; it must be the first call, of a process with one thread.
///
/// # Errors
/// EPERM or ENOSPC where the host permits no namespaces, EINVAL for a user with a second thread;
/// nothing has changed then.
///
/// Linux: unshare(2), user_namespaces(7).
pub fn unshare_mounts() -> Result<(), Errno> {
    match sys::unshare(libc::CLONE_NEWNS) {
        Err(Errno::PERM) => {
            // Some hosts permit the namespace, and then nothing in it. There is no way back.
            rehearse()?;
            unshare_as_user()
        }
        unshared => unshared.and_then(|()| separate()),
    }
}

/// Makes this namespace's mounts invisible to the host, whose later ones appear here.
fn separate() -> Result<(), Errno> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags)
}

/// Moves a child process, which then ends.
#[expect(
    clippy::disallowed_methods,
    reason = "the process is a fork: nothing of its parent is to be closed here"
)]
fn rehearse() -> Result<(), Errno> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(|_| Errno::NOSYS)?;
    if threads.count() != 1 {
        return Err(Errno::INVAL);
    }
    match sys::fork()? {
        Fork::Child => {
            let code = unshare_as_user().map_or_else(Errno::raw_os_error, |()| 0);
            std::process::exit(code)
        }
        Fork::Parent(child) => {
            let ended = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
            match ended.and_then(|(_, status)| status.exit_status()) {
                Some(0) => Ok(()),
                code => Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO))),
            }
        }
    }
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
    write("gid_map", format!("{group} {group} 1"))?;
    separate()
}
