//! An open regular file, held by code that changes the data without calls of the VFS.

use super::credentials::Credentials;
use super::file::OpenFile;
use super::inode::Inode;
use crate::base::Result;
use std::sync::Arc;

/// An open regular file, held on behalf of a user by code that reads and changes the data where it
/// is, in the memory of a device for example. The file stays open until the value is dropped.
pub struct HeldFile {
    file: Arc<OpenFile>,
    caller: Credentials,
}

impl HeldFile {
    pub(crate) fn new(file: Arc<OpenFile>, caller: Credentials) -> Result<Self> {
        file.check_not_path()?;
        file.file_operations()?;
        Ok(Self { file, caller })
    }

    /// Returns whether the file is open for reading.
    pub fn is_readable(&self) -> bool {
        self.file.flags().is_readable()
    }

    /// Returns whether the file is open for writing.
    pub fn is_writable(&self) -> bool {
        self.file.flags().is_writable()
    }

    pub(crate) fn caller(&self) -> &Credentials {
        &self.caller
    }

    pub(crate) fn inode(&self) -> &dyn Inode {
        &**self.file.inode()
    }

    /// Calls `call` with the inode lock held exclusively.
    pub(crate) fn with_lock<T>(&self, call: impl FnOnce() -> T) -> T {
        let _lock = self.file.common().lock.write();
        call()
    }

    /// Calls `change` with the inode lock held exclusively, after what precedes a write(2): setuid
    /// and setgid are cleared.
    ///
    /// # Errors
    /// EBADF unless the file is open for writing, EROFS, and those of `change`.
    pub(crate) fn change(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        self.file.change(&self.caller, change)
    }
}
