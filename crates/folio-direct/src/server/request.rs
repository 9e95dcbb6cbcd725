//! A request as the server has copied it, and the parts of its input.

use crate::shared::calls::{AT_FDCWD, Call, PATH_MAX};
use crate::shared::layout::DESCRIPTORS_MAX;
use folio::base::{Errno, Result};
use folio::syscall::{self, Fd};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A request.
pub(super) struct Request<'a> {
    pub(super) call: Call,
    pub(super) arguments: [u64; 6],
    pub(super) input: &'a [u8],
    /// Whether the caller withdraws a call that waits.
    pub(super) is_withdrawn: &'a dyn Fn() -> bool,
}

impl<'a> Request<'a> {
    /// Returns an argument that has 32 bits.
    pub(super) fn int(&self, index: usize) -> i32 {
        self.arguments[index] as i32
    }

    /// Returns an argument as unsigned 32 bits.
    pub(super) fn word(&self, index: usize) -> u32 {
        self.arguments[index] as u32
    }

    /// Returns an argument as an offset or a size; EINVAL if it is negative.
    pub(super) fn offset(&self, index: usize) -> Result<u64> {
        let offset = self.arguments[index];
        if offset > i64::MAX as u64 {
            return Err(Errno::INVAL.into());
        }
        Ok(offset)
    }

    /// Returns a file descriptor.
    pub(super) fn fd(&self, index: usize) -> Result<Fd> {
        let number = u32::try_from(self.int(index)).map_err(|_| Errno::BADF)?;
        if number as usize >= DESCRIPTORS_MAX {
            return Err(Errno::BADF.into());
        }
        Ok(Fd::from_raw(number))
    }

    /// Returns the directory of a relative path. An absolute path ignores an invalid one.
    pub(super) fn directory(&self, index: usize) -> Fd {
        match self.int(index) {
            AT_FDCWD => syscall::AT_FDCWD,
            _ => self
                .fd(index)
                .unwrap_or(Fd::from_raw(DESCRIPTORS_MAX as u32)),
        }
    }

    /// Returns the parts of the input.
    pub(super) fn parts(&self) -> Parts<'a> {
        Parts(self.input)
    }

    /// Returns the only path.
    pub(super) fn path(&self) -> Result<&'a Path> {
        self.parts().path()
    }
}

/// Texts with a zero byte each, and bytes after them.
pub(super) struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    /// Returns the next text.
    pub(super) fn text(&mut self) -> Result<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let (text, rest) = self.0.split_at(end.ok_or(Errno::INVAL)?);
        self.0 = &rest[1..];
        if text.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        Ok(text)
    }

    /// Returns the next text as a path.
    pub(super) fn path(&mut self) -> Result<&'a Path> {
        Ok(Path::new(OsStr::from_bytes(self.text()?)))
    }

    /// Returns the bytes after the texts.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }
}
