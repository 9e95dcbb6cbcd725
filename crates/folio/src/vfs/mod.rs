//! What a name means: paths, dentries, inodes, mounts, open files.
//!
//! ```text
//!   syscall/
//!      v
//!   walk.rs (path -> dentry)   dentry.rs   mount.rs   permission.rs   file.rs (open file)
//!      |  names, attributes                                |  data
//!      v                                                   v
//!   [file system seam: filesystem.rs]                   cache/
//! ```

mod filesystem;

pub use filesystem::{
    AttributeChange, Attributes, DirectoryEntry, FallocateMode, FileSystem, FileSystemStatistics, FileType,
    Inode, InodeCommon, MountOptions, NewInode, RenameFlags, SeekKind, SetTime, XattrFlags,
};
