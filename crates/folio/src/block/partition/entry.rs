//! One partition, as a partition table describes it.

/// One entry of a partition table, checked to be inside the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Number as in Linux's device names: from 1; logical MBR partitions from 5.
    pub number: u32,
    /// Offset of its first byte on the disk, in bytes.
    pub start_bytes: u64,
    /// Its size in bytes.
    pub len_bytes: u64,
    /// Name of its type, such as "Linux filesystem", or the number of an unknown type.
    pub type_name: String,
    /// Its label in a GPT; else empty.
    pub label: String,
}
