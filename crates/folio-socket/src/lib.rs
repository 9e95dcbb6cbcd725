//! A Unix socket that a server listens on: its file comes with the server and goes with it, and
//! nobody else's is taken.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket that listens, and its file.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl Socket {
    /// Listens on a new Unix socket at `path`; one that a server left behind there is replaced.
    ///
    /// Errors: `AddrInUse` if a server listens there or a file of another kind is there, else the
    /// host's.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
            }
            bound => bound,
        }?;
        let inode = inode(path);
        Ok(Self {
            listener,
            path: std::path::absolute(path)?,
            inode,
        })
    }

    /// What clients come through.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it is, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Only our own: another server may have taken the path meanwhile.
        if self.inode.is_some() && inode(&self.path) == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok()?;
    found
        .file_type()
        .is_socket()
        .then(|| (found.dev(), found.ino()))
}

fn is_abandoned(path: &Path) -> bool {
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    inode(path).is_some() && UnixStream::connect(path).is_err_and(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_socket_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let socket = Socket::bind(&path).unwrap();
        let refused = |path: &Path| Socket::bind(path).err().map(|error| error.kind());
        assert_eq!(refused(&path), Some(io::ErrorKind::AddrInUse));
        drop(socket);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(refused(&path), Some(io::ErrorKind::AddrInUse));
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    }

    #[test]
    fn what_another_server_has_put_in_its_place_stays() {
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
