//! A new image: its file, and its name and number.

use crate::compress::Compression;
use crate::image::Identity;
use crate::pieces::PieceQueue;
use crate::state::State;
use folio::{Errno, Error, Process, Result, Timespec};
use folio_tree::{CopyJob, CopyOptions, FirstFailure, MountSource, copy};
use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The properties of a new image.
#[derive(Debug, Clone, Default)]
pub struct ErofsOptions {
    /// The volume label, at most 16 bytes.
    pub label: String,
    /// The UUID; `None` for a random one.
    pub uuid: Option<[u8; 16]>,
    /// How contents are compressed, if they are.
    pub compression: Option<Compression>,
    /// The latest modification time, for reproducible images: later ones become it.
    pub latest: Option<Timespec>,
}

/// A new image, into which a copy writes.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use folio_erofs::{ErofsOptions, NewErofs};
/// use folio_tree::{CopyJob, CopyOptions, FirstFailure, HostSource, copy};
///
/// # let folder = tempfile::tempdir()?;
/// # let (image, tree) = (folder.path().join("root.erofs"), folder.path().join("tree/."));
/// # std::fs::create_dir(folder.path().join("tree"))?;
/// # std::fs::write(tree.join("motd"), "hello")?;
/// let new = NewErofs::create(&image, &ErofsOptions::default())?;
/// let jobs = [CopyJob::into_directory(&tree, "/".as_ref())];
/// let failures = FirstFailure::default();
/// copy(&HostSource::default(), &new, &jobs, &CopyOptions::archive(), &failures)?;
/// failures.into_result()?;
/// new.finish()?;
/// # Ok(())
/// # }
/// ```
pub struct NewErofs {
    state: Mutex<State>,
    identity: Identity,
}

impl fmt::Debug for NewErofs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewErofs").finish_non_exhaustive()
    }
}

impl NewErofs {
    /// Creates the file, which must not exist.
    ///
    /// # Errors
    ///
    /// EINVAL: the label is too long; EEXIST and the other errors of open(2).
    pub fn create(path: &Path, options: &ErofsOptions) -> Result<Self> {
        let mut label = [0; 16];
        let Some(room) = label.get_mut(..options.label.len()) else {
            let reason = format!(
                "invalid label {:?}: expected at most 16 bytes",
                options.label
            );
            return Err(Error::new(Errno::INVAL, reason));
        };
        room.copy_from_slice(options.label.as_bytes());
        let queue = options.compression.map(PieceQueue::new).transpose()?;
        let mut open = OpenOptions::new();
        let file = open.read(true).write(true).create_new(true).open(path);
        let file = file.map_err(|error| Error::io("create the image", error))?;
        let state = State::new(file, queue, options.latest);
        let random = || uuid::Uuid::new_v4().into_bytes();
        Ok(Self {
            state: Mutex::new(state),
            identity: Identity {
                uuid: options.uuid.unwrap_or_else(random),
                label,
                compression: options.compression,
            },
        })
    }

    /// Copies all files that a process sees, whose contents may be in this image already, and
    /// finishes.
    ///
    /// # Errors
    ///
    /// The first failure.
    pub fn finish_staged(&self, process: &Process) -> Result<()> {
        self.lock().drain()?;
        let failures = FirstFailure::default();
        let root = Path::new("/");
        let jobs = [CopyJob::into_directory(root, root)];
        let source = MountSource::new(process);
        copy(&source, self, &jobs, &CopyOptions::archive(), &failures)?;
        failures.into_result()?;
        self.finish()
    }

    /// Writes the rest of the image, after all files.
    ///
    /// # Errors
    ///
    /// Those of writes; EFBIG beyond 16 TiB.
    pub fn finish(&self) -> Result<()> {
        self.lock().finish(&self.identity)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
