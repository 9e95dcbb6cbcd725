//! Sockets that a service manager has bound and passes on. Source: sd_listen_fds(3).

use crate::exit::{Failure, Outcome};
use rustix::net::sockopt::socket_acceptconn;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::os::unix::net::UnixListener;

/// The first passed descriptor: `SD_LISTEN_FDS_START`.
const FIRST_FD: i32 = 3;

/// Returns the sockets that were passed to this process; none without a service manager.
pub(crate) fn listeners() -> Outcome<Vec<UnixListener>> {
    let number = |name| std::env::var(name).ok()?.parse::<i32>().ok();
    let process = getpid();
    if number("LISTEN_PID") != Some(process.as_raw_pid()) {
        return Ok(Vec::new());
    }
    let failed = |error: rustix::io::Errno| Failure::new(format!("LISTEN_FDS: {error}"));
    let own = pidfd_open(process, PidfdFlags::empty()).map_err(failed)?;
    let mut listeners = Vec::new();
    for fd in FIRST_FD..FIRST_FD.saturating_add(number("LISTEN_FDS").unwrap_or(0)) {
        // A copy, so that nothing here depends on a later use of the number.
        let socket = pidfd_getfd(&own, fd, PidfdGetfdFlags::empty()).map_err(failed)?;
        if !socket_acceptconn(&socket).map_err(failed)? {
            return Err(Failure::new("LISTEN_FDS: a descriptor does not listen"));
        }
        listeners.push(UnixListener::from(socket));
    }
    Ok(listeners)
}
