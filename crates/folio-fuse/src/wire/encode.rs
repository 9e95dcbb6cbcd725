//! Encodings of attributes, file types and device numbers.

use super::abi::{self, Attr, StatxOut, StatxTime};
use folio::Timespec;
use folio::vfs::{Attributes, DeviceNumber, FileType};

/// Returns a file type as the bits of a mode (`S_IFMT`).
fn type_bits(file_type: FileType) -> u32 {
    dirent_type(file_type) << 12
}

/// Returns a file type as in a directory entry (`DT_*`).
pub(crate) fn dirent_type(file_type: FileType) -> u32 {
    match file_type {
        FileType::Fifo => 1,
        FileType::CharacterDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::Regular => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
    }
}

/// Returns the type in the mode of mknod(2). `None` for directories and symbolic links, which have
/// operations of their own, and for invalid types.
pub(crate) fn mknod_type(mode: u32) -> Option<FileType> {
    match mode & 0o170000 {
        0 | 0o100000 => Some(FileType::Regular),
        0o020000 => Some(FileType::CharacterDevice),
        0o060000 => Some(FileType::BlockDevice),
        0o010000 => Some(FileType::Fifo),
        0o140000 => Some(FileType::Socket),
        _ => None,
    }
}

/// Returns the permission bits of a mode or umask, the low 12 bits.
pub(crate) fn permission_bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// Encodes a device number in 32 bits. Linux: `new_encode_dev`.
fn device_bits(device: DeviceNumber) -> u32 {
    let DeviceNumber { major, minor } = device;
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Decodes a device number. Linux: `new_decode_dev`.
pub(crate) fn device(bits: u32) -> DeviceNumber {
    DeviceNumber::new((bits & 0xf_ff00) >> 8, bits & 0xff | bits >> 12 & 0xf_ff00)
}

/// Encodes the attributes of node `id`.
pub(crate) fn attr(id: u64, attributes: &Attributes) -> Attr {
    Attr {
        number: id,
        size: attributes.size_bytes,
        blocks_512: attributes.blocks_512,
        atime: attributes.accessed.secs,
        mtime: attributes.modified.secs,
        ctime: attributes.changed.secs,
        atime_nanos: attributes.accessed.nanos,
        mtime_nanos: attributes.modified.nanos,
        ctime_nanos: attributes.changed.nanos,
        mode: type_bits(attributes.file_type) | u32::from(attributes.mode),
        links: attributes.link_count,
        uid: attributes.uid,
        gid: attributes.gid,
        device: device_bits(attributes.device),
        block_size: attributes.block_size,
        flags: 0,
    }
}

/// Encodes attributes for statx(2), without their validity.
pub(crate) fn statx(attributes: &Attributes) -> StatxOut {
    let time = |time: Timespec| StatxTime {
        secs: time.secs,
        nanos: time.nanos,
        reserved: 0,
    };
    let mask_without_btime = abi::STATX_BASIC_AND_BTIME & !abi::STATX_BTIME;
    StatxOut {
        mask: attributes
            .created
            .map_or(mask_without_btime, |_| abi::STATX_BASIC_AND_BTIME),
        block_size: attributes.block_size,
        links: attributes.link_count,
        uid: attributes.uid,
        gid: attributes.gid,
        mode: (type_bits(attributes.file_type) | u32::from(attributes.mode)) as u16,
        number: attributes.number.0,
        size: attributes.size_bytes,
        blocks_512: attributes.blocks_512,
        atime: time(attributes.accessed),
        btime: time(attributes.created.unwrap_or_default()),
        ctime: time(attributes.changed),
        mtime: time(attributes.modified),
        device_major: attributes.device.major,
        device_minor: attributes.device.minor,
        ..StatxOut::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_number_round_trips() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (4095, 0xf_ffff)] {
            let number = DeviceNumber::new(major, minor);
            assert_eq!(device(device_bits(number)), number);
        }
    }
}
