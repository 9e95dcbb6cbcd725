//! The folder of the host for the nodes of one server. A server that ends by SIGKILL leaves it to
//! the next one.

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, fstat, open};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{DirBuilder, read_dir, remove_dir_all, rename};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The folder of the folders. Not TMPDIR, whose path may be too long for the address of a socket.
const PARENT: &str = "/tmp";
/// The start of the names of locked folders.
const PREFIX: &str = "folio-nodes-";

/// A folder, and the lock on it that the end of this process releases.
struct Locked {
    path: PathBuf,
    _lock: OwnedFd,
}

/// The folder, which is made when the first node is.
#[derive(Default)]
pub(super) struct Folder(Option<Locked>);

impl Folder {
    /// Returns the path of the folder.
    pub(super) fn path(&mut self) -> io::Result<&Path> {
        let made = match self.0.take() {
            Some(made) => made,
            None => {
                remove_stale();
                make()?
            }
        };
        Ok(&self.0.insert(made).path)
    }

    /// Removes the folder, once no program is left.
    pub(super) fn remove(&mut self) {
        if let Some(folder) = self.0.take() {
            // Nodes of programs that have ended; another program may have removed them.
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
    DirBuilder::new().mode(0o700).create(&unlocked)?;
    let lock = lock(&unlocked)?;
    if geteuid().is_root() {
        // Programs of the superuser may have another user, and search it by its name only.
        fchmod(&lock, Mode::from_raw_mode(0o711))?;
    }
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
    use super::Folder;

    #[test]
    fn stale_folders_are_removed() {
        let [mut killed, mut running, mut next] = [const { Folder(None) }; 3];
        let stale = killed.path().unwrap().to_owned();
        std::fs::write(stale.join("socket"), "").unwrap();
        let kept = running.path().unwrap().to_owned();
        // As SIGKILL does.
        drop(killed);
        let path = next.path().unwrap().to_owned();
        assert!(path.is_dir() && kept.is_dir() && !stale.exists());
        next.remove();
        running.remove();
        assert!(!path.exists() && !kept.exists());
    }
}
