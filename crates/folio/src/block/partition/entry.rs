//! One partition, as a partition table describes it, and the table.

use std::fmt;

/// The kind of a partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableScheme {
    /// GUID partition table.
    Gpt,
    /// Master boot record.
    Mbr,
}

impl TableScheme {
    /// Returns the name as in blkid(8): `gpt` or `dos`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt => "gpt",
            Self::Mbr => "dos",
        }
    }
}

impl fmt::Display for TableScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionTable {
    /// GPT or MBR.
    pub scheme: TableScheme,
    /// Bytes per sector that the table counts.
    pub sector_bytes: u64,
    /// Identifies the disk: a UUID in a GPT, a number in base 16 in an MBR.
    pub id: String,
    /// The partitions, in the order of their numbers.
    pub partitions: Vec<Partition>,
}

/// One entry of a partition table, shortened if it ends beyond the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Number as in Linux's device names: from 1; logical MBR partitions from 5.
    pub number: u32,
    /// Offset of its first byte on the disk, in bytes.
    pub start_bytes: u64,
    /// Its size in bytes.
    pub len_bytes: u64,
    /// Its type: a UUID in a GPT, a number in base 16 in an MBR.
    pub type_id: String,
    /// Name of its type, such as "Linux filesystem", or the number of an unknown type.
    pub type_name: String,
    /// Its UUID; in an MBR the number of the disk with that of the partition.
    pub uuid: String,
    /// Whether a BIOS boots from it: the flag of an MBR, or the attribute of a GPT.
    pub is_bootable: bool,
    /// Its label in a GPT; else empty.
    pub label: String,
}
