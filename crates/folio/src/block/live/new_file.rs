//! New files of a fork, which are removed unless the operation succeeds.

use super::generation::sync_folder;
use crate::base::{Error, Result};
use crate::block::file::{HostFile, ImageFile, refuse_remote};
use crate::block::tools::new_image::{copy_attributes, name_beside};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A name that was created, and is removed at drop.
pub(super) struct NewName(Option<PathBuf>);

impl NewName {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(Some(path))
    }

    /// Keeps the name.
    pub(super) fn keep(&mut self) {
        self.0 = None;
    }
}

impl Drop for NewName {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // The operation created it, so its removal loses nothing.
            let _ = fs::remove_file(path);
        }
    }
}

/// A new file, locked for writing, with owner, mode and extended attributes of the image's file.
pub(super) struct NewFile {
    pub(super) path: PathBuf,
    pub(super) file: Arc<HostFile>,
    pub(super) name: NewName,
}

impl NewFile {
    /// Creates the file of a fork. Attributes that the caller may not copy are left out; the file
    /// is then the caller's alone.
    ///
    /// # Errors
    ///
    /// EEXIST if the file exists, else the host's errors.
    pub(super) fn create(path: &Path, image: &HostFile) -> Result<Self> {
        refuse_remote(path)?;
        let path = std::path::absolute(path).map_err(|error| at(path, "create", error))?;
        let (file, name) = create(&path)?;
        if copy_attributes(image.as_file(), &image.metadata()?, &file).is_err() {
            file.set_permissions(Permissions::from_mode(0o600))
                .map_err(|error| at(&path, "chmod", error))?;
        }
        let file = Arc::new(HostFile::adopt(file, path.display().to_string())?);
        Ok(Self { path, file, name })
    }

    /// Creates a file that is to take the place of the image at `image`.
    ///
    /// # Errors
    ///
    /// EPERM if the caller may not copy the attributes, else the host's errors.
    pub(super) fn beside(image: &Path, old: &HostFile, is_volatile: bool) -> Result<Self> {
        let path = name_beside(image);
        let (file, name) = create(&path)?;
        copy_attributes(old.as_file(), &old.metadata()?, &file)
            .map_err(|error| at(&path, "copy the attributes of the image to", error))?;
        // Messages name the image.
        let file = HostFile::adopt(file, image.display().to_string())?;
        let file = Arc::new(if is_volatile { file.unsynced() } else { file });
        Ok(Self { path, file, name })
    }

    /// Makes file and name durable, and keeps them.
    pub(super) fn finish(mut self) -> Result<()> {
        self.file.sync_data()?;
        sync_folder(&self.path)?;
        self.name.keep();
        Ok(())
    }
}

/// Creates an empty file that only the caller may use.
fn create(path: &Path) -> Result<(File, NewName)> {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| at(path, "create", error))?;
    Ok((file, NewName::new(path.to_owned())))
}

fn at(path: &Path, operation: &'static str, error: std::io::Error) -> Error {
    Error::io(operation, error).at(path.display().to_string())
}
