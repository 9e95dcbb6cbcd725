//! The folder of the host with the Unix sockets whose names are in the image: each is named after
//! its inode.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{DirBuilder, read_dir, remove_dir_all, rename};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The folder of the folders. Not TMPDIR, whose path may be too long for the address of a socket.
const PARENT: &str = "/tmp";
/// The start of the names of locked folders.
const PREFIX: &str = "folio-unix-";

/// A folder, and the lock on it that the end of this process releases.
struct Locked {
    path: PathBuf,
    _lock: OwnedFd,
}

/// The folder, which is made when the first socket is.
#[derive(Default)]
pub(super) struct SocketFolder(Mutex<Option<Locked>>);

impl SocketFolder {
    /// Returns the path of the folder.
    pub(super) fn path(&self) -> io::Result<PathBuf> {
        let mut folder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &*folder {
            return Ok(folder.path.clone());
        }
        remove_stale();
        let made = make()?;
        let path = made.path.clone();
        *folder = Some(made);
        Ok(path)
    }

    /// Removes the folder, once no program is left.
    pub(super) fn remove(&self) {
        let folder = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(folder) = folder {
            // Sockets of programs that have ended; another program may have removed them.
            let _ = remove_dir_all(&folder.path);
        }
    }
}

fn make() -> io::Result<Locked> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    let number = u128::from_ne_bytes(bytes);
    let parent = Path::new(PARENT);
    // Another server sees the folder under its name only once it is locked.
    let unlocked = parent.join(format!("folio-new-{number:032x}"));
    let path = parent.join(format!("{PREFIX}{number:032x}"));
    // Programs of the superuser may have another user, and search it by its name only.
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    DirBuilder::new().mode(mode).create(&unlocked)?;
    let lock = lock(&unlocked)?;
    rename(&unlocked, &path)?;
    Ok(Locked { path, _lock: lock })
}

/// Locks a folder of this user, if no other process has locked it.
fn lock(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(folder, flags, Mode::empty())?;
    if fstat(&file)?.st_uid != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes the folders of this user whose servers were killed.
fn remove_stale() {
    let entries = read_dir(PARENT).into_iter().flatten().flatten();
    for entry in entries {
        let is_named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_named && let Ok(_lock) = lock(&entry.path()) {
            // What another user has put there remains.
            let _ = remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SocketFolder;

    #[test]
    fn stale_folders_are_removed() {
        let (killed, running) = (SocketFolder::default(), SocketFolder::default());
        let stale = killed.path().unwrap();
        std::fs::write(stale.join("socket"), "").unwrap();
        let kept = running.path().unwrap();
        // As SIGKILL does.
        drop(killed);
        let next = SocketFolder::default();
        let path = next.path().unwrap();
        assert!(path.is_dir() && kept.is_dir() && !stale.exists());
        next.remove();
        running.remove();
        assert!(!path.exists() && !kept.exists());
    }
}
