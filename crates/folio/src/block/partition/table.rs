//! The partition table of a disk: GPT or MBR.

use super::entry::{Partition, PartitionTable};
use super::mbr::{BootSector, MbrTable};
use super::{gpt, mbr};
use crate::base::Result;
use crate::block::Device;

/// Lists the partitions of `disk` by its GPT or MBR, in the order of their numbers; none if it has
/// no table.
///
/// # Errors
///
/// EUCLEAN if the table contradicts itself, else the device's errors.
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
    let boot_sector = mbr::boot_sector(disk)?;
    // As in Linux, a used MBR counts more than what was a GPT before it.
    if boot_sector != BootSector::Mbr {
        let is_protective = boot_sector == BootSector::Protective;
        if let Some(copy) = gpt::open(disk, is_protective).map_err(|error| error.at("GPT"))? {
            return Ok(Some(copy.table(disk)));
        }
    }
    if boot_sector == BootSector::Other {
        return Ok(None);
    }
    let table = MbrTable::read(disk).map_err(|error| error.at("MBR"))?;
    Ok(Some(table.table(disk)))
}
