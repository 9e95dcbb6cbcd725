//! Targets of a copy: places where a tree is created.

mod fakeroot;
mod host;
mod mounted;

pub use fakeroot::check as check_fakeroot;
pub use host::HostTarget;
pub use mounted::MountTarget;

use crate::attributes::{AttributeFailures, Xattrs};
use crate::options::CopyOptions;
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error};

/// The metadata of a file.
#[derive(Debug, Clone)]
pub struct FileMeta {
    /// Mode, owner, times, size, device number.
    pub attributes: Attributes,
    /// Extended attributes.
    pub xattrs: Xattrs,
}

/// A file whose content is complete, and what is left to do.
#[derive(Debug)]
pub struct WrittenFile<'a, F> {
    /// The open file.
    pub file: F,
    /// What it gets.
    pub meta: &'a FileMeta,
    /// Where the last write ended, in bytes.
    pub written_bytes: u64,
    /// The size, which is larger if the file ends in a hole.
    pub size_bytes: u64,
}

/// The target of a copy: receives a tree from top to bottom. Names are single components.
pub trait Target {
    /// An open directory.
    type Dir;
    /// A file being written.
    type File;

    /// Changes the attributes of a file before it is created.
    fn change(&self, _: &mut Attributes) {}
    /// Opens an existing directory.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    fn open_parent(&self, path: &[u8]) -> Result<Self::Dir, Error>;
    /// Creates a directory, or opens an existing one.
    ///
    /// # Errors
    ///
    /// Those of mkdir(2); ENOTDIR if the name is that of another file.
    fn make_dir(&self, at: &Self::Dir, name: &[u8], meta: &FileMeta) -> Result<Self::Dir, Error>;
    /// Sets the attributes of a directory, after all files below it are created, and closes it.
    ///
    /// # Errors
    ///
    /// Those of close(2). Attributes that cannot be set are `failures`.
    fn finish_dir(
        &self,
        dir: Self::Dir,
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error>;
    /// Creates a file, or truncates an existing one.
    ///
    /// # Errors
    ///
    /// Those of open(2); EEXIST or EISDIR for an existing file that is not overwritten.
    fn create(&self, at: &Self::Dir, name: &[u8], meta: &FileMeta) -> Result<Self::File, Error>;
    /// Writes all `bytes` at `offset`.
    ///
    /// # Errors
    ///
    /// Those of pwrite(2).
    fn write(&self, file: &Self::File, bytes: &[u8], offset: u64) -> Result<(), Error>;
    /// Extends the file to its size if it ends in a hole, sets the attributes, and closes it.
    ///
    /// # Errors
    ///
    /// Those of ftruncate(2) and close(2). Attributes that cannot be set are `failures`.
    fn finish(
        &self,
        written: WrittenFile<'_, Self::File>,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error>;
    /// Creates a symbolic link.
    ///
    /// # Errors
    ///
    /// Those of symlink(2). Attributes that cannot be set are `failures`.
    fn symlink(
        &self,
        at: &Self::Dir,
        name: &[u8],
        meta: &FileMeta,
        target: &[u8],
        failures: &mut AttributeFailures,
    ) -> Result<(), Error>;
    /// Creates a device node, FIFO or socket.
    ///
    /// # Errors
    ///
    /// Those of mknod(2). Attributes that cannot be set are `failures`.
    fn special(
        &self,
        at: &Self::Dir,
        name: &[u8],
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<(), Error>;
    /// Creates a hard link to the file at the path `first`.
    ///
    /// # Errors
    ///
    /// Those of link(2).
    fn link(&self, first: &[u8], at: &Self::Dir, name: &[u8]) -> Result<(), Error>;
    /// Removes a file that could not be written.
    fn remove(&self, at: &Self::Dir, name: &[u8]);
}

/// What a copy does with an existing file that has the name of a copied one.
pub(crate) enum Existing {
    /// Its content is replaced, through links.
    Written,
    /// Its name gets a new file.
    Replaced,
}

/// Decides about an existing file, as cp(1) does: it is written in place, unless the copy keeps
/// hard links and it has several names. `there` is what a symbolic link leads to.
pub(crate) fn existing(there: &Attributes, options: &CopyOptions) -> Result<Existing, Error> {
    let what = match there.file_type {
        FileType::Regular if options.keeps_links && there.link_count > 1 => {
            return Ok(Existing::Replaced);
        }
        FileType::Regular => return Ok(Existing::Written),
        FileType::Directory => {
            return Err(Error::new(
                Errno::ISDIR,
                "cannot overwrite a directory with a non-directory",
            ));
        }
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Fifo => "a FIFO",
        _ => "a socket",
    };
    let what = format!("cannot overwrite {what} with a file; remove it first, or use folio cat");
    Err(Error::new(Errno::EXIST, what))
}

/// Returns the error of a write through a symbolic link to nothing.
pub(crate) fn dangling_link(error: Error) -> Error {
    match error.errno() {
        Errno::NOENT => Error::new(
            Errno::NOENT,
            "cannot write through a dangling symbolic link; remove it first",
        ),
        _ => error,
    }
}
