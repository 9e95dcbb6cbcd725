//! Encodings of single inode fields: file type, times, device numbers, block count.

use crate::base::{DeviceNumber, Timespec};
use crate::fs::ext4::layout::disk::{RawInode, inode_flags};
use crate::vfs::FileType;

/// Returns the file type in `S_IFMT` of `mode`, if it is valid.
pub(crate) fn file_type_of(mode: u16) -> Option<FileType> {
    Some(match mode & 0xF000 {
        0x1000 => FileType::Fifo,
        0x2000 => FileType::CharacterDevice,
        0x4000 => FileType::Directory,
        0x6000 => FileType::BlockDevice,
        0x8000 => FileType::Regular,
        0xA000 => FileType::Symlink,
        0xC000 => FileType::Socket,
        _ => return None,
    })
}

/// Returns the `S_IFMT` bits of `file_type`.
pub(super) fn mode_of(file_type: FileType) -> u16 {
    match file_type {
        FileType::Fifo => 0x1000,
        FileType::CharacterDevice => 0x2000,
        FileType::Directory => 0x4000,
        FileType::BlockDevice => 0x6000,
        FileType::Regular => 0x8000,
        FileType::Symlink => 0xA000,
        FileType::Socket => 0xC000,
    }
}

/// Returns `i_blocks`, in the unit of the inode: blocks with `huge_file`, else 512 bytes.
pub(crate) fn raw_block_count(raw: &RawInode) -> u64 {
    u64::from(raw.blocks_high.get()) << 32 | u64::from(raw.blocks_lo.get())
}

/// Adds `change` blocks to `i_blocks`.
pub(super) fn charge(raw: &mut RawInode, change: i64, block_size: usize) {
    let unit = if raw.flags.get() & inode_flags::HUGE_FILE != 0 {
        1
    } else {
        block_size as i64 / 512
    };
    let count = raw_block_count(raw).saturating_add_signed(change * unit);
    raw.blocks_lo = (count as u32).into();
    raw.blocks_high = ((count >> 32) as u16).into();
}

/// Decodes a time: signed 32-bit seconds, and a field with two more bits of seconds (the epoch) and
/// the nanoseconds.
pub(crate) fn decode_time(low: u32, extra: u32) -> Timespec {
    let secs = i64::from(low as i32) + (i64::from(extra & 3) << 32);
    Timespec::new(secs, (extra >> 2).min(999_999_999))
}

/// Encodes a time, clamped to what the fields can hold; `has_extra`: whether the inode has the
/// second field.
pub(super) fn encode_time(time: Timespec, has_extra: bool) -> (u32, u32) {
    let min = i64::from(i32::MIN);
    let max = if has_extra {
        (1 << 34) + min - 1
    } else {
        i32::MAX.into()
    };
    let secs = time.secs.clamp(min, max);
    if has_extra {
        let epoch = (secs - i64::from(secs as i32)) >> 32;
        (secs as u32, (epoch as u32 & 3) | time.nanos << 2)
    } else {
        (secs as u32, 0)
    }
}

/// Decodes the device number in `i_block`: 8:8 bits in the first word, or 12:20 in the second.
pub(crate) fn decode_device(block: &[u8; 60]) -> DeviceNumber {
    let word = |i: usize| u32::from_le_bytes([block[i], block[i + 1], block[i + 2], block[i + 3]]);
    match word(0) {
        0 => {
            let new = word(4);
            DeviceNumber::new((new >> 8) & 0xFFF, (new & 0xFF) | ((new >> 12) & 0xF_FF00))
        }
        old => DeviceNumber::new((old >> 8) & 0xFF, old & 0xFF),
    }
}

/// Encodes a device number as `i_block`, in the old form where it fits.
pub(super) fn encode_device(device: DeviceNumber) -> [u8; 60] {
    let DeviceNumber { major, minor } = device;
    let mut block = [0; 60];
    if major < 256 && minor < 256 {
        block[..4].copy_from_slice(&(major << 8 | minor).to_le_bytes());
    } else {
        let new = (minor & 0xFF) | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12;
        block[4..8].copy_from_slice(&new.to_le_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_from_1901_to_2446_keep_nanoseconds() {
        for secs in [
            i64::from(i32::MIN),
            -1,
            0,
            1,
            2_147_483_647,
            2_147_483_648,
            4_294_967_296,
            15_032_385_535,
        ] {
            let time = Timespec::new(secs, 123_456_789);
            let (low, extra) = encode_time(time, true);
            assert_eq!(decode_time(low, extra), time);
        }
        let (low, extra) = encode_time(Timespec::new(i64::MAX, 0), true);
        assert_eq!(decode_time(low, extra).secs, 15_032_385_535);
        assert_eq!(
            encode_time(Timespec::new(4_000_000_000, 5), false),
            (i32::MAX as u32, 0)
        );
    }

    #[test]
    fn device_numbers_use_both_encodings() {
        for device in [
            DeviceNumber::new(8, 1),
            DeviceNumber::default(),
            DeviceNumber::new(255, 255),
            DeviceNumber::new(256, 1),
            DeviceNumber::new(1, 256),
            DeviceNumber::new(4095, 1_048_575),
        ] {
            assert_eq!(decode_device(&encode_device(device)), device);
        }
    }
}
