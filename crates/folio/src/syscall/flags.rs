//! Flags of system calls that exist only at this layer.

use bitflags::bitflags;

bitflags! {
    /// `AT_*` flags of fstatat, unlinkat, linkat, fchownat, utimensat.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AtFlags: u32 {
        /// Do not follow a symbolic link in the last component.
        const SYMLINK_NOFOLLOW = 0x100;
        /// unlinkat: remove a directory.
        const REMOVEDIR = 0x200;
        /// faccessat: check by the effective ids.
        const EACCESS = 0x200;
        /// linkat: follow a symbolic link in the last component.
        const SYMLINK_FOLLOW = 0x400;
        /// Act on the descriptor itself when the path is empty.
        const EMPTY_PATH = 0x1000;
    }
}

/// The reference point of lseek(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The start (`SEEK_SET`).
    Set,
    /// The current offset (`SEEK_CUR`).
    Current,
    /// The end (`SEEK_END`).
    End,
    /// The next data (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`).
    Hole,
}
