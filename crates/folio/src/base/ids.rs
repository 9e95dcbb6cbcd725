//! Number types of inodes, blocks, devices and owners, distinct so that they cannot be confused.

use std::fmt;

/// The number of an inode within its file system (`st_ino`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(pub u64);

/// A block of a file, counted from the file's start in file-system blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogicalBlock(pub u32);

/// A block of a device, counted from the device's start in file-system blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalBlock(pub u64);

/// The number of a device: of a device node (`st_rdev`), or of the device that has a file
/// (`st_dev`). The default is that of every other type of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device among those of the driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Returns the number with these parts. Linux: makedev(3).
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

/// The owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Owner {
    /// The superuser and its group.
    pub const ROOT: Self = Self::new(0, 0);

    /// Returns the owner with these ids.
    pub const fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid }
    }
}

impl fmt::Display for InodeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LogicalBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PhysicalBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
