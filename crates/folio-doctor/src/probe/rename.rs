//! The rename probe: how a file system treats a written file that replaces another by rename(2),
//! tried on temporary files.

use super::fact::Fact;
use super::written_state::{LEN, State, TRIES};
use crate::text::reason;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;

/// Of the file that is replaced: btrfs does nothing for an empty one.
const OLD_LEN: usize = 4096;

/// One try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// Written, and still under its own name.
    pub fresh: State,
    /// After a rename to a name that was free.
    pub moved: State,
    /// After a rename over another file.
    pub replaced: State,
    /// Time of the rename to the free name.
    pub move_ns: u64,
    /// Time of the rename over another file.
    pub replace_ns: u64,
}

/// Renames files in a hidden folder of its own in `folder`, which is removed in the end. No
/// call syncs.
///
/// Unlike truncation this needs names: a process killed in between (SIGKILL) leaves them behind.
pub(super) fn probe(folder: &Path) -> Fact<Vec<Rename>> {
    let failed = |error: io::Error| {
        format!(
            "no file can be renamed in {}: {}",
            folder.display(),
            reason(&error)
        )
    };
    let mut own = tempfile::Builder::new();
    let own = own
        .prefix(".folio-doctor-")
        .permissions(Permissions::from_mode(0o700));
    let own = own.tempdir_in(folder).map_err(failed)?;
    let tries = (0..TRIES)
        .map(|_| once(own.path()))
        .collect::<io::Result<_>>()
        .map_err(failed)?;
    own.close()
        .map_err(|error| format!("{}: {}", folder.display(), reason(&error)))?;
    Ok(tries)
}

fn once(own: &Path) -> io::Result<Rename> {
    let [old, new, free] = ["old", "new", "free"].map(|name| own.join(name));
    File::create_new(&old)?.write_all_at(&[0xa5; OLD_LEN], 0)?;
    let written = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&new)?;
    written.write_all_at(&[0x5a; LEN], 0)?;
    let fresh = State::of(&written);
    let move_ns = timed(|| fs::rename(&new, &free))?;
    let moved = State::of(&written);
    let replace_ns = timed(|| fs::rename(&free, &old))?;
    let replaced = State::of(&written);
    fs::remove_file(&old)?;
    Ok(Rename {
        fresh,
        moved,
        replaced,
        move_ns,
        replace_ns,
    })
}

fn timed(call: impl FnOnce() -> io::Result<()>) -> io::Result<u64> {
    let start = Instant::now();
    call()?;
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_behind() {
        let folder = tempfile::TempDir::new().unwrap();
        let found = probe(folder.path()).unwrap();
        assert_eq!(found.len(), TRIES);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(probe(&folder.path().join("missing")).is_err());
    }
}
