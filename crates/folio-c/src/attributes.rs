//! Attributes of files and sizes of file systems.

use crate::argument::{FolioTimespec, Text, Times, directory_fd, fd, handle, offset, store};
use crate::call::call;
use crate::constants::*;
use crate::names::at_flags;
use crate::process::FolioProcess;
use folio::base::Timespec;
use folio::syscall::{AtFlags, Statx};
use folio::vfs::{FileSystemStatistics, FileType, SetTime};
use folio::{Errno, Error, Result};
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// The attributes of a file.
#[repr(C)]
pub struct FolioStat {
    /// Differs for each mount of the program.
    pub st_dev: u64,
    pub st_ino: u64,
    pub st_mode: u32,
    pub st_nlink: u32,
    pub st_uid: u32,
    pub st_gid: u32,
    /// Device number of a device node, for major(3) and minor(3).
    pub st_rdev: u64,
    pub st_size: i64,
    pub st_blksize: i64,
    /// Space in use, in units of 512 bytes.
    pub st_blocks: i64,
    pub st_atim: FolioTimespec,
    pub st_mtim: FolioTimespec,
    pub st_ctim: FolioTimespec,
}

/// The attributes of a file, with those that stat(2) lacks.
#[repr(C)]
pub struct FolioStatx {
    /// FOLIO_STATX_*: the fields that are filled in, whatever was asked for.
    pub stx_mask: u32,
    pub stx_blksize: u32,
    pub stx_nlink: u32,
    pub stx_uid: u32,
    pub stx_gid: u32,
    pub stx_mode: u32,
    pub stx_ino: u64,
    pub stx_size: u64,
    pub stx_blocks: u64,
    pub stx_atime: FolioTimespec,
    pub stx_btime: FolioTimespec,
    pub stx_ctime: FolioTimespec,
    pub stx_mtime: FolioTimespec,
    pub stx_rdev_major: u32,
    pub stx_rdev_minor: u32,
    pub stx_dev_major: u32,
    pub stx_dev_minor: u32,
    pub stx_mnt_id: u64,
    pub stx_spare: [u64; 8],
}

/// Sizes and free space of a file system.
#[repr(C)]
pub struct FolioStatfs {
    pub f_type: u64,
    pub f_bsize: u64,
    pub f_blocks: u64,
    pub f_bfree: u64,
    pub f_bavail: u64,
    pub f_files: u64,
    pub f_ffree: u64,
    pub f_namelen: u64,
    pub f_spare: [u64; 4],
}

type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// stat(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_stat(
    process: Option<&FolioProcess>,
    path: Text,
    statbuf: Option<&mut MaybeUninit<FolioStat>>,
) -> c_int {
    call("stat", || {
        stat_at(process, FOLIO_AT_FDCWD, &path, AtFlags::empty(), statbuf)
    })
}

/// lstat(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_lstat(
    process: Option<&FolioProcess>,
    path: Text,
    statbuf: Option<&mut MaybeUninit<FolioStat>>,
) -> c_int {
    call("lstat", || {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        stat_at(process, FOLIO_AT_FDCWD, &path, flags, statbuf)
    })
}

/// fstatat(2), with FOLIO_AT_SYMLINK_NOFOLLOW and FOLIO_AT_EMPTY_PATH.
#[unsafe(no_mangle)]
pub extern "C" fn folio_fstatat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    statbuf: Option<&mut MaybeUninit<FolioStat>>,
    flags: c_int,
) -> c_int {
    call("fstatat", || {
        let flags = at_flags(flags & !FOLIO_AT_NO_AUTOMOUNT)?;
        stat_at(process, dirfd, &path, flags, statbuf)
    })
}

/// fstat(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_fstat(
    process: Option<&FolioProcess>,
    fd: c_int,
    statbuf: Option<&mut MaybeUninit<FolioStat>>,
) -> c_int {
    call("fstat", || {
        let process = &handle(process)?.process;
        let found = process.statx(self::fd(fd), "", AtFlags::EMPTY_PATH)?;
        store(statbuf, stat_of(&found))?;
        Ok(0)
    })
}

fn stat_at(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: &Text,
    flags: AtFlags,
    statbuf: Out<'_, FolioStat>,
) -> Result<c_int> {
    let process = &handle(process)?.process;
    let found = process.statx(directory_fd(dirfd), path.path()?, flags)?;
    store(statbuf, stat_of(&found))?;
    Ok(0)
}

