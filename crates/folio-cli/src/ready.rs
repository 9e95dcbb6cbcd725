//! Readiness of commands that serve: `--ready-fd` and sd_notify(3).

use crate::exit::{Failure, Outcome};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that the command serves: a line on the descriptor of `--ready-fd`, and sd_notify(3) if a
/// service manager asked for it.
pub(crate) fn notify_ready(ready_fd: Option<u32>, status: &str) -> Outcome {
    if let Some(fd) = ready_fd {
        // The descriptor is inherited, so it is opened again by its name.
        let written = OpenOptions::new().write(true).open(format!("/dev/fd/{fd}"));
        let written = written.and_then(|mut file| file.write_all(b"ready\n"));
        written.map_err(|error| Failure::new(format!("--ready-fd {fd}: {error}")))?;
    }
    let process = std::process::id();
    notify(&format!("READY=1\nSTATUS={status}\nMAINPID={process}"))
        .map_err(|error| Failure::new(format!("NOTIFY_SOCKET: {error}")))
}

/// Reports that the command is about to end. A failure of this report is harmless.
pub(crate) fn notify_stopping() {
    let _ = notify("STOPPING=1");
}

/// Sends a state to the service manager, as sd_notify(3).
fn notify(state: &str) -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&name)?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(state.as_bytes(), &address)
        .map(drop)
}
