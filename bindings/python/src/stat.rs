//! Attributes of a file as the fields of os.stat_result.

use folio::Timespec;
use folio::vfs::{Attributes, FileType};

/// mode, inode, links, uid, gid, size, atime_ns, mtime_ns, ctime_ns, blocks, rdev, birthtime_ns
pub(crate) type StatTuple = (
    u32,
    u64,
    u32,
    u32,
    u32,
    u64,
    i128,
    i128,
    i128,
    u64,
    u64,
    Option<i128>,
);

/// Returns the fields in the order of [`StatTuple`].
pub(crate) fn stat_tuple(found: &Attributes) -> StatTuple {
    let nanos = |time: Timespec| i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    let (major, minor) = (u64::from(found.device.0), u64::from(found.device.1));
    // gnu_dev_makedev of the C library.
    let device =
        minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32;
    (
        kind_bits(found.file_type) | u32::from(found.mode),
        found.number.0,
        found.link_count,
        found.uid,
        found.gid,
        found.size_bytes,
        nanos(found.accessed),
        nanos(found.modified),
        nanos(found.changed),
        found.blocks_512,
        device,
        found.created.map(nanos),
    )
}

/// Returns the type bits of a mode.
pub(crate) fn kind_bits(file_type: FileType) -> u32 {
    let kind = match file_type {
        FileType::Fifo => 0o1,
        FileType::CharacterDevice => 0o2,
        FileType::Directory => 0o4,
        FileType::BlockDevice => 0o6,
        FileType::Regular => 0o10,
        FileType::Symlink => 0o12,
        FileType::Socket => 0o14,
    };
    kind << 12
}