fn stat_of(found: &Statx) -> FolioStat {
    let attributes = &found.attributes;
    FolioStat {
        st_dev: libc::makedev(0, found.mount_number),
        st_ino: attributes.number.0,
        st_mode: mode_of(attributes.file_type, attributes.mode),
        st_nlink: attributes.link_count,
        st_uid: attributes.uid,
        st_gid: attributes.gid,
        st_rdev: libc::makedev(attributes.device.major, attributes.device.minor),
        st_size: attributes.size_bytes as i64,
        st_blksize: attributes.block_size.into(),
        st_blocks: attributes.blocks_512 as i64,
        st_atim: time_of(attributes.accessed),
        st_mtim: time_of(attributes.modified),
        st_ctim: time_of(attributes.changed),
    }
}

fn mode_of(file_type: FileType, permissions: u16) -> u32 {
    let file_type = match file_type {
        FileType::Regular => FOLIO_S_IFREG,
        FileType::Directory => FOLIO_S_IFDIR,
        FileType::Symlink => FOLIO_S_IFLNK,
        FileType::CharacterDevice => FOLIO_S_IFCHR,
        FileType::BlockDevice => FOLIO_S_IFBLK,
        FileType::Fifo => FOLIO_S_IFIFO,
        FileType::Socket => FOLIO_S_IFSOCK,
    };
    file_type | u32::from(permissions)
}

fn time_of(time: Timespec) -> FolioTimespec {
    FolioTimespec {
        tv_sec: time.secs,
        tv_nsec: time.nanos.into(),
    }
}

/// statx(2). Every field is filled in, whatever `mask` asks for.
#[unsafe(no_mangle)]
pub extern "C" fn folio_statx(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    flags: c_int,
    mask: u32,
    statxbuf: Option<&mut MaybeUninit<FolioStatx>>,
) -> c_int {
    const RESERVED: u32 = 1 << 31;
    const SYNC: c_int = FOLIO_AT_STATX_FORCE_SYNC | FOLIO_AT_STATX_DONT_SYNC;
    call("statx", || {
        let process = &handle(process)?.process;
        if mask & RESERVED != 0 || flags & SYNC == SYNC {
            return Err(Error::from(Errno::INVAL));
        }
        let flags = at_flags(flags & !(FOLIO_AT_NO_AUTOMOUNT | SYNC))?;
        let found = process.statx(directory_fd(dirfd), path.path()?, flags)?;
        store(statxbuf, statx_of(&found))?;
        Ok(0)
    })
}

fn statx_of(found: &Statx) -> FolioStatx {
    let attributes = &found.attributes;
    let mut mask = FOLIO_STATX_BASIC_STATS | FOLIO_STATX_MNT_ID;
    if attributes.created.is_some() {
        mask |= FOLIO_STATX_BTIME;
    }
    FolioStatx {
        stx_mask: mask,
        stx_blksize: attributes.block_size,
        stx_nlink: attributes.link_count,
        stx_uid: attributes.uid,
        stx_gid: attributes.gid,
        stx_mode: mode_of(attributes.file_type, attributes.mode),
        stx_ino: attributes.number.0,
        stx_size: attributes.size_bytes,
        stx_blocks: attributes.blocks_512,
        stx_atime: time_of(attributes.accessed),
        stx_btime: time_of(attributes.created.unwrap_or_default()),
        stx_ctime: time_of(attributes.changed),
        stx_mtime: time_of(attributes.modified),
        stx_rdev_major: attributes.device.major,
        stx_rdev_minor: attributes.device.minor,
        stx_dev_major: 0,
        stx_dev_minor: found.mount_number,
        stx_mnt_id: found.mount_number.into(),
        stx_spare: [0; 8],
    }
}

/// truncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_truncate(process: Option<&FolioProcess>, path: Text, length: i64) -> c_int {
    call("truncate", || {
        let process = &handle(process)?.process;
        process.truncate(path.path()?, offset(length)?)?;
        Ok(0)
    })
}

/// chmod(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_chmod(process: Option<&FolioProcess>, path: Text, mode: u32) -> c_int {
    call("chmod", || {
        let process = &handle(process)?.process;
        process.chmod(path.path()?, permissions(mode))?;
        Ok(0)
    })
}

/// fchmod(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_fchmod(process: Option<&FolioProcess>, fd: c_int, mode: u32) -> c_int {
    call("fchmod", || {
        let process = &handle(process)?.process;
        process.fchmod(self::fd(fd), permissions(mode))?;
        Ok(0)
    })
}

/// fchmodat(2), without flags.
#[unsafe(no_mangle)]
pub extern "C" fn folio_fchmodat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    mode: u32,
) -> c_int {
    call("fchmodat", || {
        let process = &handle(process)?.process;
        process.fchmodat(directory_fd(dirfd), path.path()?, permissions(mode))?;
        Ok(0)
    })
}

fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// chown(2); -1 keeps an id.
#[unsafe(no_mangle)]
pub extern "C" fn folio_chown(
    process: Option<&FolioProcess>,
    path: Text,
    owner: u32,
    group: u32,
) -> c_int {
    call("chown", || {
        let process = &handle(process)?.process;
        process.chown(path.path()?, id(owner), id(group))?;
        Ok(0)
    })
}

