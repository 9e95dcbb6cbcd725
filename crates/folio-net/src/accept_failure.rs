//! Errors of accept(2), by what the server does next.

use folio::Errno;
use std::io;

/// The class of an error of accept(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptFailure {
    /// The client disconnected before it was accepted, or a signal arrived: accept again.
    Transient,
    /// The host is out of descriptors or memory: accept again once a connection has closed.
    OutOfResources,
    /// No further accept can succeed.
    Fatal,
}

impl AcceptFailure {
    /// Classifies `error`.
    pub fn of(error: &io::Error) -> Self {
        use io::ErrorKind::{
            ConnectionAborted, ConnectionReset, Interrupted, NotConnected, WouldBlock,
        };
        const OUT_OF_RESOURCES: [Errno; 4] =
            [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        match error.kind() {
            ConnectionAborted | ConnectionReset | Interrupted | NotConnected | WouldBlock => {
                Self::Transient
            }
            _ if Errno::from_io_error(error)
                .is_some_and(|errno| OUT_OF_RESOURCES.contains(&errno)) =>
            {
                Self::OutOfResources
            }
            _ => Self::Fatal,
        }
    }
}
