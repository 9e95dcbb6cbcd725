//! Partition tables in a build without the Cargo feature `partitions`: a disk that has one is
//! refused.

use super::entry::{Partition, PartitionTable};
use crate::base::{Error, Result};
use crate::block::Device;

/// Size in bytes of a boot record.
const BOOT_RECORD_BYTES: u64 = 512;

/// Returns no partitions for a disk without a boot record.
///
/// # Errors
///
/// EOPNOTSUPP for a disk with a boot record, which a GPT has as well.
pub fn partitions(disk: &dyn Device) -> Result<Vec<Partition>> {
    let mut boot_record = [0; BOOT_RECORD_BYTES as usize];
    if disk.len_bytes() >= BOOT_RECORD_BYTES {
        disk.read_at(&mut boot_record, 0)?;
    }
    if boot_record[510..] == [0x55, 0xaa] {
        let what = "a partition table; this build lacks the Cargo feature `partitions`";
        return Err(Error::unsupported(what));
    }
    Ok(Vec::new())
}

/// Returns no table for a disk without a boot record.
///
/// # Errors
///
/// Those of [`partitions`].
pub fn partition_table(disk: &dyn Device) -> Result<Option<PartitionTable>> {
    partitions(disk).map(|_| None)
}
