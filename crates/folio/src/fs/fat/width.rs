//! The widths: FAT12, FAT16, FAT32, and what follows from each.

/// The width of the entries of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FatWidth {
    /// FAT32, as firmware expects of an EFI system partition on a disk.
    #[default]
    Fat32,
    /// FAT16, for small partitions.
    Fat16,
    /// FAT12.
    Fat12,
}

impl FatWidth {
    /// Returns the name: `fat32`, `fat16` or `fat12`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fat32 => "fat32",
            Self::Fat16 => "fat16",
            Self::Fat12 => "fat12",
        }
    }

    /// Returns the bits of an entry of the table.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Fat32 => 32,
            Self::Fat16 => 16,
            Self::Fat12 => 12,
        }
    }

    /// Returns the bytes that an entry of the table has bits in.
    pub(crate) fn entry_bytes(self) -> usize {
        if self == Self::Fat32 { 4 } else { 2 }
    }

    /// Returns the entry of the last cluster of a chain: all bits that are not reserved.
    pub(crate) fn end_mark(self) -> u32 {
        match self {
            Self::Fat32 => 0x0fff_ffff,
            Self::Fat16 => 0xffff,
            Self::Fat12 => 0xfff,
        }
    }

    /// Returns the least entry that marks the last cluster of a chain.
    pub(crate) fn end_min(self) -> u32 {
        self.end_mark() - 7
    }

    /// Returns the most clusters.
    pub(crate) fn clusters_max(self) -> u32 {
        self.end_mark() - 11
    }

    /// Returns the fewest clusters; with fewer, readers take the file system for a narrower one.
    pub(crate) fn clusters_min(self) -> u32 {
        match self {
            Self::Fat32 => 65_525,
            Self::Fat16 => 4085,
            Self::Fat12 => 1,
        }
    }
}
