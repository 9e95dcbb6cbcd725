//! ext4's checksums: crc32c for metadata_csum, crc16 for uninit_bg, crc32 for old journals.
//!
//! ext4 uses the raw crc32c register, without inversion at either end. The crate's function inverts
//! both, so this file inverts its seed and result again.

use super::disk::{
    GROUP_CHECKSUM_OFFSET, INODE_BASE_LEN, INODE_CHECKSUM_HI_OFFSET, INODE_CHECKSUM_LO_OFFSET,
};
use crc::{CRC_16_ARC, CRC_32_MPEG_2, Crc, Table};

/// Returns the crc32c register after `bytes`, starting from `seed`. Linux: `ext4_chksum`.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Returns the crc32 register after `bytes`, starting from `seed`, most significant bit first.
/// Linux: `crc32_be`.
pub(crate) fn crc32(seed: u32, bytes: &[u8]) -> u32 {
    static CRC32: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_MPEG_2);
    let mut digest = CRC32.digest_with_initial(seed);
    digest.update(bytes);
    digest.finalize()
}

/// Returns the seed of all checksums that belong to an inode. Linux: `i_csum_seed`.
pub(crate) fn inode_seed(fs_seed: u32, number: u32, generation: u32) -> u32 {
    crc32c(
        crc32c(fs_seed, &number.to_le_bytes()),
        &generation.to_le_bytes(),
    )
}

/// Returns the checksum of an inode's bytes on disk, with its checksum fields as zero. `bytes` is
/// the whole inode (`s_inode_size`); `has_high` says whether it stores the high half. Linux:
/// `ext4_inode_csum`.
pub(crate) fn inode_checksum(inode_seed: u32, bytes: &[u8], has_high: bool) -> u32 {
    let zero = [0_u8; 2];
    let mut crc = crc32c(inode_seed, &bytes[..INODE_CHECKSUM_LO_OFFSET]);
    crc = crc32c(crc, &zero);
    crc = crc32c(crc, &bytes[INODE_CHECKSUM_LO_OFFSET + 2..INODE_BASE_LEN]);
    if bytes.len() > INODE_BASE_LEN {
        crc = crc32c(crc, &bytes[INODE_BASE_LEN..INODE_CHECKSUM_HI_OFFSET]);
        if has_high {
            crc = crc32c(crc, &zero);
            crc = crc32c(crc, &bytes[INODE_CHECKSUM_HI_OFFSET + 2..]);
        } else {
            crc = crc32c(crc, &bytes[INODE_CHECKSUM_HI_OFFSET..])
        }
    }
    crc
}

/// Returns the checksum of a group descriptor with metadata_csum; `bytes` is the whole descriptor
/// on disk. Linux: `ext4_group_desc_csum`.
pub(crate) fn group_checksum_crc32c(fs_seed: u32, group: u32, bytes: &[u8]) -> u16 {
    let mut crc = crc32c(fs_seed, &group.to_le_bytes());
    crc = crc32c(crc, &bytes[..GROUP_CHECKSUM_OFFSET]);
    crc = crc32c(crc, &[0; 2]);
    crc32c(crc, &bytes[GROUP_CHECKSUM_OFFSET + 2..]) as u16
}

/// Returns the checksum of a group descriptor with uninit_bg (`gdt_csum`).
pub(crate) fn group_checksum_crc16(uuid: &[u8; 16], group: u32, bytes: &[u8]) -> u16 {
    const ARC_FROM_ONES: crc::Algorithm<u16> = crc::Algorithm {
        init: 0xFFFF,
        ..CRC_16_ARC
    };
    static CRC16: Crc<u16, Table<1>> = Crc::<u16, Table<1>>::new(&ARC_FROM_ONES);
    let mut digest = CRC16.digest();
    digest.update(uuid);
    digest.update(&group.to_le_bytes());
    digest.update(&bytes[..GROUP_CHECKSUM_OFFSET]);
    digest.update(&bytes[GROUP_CHECKSUM_OFFSET + 2..]);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_has_no_inversion() {
        // The standard check value, inverted at both ends.
        assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
        let whole = crc32c(17, b"one and two");
        assert_eq!(crc32c(crc32c(17, b"one and"), b" two"), whole);
        assert_eq!(crc32(!0, b"123456789"), 0x0376_E6E7);
        assert_eq!(crc32(crc32(!0, b"1234"), b"56789"), 0x0376_E6E7);
    }
}
