//! The structures of Linux on x86-64, as bytes.

use folio::base::Timespec;
use folio::syscall::Statx;
use folio::vfs::{DirectoryEntry, FileSystemStatistics, FileType};

/// The major number of the devices that images appear as: the highest one, which Linux assigns to
/// no driver. The minor number is that of the mount.
const DEVICE_MAJOR: u32 = 0xfff;
/// `STATX_BASIC_STATS`, `STATX_BTIME`.
const BASIC_STATS: u32 = 0x7ff;
const CREATION_TIME: u32 = 0x800;
const STATX_BYTES: usize = 256;
const STATFS_BYTES: usize = 120;
/// The fields of a `struct linux_dirent64` before the name.
const DIRENT_BYTES: usize = 19;

fn u32(output: &mut Vec<u8>, value: u32) {
    output.extend_from_slice(&value.to_ne_bytes());
}

fn u64(output: &mut Vec<u8>, value: u64) {
    output.extend_from_slice(&value.to_ne_bytes());
}

/// Returns the bits of `st_mode` that a type has.
fn type_bits(file_type: FileType) -> u16 {
    match file_type {
        FileType::Fifo => 0o01_0000,
        FileType::CharacterDevice => 0o02_0000,
        FileType::Directory => 0o04_0000,
        FileType::BlockDevice => 0o06_0000,
        FileType::Regular => 0o10_0000,
        FileType::Symlink => 0o12_0000,
        FileType::Socket => 0o14_0000,
    }
}

/// Returns the type of the bits of `st_mode`; 0 is a regular file, as in mknod(2).
pub(super) fn file_type(mode: u32) -> Option<FileType> {
    Some(match mode & 0o17_0000 {
        0o01_0000 => FileType::Fifo,
        0o02_0000 => FileType::CharacterDevice,
        0o04_0000 => FileType::Directory,
        0o06_0000 => FileType::BlockDevice,
        0 | 0o10_0000 => FileType::Regular,
        0o12_0000 => FileType::Symlink,
        0o14_0000 => FileType::Socket,
        _ => return None,
    })
}

fn time(output: &mut Vec<u8>, time: Timespec) {
    u64(output, time.secs as u64);
    u32(output, time.nanos);
    u32(output, 0);
}

/// Appends a `struct statx`.
pub(super) fn statx(output: &mut Vec<u8>, found: &Statx) {
    let end = output.len() + STATX_BYTES;
    let attributes = &found.attributes;
    let created = attributes.created;
    u32(output, BASIC_STATS | created.map_or(0, |_| CREATION_TIME));
    u32(output, attributes.block_size);
    u64(output, 0);
    u32(output, attributes.link_count);
    u32(output, attributes.uid);
    u32(output, attributes.gid);
    let mode = type_bits(attributes.file_type) | attributes.mode;
    u32(output, u32::from(mode));
    u64(output, attributes.number.0);
    u64(output, attributes.size_bytes);
    u64(output, attributes.blocks_512);
    u64(output, 0);
    time(output, attributes.accessed);
    time(output, created.unwrap_or_default());
    time(output, attributes.changed);
    time(output, attributes.modified);
    u32(output, attributes.device.major);
    u32(output, attributes.device.minor);
    u32(output, DEVICE_MAJOR);
    u32(output, found.mount_number);
    output.resize(end, 0);
}

/// Appends a `struct statfs`.
pub(super) fn statfs(output: &mut Vec<u8>, found: &FileSystemStatistics) {
    let end = output.len() + STATFS_BYTES;
    let block_size = u64::from(found.block_size);
    for value in [
        found.magic,
        block_size,
        found.blocks,
        found.blocks_free,
        found.blocks_available,
        found.inodes,
        found.inodes_free,
        // f_fsid: not known.
        0,
        u64::from(found.name_max),
        block_size,
    ] {
        u64(output, value);
    }
    output.resize(end, 0);
}

/// Appends a `struct linux_dirent64`, unless the output then has more than `len_max` bytes.
pub(super) fn dirent(output: &mut Vec<u8>, entry: &DirectoryEntry<'_>, len_max: usize) -> bool {
    let len = (DIRENT_BYTES + entry.name.len() + 1).next_multiple_of(8);
    let end = output.len() + len;
    if end > len_max {
        return false;
    }
    u64(output, entry.number.0);
    u64(output, entry.next_cookie);
    output.extend_from_slice(&(len as u16).to_ne_bytes());
    let bits = entry.file_type.map_or(0, type_bits);
    output.push((bits >> 12) as u8);
    output.extend_from_slice(entry.name);
    output.resize(end, 0);
    true
}
