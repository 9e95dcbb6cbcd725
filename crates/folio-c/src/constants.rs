//! Flags and numbers of the calls: Linux's values on x86-64, on every machine.

use std::ffi::c_int;

/// The working directory as a directory descriptor.
pub const FOLIO_AT_FDCWD: c_int = -100;
pub const FOLIO_AT_SYMLINK_NOFOLLOW: c_int = 0x100;
pub const FOLIO_AT_REMOVEDIR: c_int = 0x200;
pub const FOLIO_AT_SYMLINK_FOLLOW: c_int = 0x400;
pub const FOLIO_AT_NO_AUTOMOUNT: c_int = 0x800;
pub const FOLIO_AT_EMPTY_PATH: c_int = 0x1000;
pub const FOLIO_AT_STATX_FORCE_SYNC: c_int = 0x2000;
pub const FOLIO_AT_STATX_DONT_SYNC: c_int = 0x4000;

/// folio_copy_tree(): from the host.
pub const FOLIO_COPY_IN: c_int = 1;
/// folio_copy_tree(): to the host.
pub const FOLIO_COPY_OUT: c_int = 2;
/// folio_copy_tree(): names, content and symbolic links alone.
pub const FOLIO_COPY_CONTENT: c_int = 4;

/// folio_open(): read only.
pub const FOLIO_O_RDONLY: c_int = 0;
pub const FOLIO_O_WRONLY: c_int = 0o1;
pub const FOLIO_O_RDWR: c_int = 0o2;
pub const FOLIO_O_CREAT: c_int = 0o100;
pub const FOLIO_O_EXCL: c_int = 0o200;
pub const FOLIO_O_TRUNC: c_int = 0o1000;
pub const FOLIO_O_APPEND: c_int = 0o2000;
pub const FOLIO_O_DSYNC: c_int = 0o10000;
pub const FOLIO_O_DIRECTORY: c_int = 0o200000;
pub const FOLIO_O_NOFOLLOW: c_int = 0o400000;
pub const FOLIO_O_NOATIME: c_int = 0o1000000;
/// Has no effect: a descriptor of libfolio does not survive execve().
pub const FOLIO_O_CLOEXEC: c_int = 0o2000000;
pub const FOLIO_O_SYNC: c_int = 0o4010000;
pub const FOLIO_O_PATH: c_int = 0o10000000;
pub const FOLIO_O_TMPFILE: c_int = 0o20200000;

/// folio_lseek(): from the start.
pub const FOLIO_SEEK_SET: c_int = 0;
pub const FOLIO_SEEK_CUR: c_int = 1;
pub const FOLIO_SEEK_END: c_int = 2;
pub const FOLIO_SEEK_DATA: c_int = 3;
pub const FOLIO_SEEK_HOLE: c_int = 4;

/// folio_flock(): a lock that other open files may share.
pub const FOLIO_LOCK_SH: c_int = 1;
pub const FOLIO_LOCK_EX: c_int = 2;
pub const FOLIO_LOCK_NB: c_int = 4;
pub const FOLIO_LOCK_UN: c_int = 8;

/// folio_fallocate(): keep the size of the file.
pub const FOLIO_FALLOC_FL_KEEP_SIZE: c_int = 0x1;
pub const FOLIO_FALLOC_FL_PUNCH_HOLE: c_int = 0x2;
pub const FOLIO_FALLOC_FL_COLLAPSE_RANGE: c_int = 0x8;
pub const FOLIO_FALLOC_FL_ZERO_RANGE: c_int = 0x10;
pub const FOLIO_FALLOC_FL_INSERT_RANGE: c_int = 0x20;

/// folio_renameat2(): fail with -EEXIST if the new name exists.
pub const FOLIO_RENAME_NOREPLACE: u32 = 1;
pub const FOLIO_RENAME_EXCHANGE: u32 = 2;
pub const FOLIO_RENAME_WHITEOUT: u32 = 4;

/// folio_setxattr(): fail with -EEXIST if the attribute exists.
pub const FOLIO_XATTR_CREATE: c_int = 1;
/// folio_setxattr(): fail with -ENODATA if the attribute does not exist.
pub const FOLIO_XATTR_REPLACE: c_int = 2;

/// folio_utimensat(), in tv_nsec: the current time.
pub const FOLIO_UTIME_NOW: i64 = 0x3fffffff;
/// folio_utimensat(), in tv_nsec: keep the time.
pub const FOLIO_UTIME_OMIT: i64 = 0x3ffffffe;

/// folio_access(): the file exists.
pub const FOLIO_F_OK: c_int = 0;
pub const FOLIO_X_OK: c_int = 1;
pub const FOLIO_W_OK: c_int = 2;
pub const FOLIO_R_OK: c_int = 4;

/// The file type in st_mode.
pub const FOLIO_S_IFMT: u32 = 0o170000;
pub const FOLIO_S_IFSOCK: u32 = 0o140000;
pub const FOLIO_S_IFLNK: u32 = 0o120000;
pub const FOLIO_S_IFREG: u32 = 0o100000;
pub const FOLIO_S_IFBLK: u32 = 0o060000;
pub const FOLIO_S_IFDIR: u32 = 0o040000;
pub const FOLIO_S_IFCHR: u32 = 0o020000;
pub const FOLIO_S_IFIFO: u32 = 0o010000;

/// The file type in d_type: the directory does not record it.
pub const FOLIO_DT_UNKNOWN: u8 = 0;
pub const FOLIO_DT_FIFO: u8 = 1;
pub const FOLIO_DT_CHR: u8 = 2;
pub const FOLIO_DT_DIR: u8 = 4;
pub const FOLIO_DT_BLK: u8 = 6;
pub const FOLIO_DT_REG: u8 = 8;
pub const FOLIO_DT_LNK: u8 = 10;
pub const FOLIO_DT_SOCK: u8 = 12;

/// folio_statx(): the fields of struct folio_stat.
pub const FOLIO_STATX_BASIC_STATS: u32 = 0x7ff;
/// folio_statx(): stx_btime.
pub const FOLIO_STATX_BTIME: u32 = 0x800;
/// folio_statx(): stx_mnt_id.
pub const FOLIO_STATX_MNT_ID: u32 = 0x1000;

/// folio_mount(): refuse every change with -EROFS, and write nothing to the image.
pub const FOLIO_MS_RDONLY: u64 = 1;
pub const FOLIO_MS_NOSUID: u64 = 2;
pub const FOLIO_MS_NODEV: u64 = 4;
pub const FOLIO_MS_NOEXEC: u64 = 8;
pub const FOLIO_MS_SYNCHRONOUS: u64 = 16;
pub const FOLIO_MS_DIRSYNC: u64 = 128;
pub const FOLIO_MS_NOATIME: u64 = 1 << 10;
pub const FOLIO_MS_NODIRATIME: u64 = 1 << 11;
pub const FOLIO_MS_SILENT: u64 = 1 << 15;
pub const FOLIO_MS_RELATIME: u64 = 1 << 21;
pub const FOLIO_MS_STRICTATIME: u64 = 1 << 24;
pub const FOLIO_MS_LAZYTIME: u64 = 1 << 25;

/// folio_mkfs_ext4(): overwrite what the device holds.
pub const FOLIO_MKFS_FORCE: u32 = 1;
