//! The partition table of a disk: GPT or MBR.

use super::entry::{Partition, PartitionTable};
use super::{gpt, mbr};
use crate::base::Result;
use crate::block::Device;

/// Sector sizes that a GPT may use, in bytes.
const GPT_SECTOR_BYTES: [u64; 2] = [512, 4096];
/// Size in bytes of the boot record and of the sectors that an MBR counts, on every disk.
const MBR_SECTOR_BYTES: u64 = 512;
/// Partition type in the protective MBR of a disk with a GPT.
const PROTECTIVE: u8 = 0xee;

/// Lists the partitions of `disk` by its GPT or MBR, in the order of their numbers; none if it has
/// no table.
///
/// # Errors
///
/// EUCLEAN if the table contradicts itself or leaves the disk, else the device's errors.
///
/// Linux: block/partitions/.
pub fn partitions(disk: &dyn Device) -> Result<Vec<Partition>> {
    let table = partition_table(disk)?;
    Ok(table.map_or_else(Vec::new, |table| table.partitions))
}

/// Reads the partition table of `disk`, if it has one.
///
/// # Errors
///
/// Those of [`partitions`].
pub fn partition_table(disk: &dyn Device) -> Result<Option<PartitionTable>> {
    let mut boot_sector = [0; MBR_SECTOR_BYTES as usize];
    if disk.len_bytes() < MBR_SECTOR_BYTES {
        return Ok(None);
    }
    disk.read_at(&mut boot_sector, 0)?;
    let is_mbr = boot_sector[510..] == [0x55, 0xaa];
    let is_protective =
        is_mbr && (0..4).any(|entry| boot_sector[446 + 16 * entry + 4] == PROTECTIVE);
    for sector_bytes in GPT_SECTOR_BYTES {
        if is_protective || gpt::has_gpt(disk, sector_bytes)? {
            match gpt::read(disk, sector_bytes) {
                // With a protective MBR alone, the sector size is still unknown.
                Err(_)
                    if sector_bytes == GPT_SECTOR_BYTES[0]
                        && !gpt::has_gpt(disk, sector_bytes)? => {}
                result => return result.map(Some).map_err(|error| error.at("GPT")),
            }
        }
    }
    if is_mbr {
        mbr::read(disk).map(Some).map_err(|error| error.at("MBR"))
    } else {
        Ok(None)
    }
}
