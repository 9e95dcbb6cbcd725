//! The flags of open(2).

use super::attributes::FileType;
use super::credentials::Access;
use crate::base::{Errno, Result};
use bitflags::bitflags;

bitflags! {
    /// Flags of open(2), with Linux's values on x86-64. Access mode: read only unless WRONLY or
    /// RDWR is set.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenFlags: u32 {
        /// Write only.
        const WRONLY = 0o1;
        /// Read and write.
        const RDWR = 0o2;
        /// Create the file if it does not exist.
        const CREAT = 0o100;
        /// With CREAT: fail if the file exists.
        const EXCL = 0o200;
        /// Truncate the file to zero bytes.
        const TRUNC = 0o1000;
        /// Write at the end of the file.
        const APPEND = 0o2000;
        /// Kept for F_GETFL: regular files and directories never block.
        const NONBLOCK = 0o4000;
        /// Writes are durable when they return, as after fdatasync(2).
        const DSYNC = 0o10000;
        /// Kept for F_GETFL: Folio's cache has no bypass for one file.
        const DIRECT = 0o40000;
        /// Fail unless the file is a directory.
        const DIRECTORY = 0o200000;
        /// Fail with ELOOP if the last component is a symbolic link.
        const NOFOLLOW = 0o400000;
        /// Do not update the access time.
        const NOATIME = 0o1000000;
        /// Writes are durable when they return, as after fsync(2).
        const SYNC = 0o4010000;
        /// A handle for `*at` calls only; neither reads nor writes.
        const PATH = 0o10000000;
        /// An unnamed file in the given directory.
        const TMPFILE = 0o20200000;
    }
}

/// Whether a walk follows a symbolic link in the last component.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

impl OpenFlags {
    /// The flags that F_SETFL changes. Linux: `SETFL_MASK`.
    pub(super) const CHANGEABLE: Self = Self::APPEND
        .union(Self::NONBLOCK)
        .union(Self::DIRECT)
        .union(Self::NOATIME);
    /// The flags that only open(2) uses: F_GETFL does not have them.
    pub(crate) const OF_OPEN: Self = Self::CREAT.union(Self::EXCL).union(Self::TRUNC);

    /// Returns the access mode: one of three, or the unofficial fourth, which checks for both
    /// accesses and allows neither.
    fn access_mode(self) -> u32 {
        (self & (Self::WRONLY | Self::RDWR)).bits()
    }

    pub(crate) fn is_readable(self) -> bool {
        !self.contains(Self::PATH) && matches!(self.access_mode(), 0 | 2)
    }

    /// Returns whether a file opened with these flags can be written.
    pub fn is_writable(self) -> bool {
        !self.contains(Self::PATH) && matches!(self.access_mode(), 1 | 2)
    }

    pub(super) fn access(self) -> Access {
        let access = match self.access_mode() {
            0 => Access::READ,
            1 => Access::WRITE,
            _ => Access::READ | Access::WRITE,
        };
        if self.contains(Self::TRUNC) {
            access | Access::WRITE
        } else {
            access
        }
    }

    /// Returns whether the call may create a file.
    pub(crate) fn may_create(self) -> bool {
        let creates = Self::CREAT | Self::TMPFILE.difference(Self::DIRECTORY);
        !self.contains(Self::PATH) && self.intersects(creates)
    }

    /// Returns whether an existing file of this type, found at `path`, can be opened without a walk
    /// ([`Context::open_at`](super::Context::open_at)). Otherwise
    /// [`Context::open`](super::Context::open) is needed.
    pub(crate) fn opens_existing(self, file_type: FileType, path: &[u8]) -> bool {
        let creates_other = Self::EXCL | Self::TMPFILE.difference(Self::DIRECTORY);
        let is_plain = file_type == FileType::Regular && path.last() != Some(&b'/');
        !self.may_create() || (!self.intersects(creates_other) && is_plain)
    }

    /// Returns whether a symbolic link in the last component is followed.
    pub(crate) fn last_link(self) -> LastLink {
        if self.contains(Self::NOFOLLOW) {
            LastLink::Keep
        } else {
            LastLink::Follow
        }
    }

    /// Returns the effective flags; EINVAL for invalid combinations.
    pub(super) fn checked(self) -> Result<Self> {
        if self.contains(Self::PATH) {
            return Ok(self & (Self::PATH | Self::DIRECTORY | Self::NOFOLLOW));
        }
        let tmpfile_alone = Self::TMPFILE.difference(Self::DIRECTORY);
        if self.intersects(tmpfile_alone) {
            if !self.contains(Self::TMPFILE)
                || self.contains(Self::CREAT)
                || self.access_mode() == 0
            {
                return Err(Errno::INVAL.into());
            }
        } else if self.contains(Self::CREAT | Self::DIRECTORY) {
            return Err(Errno::INVAL.into());
        }
        Ok(self)
    }
}
