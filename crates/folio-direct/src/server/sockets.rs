//! The folder of the host with the Unix sockets whose names are in the image: each is named after
//! its inode.

use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{DirBuilder, remove_dir_all};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The folder, which is made when the first socket is.
#[derive(Default)]
pub(super) struct SocketFolder(Mutex<Option<PathBuf>>);

impl SocketFolder {
    /// Returns the path of the folder.
    pub(super) fn path(&self) -> io::Result<PathBuf> {
        let mut folder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &*folder {
            return Ok(folder.clone());
        }
        let mut bytes = [0; 16];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        // Not in TMPDIR, whose path may be too long for the address of a socket.
        let name = format!("folio-sockets-{:032x}", u128::from_ne_bytes(bytes));
        let path = Path::new("/tmp").join(name);
        // Programs of the superuser may have another user, and search it by its name only.
        let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
        DirBuilder::new().mode(mode).create(&path)?;
        *folder = Some(path.clone());
        Ok(path)
    }

    /// Removes the folder, once no program is left.
    pub(super) fn remove(&self) {
        let folder = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(folder) = folder {
            // Sockets of programs that have ended; another program may have removed them.
            let _ = remove_dir_all(folder);
        }
    }
}
