//! System calls that rustix does not have, or has under an unstable name.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::Pid;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The side of a fork that returns.
pub(crate) enum Fork {
    /// The calling process, with the id of its child.
    Parent(Pid),
    /// The child.
    Child,
}

/// Clones the calling process with new namespaces: `CLONE_NEW*` of clone(2).
///
/// # Errors
/// EBUSY if the process has a second thread, else those of clone(2).
pub(crate) fn clone_process(namespaces: libc::c_int) -> Result<Fork, Errno> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(|_| Errno::NOSYS)?;
    if threads.count() != 1 {
        return Err(Errno::BUSY);
    }
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child has memory of its own, as after fork(2), and goes on with
    // the same stack. No other thread exists, so no lock is held that only another could release.
    let id = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    forked(id)
}

/// Clones the calling process, which has one thread.
pub(crate) fn fork() -> Result<Fork, Errno> {
    // SAFETY: no other thread exists.
    let id = unsafe { libc::fork() };
    forked(id.into())
}

fn forked(id: libc::c_long) -> Result<Fork, Errno> {
    match i32::try_from(id).ok().map(Pid::from_raw) {
        Some(None) => Ok(Fork::Child),
        Some(Some(id)) if id.as_raw_nonzero().get() > 0 => Ok(Fork::Parent(id)),
        _ => Err(last_error()),
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Closes all descriptors but the standard streams and `kept`: one of the host's directories would
/// lead out of the namespace.
///
/// # Errors
/// Those of close_range(2).
pub(crate) fn close_descriptors(kept: BorrowedFd<'_>) -> Result<(), Errno> {
    let kept = kept.as_raw_fd().cast_unsigned();
    let ranges = [(3, kept.saturating_sub(1)), (kept + 1, libc::c_uint::MAX)];
    for (first, last) in ranges.into_iter().filter(|(first, last)| first <= last) {
        // SAFETY: the process is a fork that becomes the command or exits, without dropping what
        // its parent had open.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if result != 0 {
            return Err(last_error());
        }
    }
    Ok(())
}

/// Gives the process a new session keyring: the caller's holds keys for the host.
pub(crate) fn join_new_session_keyring() {
    let no_name = std::ptr::null::<libc::c_char>();
    // SAFETY: the name is null: an anonymous keyring. A kernel without keys fails with ENOSYS.
    unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, no_name) };
}

/// Lets a program of the classic BPF decide on each system call of the calling thread and its
/// children.
///
/// # Errors
/// EACCES without `CAP_SYS_ADMIN`, else those of seccomp(2).
pub(crate) fn filter_system_calls(program: &[libc::sock_filter]) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: program.len().try_into().map_err(|_| Errno::INVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the structure names all instructions of a slice, which the kernel only reads, and
    // checks; both live during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const program,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Moves the process, which has one thread, to new namespaces: `CLONE_NEW*` of unshare(2).
///
/// # Errors
/// Those of unshare(2).
pub(crate) fn unshare(namespaces: libc::c_int) -> Result<(), Errno> {
    // SAFETY: changes no memory and no descriptors.
    if unsafe { libc::unshare(namespaces) } == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Executes an open program; returns only if that failed.
pub(crate) fn execute_open(
    program: BorrowedFd<'_>,
    arguments: &[CString],
    environment: &[CString],
) -> Errno {
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: the path is empty and ends with a zero, both lists end with a null pointer, and their
    // strings live during the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    last_error()
}

/// Returns the pointers to `strings`, and a null pointer.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    let pointers = strings.iter().map(|string| string.as_ptr());
    pointers.chain([std::ptr::null()]).collect()
}

/// Executes a program, with the actions of signals at their defaults; returns only if that failed.
/// Unlike execvp(3) it does not take a file of an unknown format for a shell script.
pub(crate) fn execute(path: &CStr, arguments: &[CString], environment: &[CString]) -> Errno {
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: no handler is installed. Rust programs ignore the signal, and execve(2) keeps that.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // SAFETY: both lists end with a null pointer, and their strings live during the call.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    last_error()
}

/// Sets attributes (`MOUNT_ATTR_*`) of a mount and of all mounts below it. With a user namespace
/// the owners of files are mapped into it.
///
/// # Errors
/// EINVAL for a file system that cannot map owners, else those of mount_setattr(2).
pub(crate) fn set_mount_attributes(
    mount: BorrowedFd<'_>,
    attributes: u64,
    user_namespace: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut attributes = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    if let Some(namespace) = user_namespace {
        attributes.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attributes.userns_fd = namespace.as_raw_fd() as u64;
    }
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the path is empty and ends with a zero, and the structure lives during the call,
    // which reads as many bytes as it has.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Activates the loopback interface of the calling process's network namespace.
///
/// # Errors
/// Those of netdevice(7).
pub(crate) fn activate_loopback(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: zeros are a valid value of each member.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is an `ifreq` with the name of an interface, and lives during the call.
    let result = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}
