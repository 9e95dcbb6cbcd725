//! A listening Unix socket whose file exists as long as its server.

use crate::accept_failure::AcceptFailure;
use rustix::event::{Timespec, poll};
use rustix::fs::Mode;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Time until the next try without descriptors or memory for a connection.
const RESOURCE_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// A listening Unix socket and its file, which is removed on drop.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl Socket {
    /// Listens on a new Unix socket at `path`, with mode 0600 whatever the umask: a client can read
    /// and change all that is served. Replaces a socket file that no server listens on.
    ///
    /// # Errors
    /// `AddrInUse` if a server listens at `path` or a file of another kind is there, else the
    /// host's error. Linux: bind(2), listen(2).
    pub fn bind(path: &Path) -> io::Result<Self> {
        // From its creation on.
        let umask = rustix::process::umask(Mode::from_bits_truncate(0o177));
        let bound = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
            }
            bound => bound,
        };
        rustix::process::umask(umask);
        let listener = bound?;
        let inode = socket_inode(path);
        Ok(Self {
            listener,
            path: std::path::absolute(path)?,
            inode,
        })
    }

    /// Returns the listening socket.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Returns the absolute path of the socket file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another server may have bound a new socket at the path since.
        if self.inode.is_some() && socket_inode(&self.path) == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Accepts the next client of `listener`; `None` once `is_stopping`, which a shutdown(2) of the
/// listener follows. Without descriptors or memory it tries again.
///
/// # Errors
/// The host's, if no further accept can succeed. Linux: accept(2).
pub fn accept_until(
    listener: &UnixListener,
    is_stopping: impl Fn() -> bool,
) -> io::Result<Option<UnixStream>> {
    loop {
        let accepted = listener.accept();
        if is_stopping() {
            return Ok(None);
        }
        match accepted {
            Ok((stream, _)) => return Ok(Some(stream)),
            Err(error) => match AcceptFailure::of(&error) {
                AcceptFailure::Transient => {}
                AcceptFailure::OutOfResources => {
                    // Other connections return theirs.
                    let _ = poll(&mut [], Some(&RESOURCE_WAIT));
                }
                AcceptFailure::Fatal => return Err(error),
            },
        }
    }
}

/// Returns device and inode number of the socket at `path`; `None` for any other file.
fn socket_inode(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    metadata
        .file_type()
        .is_socket()
        .then(|| (metadata.dev(), metadata.ino()))
}

/// Returns whether `path` is a socket that refuses connections.
fn is_abandoned(path: &Path) -> bool {
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    socket_inode(path).is_some() && UnixStream::connect(path).is_err_and(is_refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_socket_is_private() {
        let folder = tempfile::TempDir::new().unwrap();
        let socket = Socket::bind(&folder.path().join("socket")).unwrap();
        let mode = std::fs::metadata(socket.path()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn bind_replaces_only_abandoned_sockets() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::bind(&path).unwrap();
        let bind_error = |path: &Path| Socket::bind(path).err().map(|error| error.kind());
        assert_eq!(bind_error(&path), Some(io::ErrorKind::AddrInUse));
        drop(socket);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(bind_error(&path), Some(io::ErrorKind::AddrInUse));
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    }

    #[test]
    fn drop_keeps_the_socket_of_another_server() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("socket");
        let socket = Socket::bind(&path).unwrap();
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        let other = Socket::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
        drop(other);
        assert!(!path.exists());
    }
}
