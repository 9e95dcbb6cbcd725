//! The limits of a server.

use std::time::Duration;

/// Bytes of requests under way, and of the replies that they ask for, that one client may have.
pub(crate) const UNDER_WAY_BYTES_MAX: usize = 32 << 20;

/// The most that a server keeps for its clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Sessions, including those of clients that have lost their connection.
    pub clients: usize,
    /// How long a session is kept without a connection.
    pub grace: Duration,
    /// Inodes that one client may have looked up.
    pub nodes: usize,
    /// Files that one client may have open.
    pub files: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 64,
            grace: Duration::from_secs(60),
            nodes: 1 << 20,
            files: 16 << 10,
        }
    }
}