/// lchown(2); -1 keeps an id.
#[unsafe(no_mangle)]
pub extern "C" fn folio_lchown(
    process: Option<&FolioProcess>,
    path: Text,
    owner: u32,
    group: u32,
) -> c_int {
    call("lchown", || {
        let process = &handle(process)?.process;
        let (directory, flags) = (directory_fd(FOLIO_AT_FDCWD), AtFlags::SYMLINK_NOFOLLOW);
        process.fchownat(directory, path.path()?, id(owner), id(group), flags)?;
        Ok(0)
    })
}

/// fchown(2); -1 keeps an id.
#[unsafe(no_mangle)]
pub extern "C" fn folio_fchown(
    process: Option<&FolioProcess>,
    fd: c_int,
    owner: u32,
    group: u32,
) -> c_int {
    call("fchown", || {
        let process = &handle(process)?.process;
        process.fchown(self::fd(fd), id(owner), id(group))?;
        Ok(0)
    })
}

/// fchownat(2); -1 keeps an id.
#[unsafe(no_mangle)]
pub extern "C" fn folio_fchownat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    owner: u32,
    group: u32,
    flags: c_int,
) -> c_int {
    call("fchownat", || {
        let process = &handle(process)?.process;
        let (directory, flags) = (directory_fd(dirfd), at_flags(flags)?);
        process.fchownat(directory, path.path()?, id(owner), id(group), flags)?;
        Ok(0)
    })
}

fn id(number: u32) -> Option<u32> {
    (number != u32::MAX).then_some(number)
}

/// utimensat(2): `times` is an array of two, access and modification, or null for the current
/// time. FOLIO_UTIME_NOW and FOLIO_UTIME_OMIT are values of tv_nsec. A null `path` means the file
/// `dirfd`.
#[unsafe(no_mangle)]
pub extern "C" fn folio_utimensat(
    process: Option<&FolioProcess>,
    dirfd: c_int,
    path: Text,
    times: Times,
    flags: c_int,
) -> c_int {
    call("utimensat", || {
        let process = &handle(process)?.process;
        let [accessed, modified] = set_times(&times)?;
        if accessed.is_none() && modified.is_none() {
            return Ok(0);
        }
        let flags = at_flags(flags)?;
        if path.get().is_none() && dirfd != FOLIO_AT_FDCWD {
            if !flags.is_empty() {
                return Err(Error::from(Errno::INVAL));
            }
            process.futimens(fd(dirfd), accessed, modified)?;
        } else {
            let directory = directory_fd(dirfd);
            process.utimensat(directory, path.path()?, accessed, modified, flags)?;
        }
        Ok(0)
    })
}

/// Returns the times to set.
fn set_times(times: &Times) -> Result<[Option<SetTime>; 2]> {
    let Some([accessed, modified]) = times.get() else {
        return Ok([Some(SetTime::Now); 2]);
    };
    Ok([set_time(accessed)?, set_time(modified)?])
}

fn set_time(time: &FolioTimespec) -> Result<Option<SetTime>> {
    match time.tv_nsec {
        FOLIO_UTIME_NOW => Ok(Some(SetTime::Now)),
        FOLIO_UTIME_OMIT => Ok(None),
        0..1_000_000_000 => {
            let time = Timespec::new(time.tv_sec, time.tv_nsec as u32);
            Ok(Some(SetTime::To(time)))
        }
        _ => Err(Errno::INVAL.into()),
    }
}

/// statfs(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_statfs(
    process: Option<&FolioProcess>,
    path: Text,
    buf: Option<&mut MaybeUninit<FolioStatfs>>,
) -> c_int {
    call("statfs", || {
        let process = &handle(process)?.process;
        store(buf, statfs_of(&process.statfs(path.path()?)?))?;
        Ok(0)
    })
}

/// fstatfs(2).
#[unsafe(no_mangle)]
pub extern "C" fn folio_fstatfs(
    process: Option<&FolioProcess>,
    fd: c_int,
    buf: Option<&mut MaybeUninit<FolioStatfs>>,
) -> c_int {
    call("fstatfs", || {
        let process = &handle(process)?.process;
        store(buf, statfs_of(&process.fstatfs(self::fd(fd))?))?;
        Ok(0)
    })
}

fn statfs_of(found: &FileSystemStatistics) -> FolioStatfs {
    FolioStatfs {
        f_type: found.magic,
        f_bsize: found.block_size.into(),
        f_blocks: found.blocks,
        f_bfree: found.blocks_free,
        f_bavail: found.blocks_available,
        f_files: found.inodes,
        f_ffree: found.inodes_free,
        f_namelen: found.name_max.into(),
        f_spare: [0; 4],
    }
}
