//! The attributes of an inode: file type, stat(2) fields, and changes to them.

use crate::base::{DeviceNumber, InodeNumber, Timespec};
use bitflags::bitflags;

/// The type of a file (`S_IFMT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device node.
    CharacterDevice,
    /// A block device node.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

bitflags! {
    /// The flags that lsattr(1) lists and chattr(1) changes, with the numbers of linux/fs.h
    /// (`FS_*_FL`); a file system may have more of them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Each change is durable when its call returns (S).
        const SYNC = 0x8;
        /// Cannot be changed (i).
        const IMMUTABLE = 0x10;
        /// Can only be appended to (a).
        const APPEND = 0x20;
        /// Not saved by dump(8) (d).
        const NODUMP = 0x40;
        /// The access time is not updated (A).
        const NOATIME = 0x80;
        /// Changes of the directory are durable when their call returns (D).
        const DIRSYNC = 0x1_0000;
        /// New folders are placed apart (T).
        const TOPDIR = 0x2_0000;
        /// New files inherit the project (P).
        const PROJECT_INHERIT = 0x2000_0000;
    }
}

/// The attributes of an inode, as stat(2) and statx(2) report them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub number: InodeNumber,
    /// File type.
    pub file_type: FileType,
    /// Permission bits with setuid, setgid and sticky: the low 12 bits of `st_mode`.
    pub mode: u16,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Number of names (hard links) of this inode.
    pub link_count: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Space in use, in units of 512 bytes (`st_blocks`).
    pub blocks_512: u64,
    /// Preferred size of I/O, in bytes (`st_blksize`).
    pub block_size: u32,
    /// Device number of a device node.
    pub device: DeviceNumber,
    /// Time of the last access (`st_atime`).
    pub accessed: Timespec,
    /// Time of the last change of contents (`st_mtime`).
    pub modified: Timespec,
    /// Time of the last change of attributes (`st_ctime`).
    pub changed: Timespec,
    /// Time of creation (`stx_btime`), if the file system records it.
    pub created: Option<Timespec>,
}

impl Attributes {
    /// Returns the attributes of an empty inode of root with one name, and times of 0.
    pub fn new(number: InodeNumber, file_type: FileType, mode: u16) -> Self {
        let time = Timespec::default();
        Self {
            number,
            file_type,
            mode,
            uid: 0,
            gid: 0,
            link_count: 1,
            size_bytes: 0,
            blocks_512: 0,
            block_size: 4096,
            device: DeviceNumber::default(),
            accessed: time,
            modified: time,
            changed: time,
            created: None,
        }
    }
}

/// A new value of a timestamp, as in utimensat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time (`UTIME_NOW`).
    Now,
    /// This time.
    To(Timespec),
}

/// A change of attributes. Fields that are `None` keep their value. The VFS has checked
/// permissions. Every change sets `changed` to the current time. Linux: `struct iattr`.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttributeChange {
    /// New permission bits (12 bits).
    pub mode: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes of a regular file: truncates it, or extends it with a hole.
    pub size_bytes: Option<u64>,
    /// New access time.
    pub accessed: Option<SetTime>,
    /// New modification time.
    pub modified: Option<SetTime>,
}

/// The properties of an inode to be created. The VFS has applied umask and setgid inheritance.
#[derive(Debug, Clone, Copy)]
pub struct NewInode<'a> {
    /// File type.
    pub file_type: FileType,
    /// Permission bits (12 bits).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub device: DeviceNumber,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}
