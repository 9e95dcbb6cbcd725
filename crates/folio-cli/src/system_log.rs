//! Messages of servers in the background, to the system's log: journald or a daemon of syslog(3).

use std::os::unix::net::UnixDatagram;

/// Facility and severity (RFC 5424, section 6.2.1): a daemon's warning.
const PRIORITY: u32 = (3 << 3) | 4;

/// Sends a message. Without a log daemon it is dropped.
pub(crate) fn send(message: &str) {
    let line = format!("<{PRIORITY}>folio[{}]: {message}", std::process::id());
    let _ = UnixDatagram::unbound().and_then(|socket| {
        // A daemon that does not read must not stop the server.
        socket.set_nonblocking(true)?;
        socket.send_to(line.as_bytes(), "/dev/log")
    });
}
