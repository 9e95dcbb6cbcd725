//! Options to open a file, with the builder of [`std::fs::OpenOptions`].

use super::file::File;
use crate::syscall::{OpenFlags, Process};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// How [`OpenOptions::open`] opens a file. Made by [`Fs::open_options`](super::Fs::open_options);
/// without a call of [`read`](Self::read), [`write`](Self::write) or [`append`](Self::append) it
/// fails with `InvalidInput`.
#[derive(Clone)]
pub struct OpenOptions {
    process: Arc<Process>,
    is_read: bool,
    is_write: bool,
    is_append: bool,
    /// `CREAT`, `EXCL`, `TRUNC` and the flags of [`OpenOptions::custom_flags`].
    flags: OpenFlags,
    mode: u16,
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("is_read", &self.is_read)
            .field("is_write", &self.is_write)
            .field("is_append", &self.is_append)
            .field("flags", &self.flags)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl OpenOptions {
    pub(super) fn new(process: Arc<Process>) -> Self {
        Self {
            process,
            is_read: false,
            is_write: false,
            is_append: false,
            flags: OpenFlags::empty(),
            mode: 0o666,
        }
    }

    /// Opens for reading.
    #[must_use]
    pub fn read(mut self, read: bool) -> Self {
        self.is_read = read;
        self
    }

    /// Opens for writing.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.is_write = write;
        self
    }

    /// Opens for writing at the end, wherever that is by then (`O_APPEND`).
    #[must_use]
    pub fn append(mut self, append: bool) -> Self {
        self.is_append = append;
        self
    }

    /// Cuts an existing file to length 0 (`O_TRUNC`).
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.flags.set(OpenFlags::TRUNC, truncate);
        self
    }

    /// Creates the file if it does not exist (`O_CREAT`).
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.flags.set(OpenFlags::CREAT, create);
        self
    }

    /// Creates the file; `AlreadyExists` if the name is taken (`O_CREAT | O_EXCL`).
    #[must_use]
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.flags
            .set(OpenFlags::CREAT | OpenFlags::EXCL, create_new);
        self
    }

    /// Sets the permission bits of a file that is created (12 bits; the default is 0o666). The
    /// umask of the process, 0o022 at first, is taken from them.
    #[must_use]
    pub fn mode(mut self, mode: u16) -> Self {
        self.mode = mode;
        self
    }

    /// Adds flags of open(2) that have no method here: `OpenFlags::NOFOLLOW`, say.
    #[must_use]
    pub fn custom_flags(mut self, flags: OpenFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// Opens `path`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` without an access mode; else those of open(2).
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let access = match (self.is_read, self.is_write || self.is_append) {
            (true, true) => OpenFlags::RDWR,
            (true, false) => OpenFlags::empty(),
            (false, true) => OpenFlags::WRONLY,
            (false, false) => {
                let message = "open options without read, write or append";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        };
        let append = if self.is_append {
            OpenFlags::APPEND
        } else {
            OpenFlags::empty()
        };
        File::open(
            &self.process,
            path.as_ref(),
            access | append | self.flags,
            self.mode,
        )
    }
}
