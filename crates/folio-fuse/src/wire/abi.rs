//! The bytes of FUSE messages, exactly: headers, arguments, results. Source: linux/fuse.h, protocol
//! 7.39.
//!
//! Numbers have the client's byte order; all machines that Folio supports have the same one.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol version of this server; newer kernels use what both sides know.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 39;
/// From this minor version on (Linux 6.16) the kernel can invalidate all names at once.
pub(crate) const MINOR_EPOCHS: u32 = 44;
/// Oldest supported minor version: replies had other sizes before. Kernels since Linux 2.6.36 are
/// newer.
pub(crate) const MINOR_MIN: u32 = 23;

/// Defines a module of constants, and the list of their names.
macro_rules! numbers {
    ($(#[$about:meta])* $name:ident: $type:ty { $($constant:ident = $value:expr),+ $(,)? }) => {
        $(#[$about])*
        pub mod $name {
            #![allow(dead_code, missing_docs, unreachable_pub)]
            $(pub const $constant: $type = $value;)+
            pub const NAMES: &[($type, &str)] = &[$(($constant, stringify!($constant))),+];
        }
    };
}

numbers! {
    /// Operations (`enum fuse_opcode`).
    op: u32 {
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9,
        UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17,
        RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25,
        INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32,
        SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36, BMAP = 37, DESTROY = 38, IOCTL = 39, POLL = 40,
        NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46,
        COPY_FILE_RANGE = 47, SYNCFS = 50, TMPFILE = 51, STATX = 52,
    }
}

numbers! {
    /// Capabilities (`FUSE_INIT`): the low 32 bits in `flags`, the high ones in `flags2`.
    init: u64 {
        ASYNC_READ = 1, POSIX_LOCKS = 1 << 1, ATOMIC_O_TRUNC = 1 << 3, BIG_WRITES = 1 << 5, DONT_MASK = 1 << 6,
        EXPORT_SUPPORT = 1 << 4, FLOCK_LOCKS = 1 << 10, AUTO_INVAL_DATA = 1 << 12, DO_READDIRPLUS = 1 << 13, READDIRPLUS_AUTO = 1 << 14,
        ASYNC_DIO = 1 << 15, WRITEBACK_CACHE = 1 << 16, NO_OPEN_SUPPORT = 1 << 17, PARALLEL_DIROPS = 1 << 18,
        POSIX_ACL = 1 << 20, MAX_PAGES = 1 << 22, CACHE_SYMLINKS = 1 << 23, NO_OPENDIR_SUPPORT = 1 << 24,
        EXPLICIT_INVAL_DATA = 1 << 25, HANDLE_KILLPRIV_V2 = 1 << 28,
        SETXATTR_EXT = 1 << 29, INIT_EXT = 1 << 30,
        DIRECT_IO_ALLOW_MMAP = 1 << 36, PASSTHROUGH = 1 << 37, OVER_IO_URING = 1 << 41,
    }
}

numbers! {
    /// Attributes that `FUSE_SETATTR` sets (`FATTR_*`).
    set: u32 {
        MODE = 1, UID = 1 << 1, GID = 1 << 2, SIZE = 1 << 3, ATIME = 1 << 4, MTIME = 1 << 5, FH = 1 << 6,
        ATIME_NOW = 1 << 7, MTIME_NOW = 1 << 8,
    }
}

numbers! {
    /// Behavior of an open file in the client's kernel (`FOPEN_*`).
    open: u32 {
        DIRECT_IO = 1, KEEP_CACHE = 1 << 1, CACHE_DIR = 1 << 3, PARALLEL_DIRECT_WRITES = 1 << 6,
        PASSTHROUGH = 1 << 7,
    }
}

numbers! {
    /// Notices (`enum fuse_notify_code`).
    notify: i32 { INVAL_INODE = 2, INVAL_ENTRY = 3, DELETE = 6, INC_EPOCH = 8, PRUNE = 9 }
}

/// `FUSE_WRITE_CACHE`: from the kernel's page cache, not from a program that waits.
pub(crate) const WRITE_CACHE: u32 = 1;
/// `FUSE_WRITE_KILL_SUIDGID`.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_SETXATTR_ACL_KILL_SGID`.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// `FS_IOC_GETFLAGS`: `_IOR('f', 1, long)`, but the kernel passes 32 bits (fs/fuse/ioctl.c).
pub(crate) const GETFLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`: `_IOW('f', 2, long)`.
pub(crate) const SETFLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`: `_IOR('X', 31, struct fsxattr)`, which the kernel sends first.
pub(crate) const FSGETXATTR: u32 = 0x801C_581F;
/// Each flag of `fsx_xflags`, and the flag of FS_IOC_GETFLAGS that is the same.
pub(crate) const XFLAGS: [(u32, u32); 6] = [
    (0x8, 0x10),
    (0x10, 0x20),
    (0x20, 0x8),
    (0x40, 0x80),
    (0x80, 0x40),
    (0x200, 0x2000_0000),
];
/// `FITRIM`: `_IOWR('X', 121, struct fstrim_range)`.
pub(crate) const FITRIM: u32 = 0xC018_5879;
/// Changes an option of the mounted file system, for the superuser: `_IOW('F', 1, char[256])`, a
/// word of mount(8) with zero bytes behind it. Of Folio alone, so that mount(8) reaches the server.
pub(crate) const REMOUNT: u32 = 0x4100_4601;
/// Bytes of the argument of [`REMOUNT`].
pub(crate) const REMOUNT_LEN: usize = 256;
/// Asks for the next call of a notifier, and returns the result of the last one, for the superuser:
/// `_IOWR('F', 2, char[12288])`, [`NotifyIn`], then [`NotifyOut`] and an
/// [`EventCall`](crate::EventCall) as bytes. Of Folio alone.
pub(crate) const NOTIFY: u32 = 0xF000_4602;
/// Bytes of the argument of [`NOTIFY`].
pub(crate) const NOTIFY_LEN: usize = 0x3000;
/// The only version of [`NOTIFY`].
pub(crate) const NOTIFY_VERSION: u32 = 1;
/// `FUSE_FSYNC_FDATASYNC`.
pub(crate) const FSYNC_FDATASYNC: u32 = 1;
/// `STATX_BASIC_STATS` and `STATX_BTIME`.
pub(crate) const STATX_BASIC_AND_BTIME: u32 = 0xfff;
/// `STATX_BTIME`.
pub(crate) const STATX_BTIME: u32 = 0x800;

/// Defines structs without implicit padding, their sizes checked at compile time.
macro_rules! message {
    ($($(#[$about:meta])* $name:ident: $size:literal { $($field:ident: $type:ty),+ $(,)? })+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type),+
        }
        const _: () = assert!(size_of::<$name>() == $size);
    )+};
}

message! {
    /// `struct fuse_in_header`.
    InHeader: 40 {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        extensions_8: u16, padding: u16,
    }
    /// `struct fuse_out_header`.
    OutHeader: 16 { len: u32, error: i32, unique: u64 }
    /// `struct fuse_uring_ent_in_out`.
    UringEntry: 32 { flags: u64, commit_id: u64, payload_len: u32, padding: u32, reserved: u64 }
    /// `struct fuse_uring_cmd_req`.
    UringCommand: 24 { flags: u64, commit_id: u64, queue: u16, padding: [u16; 3] }
    /// `struct fuse_attr`.
    Attr: 88 {
        number: u64, size: u64, blocks_512: u64, atime: i64, mtime: i64, ctime: i64,
        atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32, mode: u32, links: u32, uid: u32, gid: u32,
        device: u32, block_size: u32, flags: u32,
    }
    /// `struct fuse_entry_out`.
    EntryOut: 128 {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nanos: u32, attr_valid_nanos: u32, attr: Attr,
    }
    /// `struct fuse_attr_out`.
    AttrOut: 104 { valid: u64, valid_nanos: u32, unused: u32, attr: Attr }
    /// `struct fuse_init_in` of the first kernels; later ones add fields.
    InitIn: 16 { major: u32, minor: u32, readahead_max: u32, flags: u32 }
    /// `struct fuse_init_out`.
    InitOut: 64 {
        major: u32, minor: u32, readahead_max: u32, flags: u32, background_max: u16, congestion: u16,
        write_max: u32, time_nanos: u32, pages_max: u16, map_alignment: u16, flags2: u32,
        stack_depth_max: u32, request_timeout: u16, unused: [u16; 11],
    }
    /// `struct fuse_forget_in`.
    ForgetIn: 8 { lookups: u64 }
    /// `struct fuse_batch_forget_in`.
    BatchForgetIn: 8 { count: u32, unused: u32 }
    /// `struct fuse_forget_one`.
    ForgetOne: 16 { node: u64, lookups: u64 }
    /// `struct fuse_mknod_in`.
    MknodIn: 16 { mode: u32, device: u32, umask: u32, padding: u32 }
    /// `struct fuse_mkdir_in`.
    MkdirIn: 8 { mode: u32, umask: u32 }
    /// `struct fuse_rename_in`.
    RenameIn: 8 { new_parent: u64 }
    /// `struct fuse_rename2_in`.
    Rename2In: 16 { new_parent: u64, flags: u32, padding: u32 }
    /// `struct fuse_link_in`.
    LinkIn: 8 { node: u64 }
    /// `struct fuse_setattr_in`.
    SetattrIn: 88 {
        valid: u32, padding: u32, file: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
        unused5: u32,
    }
    /// `struct fuse_open_in`.
    OpenIn: 8 { flags: u32, open_flags: u32 }
    /// `struct fuse_create_in`.
    CreateIn: 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// `struct fuse_open_out`.
    OpenOut: 16 { file: u64, open_flags: u32, backing: u32 }
    /// `struct fuse_release_in`.
    ReleaseIn: 24 { file: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// `struct fuse_read_in`, for files and directories.
    ReadIn: 40 {
        file: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// `struct fuse_write_in`; the data follow.
    WriteIn: 40 {
        file: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// `struct fuse_write_out`.
    WriteOut: 8 { size: u32, padding: u32 }
    /// `struct fuse_kstatfs` in `struct fuse_statfs_out`.
    StatfsOut: 80 {
        blocks: u64, blocks_free: u64, blocks_available: u64, inodes: u64, inodes_free: u64,
        block_size: u32, name_max: u32, fragment_size: u32, padding: u32, spare: [u32; 6],
    }
    /// `struct fuse_fsync_in`.
    FsyncIn: 16 { file: u64, flags: u32, padding: u32 }
    /// `struct fuse_setxattr_in` without its extension; name and value follow.
    SetxattrIn: 8 { size: u32, flags: u32 }
    /// The rest of `struct fuse_setxattr_in` with `FUSE_SETXATTR_EXT`.
    SetxattrExtension: 8 { setxattr_flags: u32, padding: u32 }
    /// `struct fuse_ioctl_in`; `in_size` bytes of the argument follow.
    IoctlIn: 32 { file: u64, flags: u32, command: u32, argument: u64, in_size: u32, out_size: u32 }
    /// `struct fuse_ioctl_out`; bytes of the argument follow.
    IoctlOut: 16 { result: i32, flags: u32, in_vectors: u32, out_vectors: u32 }
    /// The argument of [`NOTIFY`]. `step` is 1 in the first request of a notifier, 2 in the last,
    /// else 0; `notifier` is a random number that stays the same. `call` is the last call that was
    /// received, 0 for none, and `result` its result
    /// ([`EventCallError::encode`](crate::EventCallError::encode)).
    NotifyIn: 32 { version: u32, step: u32, notifier: u64, call: u64, result: i32, reserved: u32 }
    /// The reply to [`NOTIFY`]. `call` is 0 for none; its `len` bytes follow. All requests of the
    /// notifier have the group id `group`. A call that has failed is made again after `retry_us`.
    NotifyOut: 32 { call: u64, group: u32, retry_us: u32, len: u32, padding: u32, reserved: u64 }
    /// The flags of FS_IOC_GETFLAGS.
    FlagsArgument: 4 { flags: u32 }
    /// `struct fsxattr`.
    FsXattr: 28 {
        xflags: u32, extent_size: u32, extent_count: u32, project: u32, cow_extent_size: u32, padding: u32,
        padding2: u32
    }
    /// `struct fstrim_range`.
    TrimRange: 24 { start: u64, len: u64, len_min: u64 }
    /// `struct fuse_getxattr_in`, also of `FUSE_LISTXATTR`.
    GetxattrIn: 8 { size: u32, padding: u32 }
    /// `struct fuse_getxattr_out`.
    GetxattrOut: 8 { size: u32, padding: u32 }
    /// `struct fuse_fallocate_in`.
    FallocateIn: 32 { file: u64, offset: u64, len: u64, mode: u32, padding: u32 }
    /// `struct fuse_lseek_in`.
    LseekIn: 24 { file: u64, offset: u64, whence: u32, padding: u32 }
    /// `struct fuse_lseek_out`.
    LseekOut: 8 { offset: u64 }
    /// `struct fuse_copy_file_range_in`.
    CopyFileRangeIn: 56 {
        file: u64, offset: u64, node_out: u64, file_out: u64, offset_out: u64, len: u64, flags: u64,
    }
    /// `struct fuse_dirent`; the name follows, and zeroes up to a multiple of eight bytes.
    Dirent: 24 { number: u64, next_cookie: u64, name_len: u32, kind: u32 }
    /// `struct fuse_sx_time`.
    StatxTime: 16 { secs: i64, nanos: u32, reserved: i32 }
    /// `struct fuse_statx_out` with the `struct fuse_statx` in it.
    StatxOut: 288 {
        valid: u64, valid_nanos: u32, flags: u32, spare: [u64; 2],
        mask: u32, block_size: u32, attributes: u64, links: u32, uid: u32, gid: u32, mode: u16, spare_mode: u16,
        number: u64, size: u64, blocks_512: u64, attributes_mask: u64,
        atime: StatxTime, btime: StatxTime, ctime: StatxTime, mtime: StatxTime,
        device_major: u32, device_minor: u32, on_major: u32, on_minor: u32, spare2: [u64; 14],
    }
    /// `struct fuse_notify_inval_inode_out`.
    InvalInodeOut: 24 { node: u64, offset: i64, len: i64 }
    /// `struct fuse_notify_inval_entry_out`; the name and a zero byte follow.
    InvalEntryOut: 16 { parent: u64, name_len: u32, flags: u32 }
    /// `struct fuse_notify_prune_out`; the node ids follow.
    PruneOut: 16 { count: u32, padding: u32, spare: u64 }
    /// `struct fuse_notify_delete_out`; the name and a zero byte follow.
    DeleteOut: 24 { parent: u64, child: u64, name_len: u32, padding: u32 }
}
