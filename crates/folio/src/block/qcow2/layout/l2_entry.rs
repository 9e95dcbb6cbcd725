//! L2 entries: the state of a guest cluster, and of each unit in it.
//!
//! A *unit* is the smallest part of a guest cluster with a state of its own: the cluster itself, or
//! with extended entries (16 bytes, the second half two bitmaps) one of its 32 subclusters.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("L2 table entry", "Extended L2 Entries").

use super::header::Header;
use super::table::{COMPRESSED, COPIED, OFFSET_MASK, ZERO};
use crate::base::{Errno, Error, Result};
use std::ops::Range;

const RESERVED: u64 = !(COPIED | COMPRESSED | OFFSET_MASK | ZERO);
/// Subclusters in a cluster, as a power of two.
const SUBCLUSTERS_BITS: u32 = 5;

/// The properties of an image that do not change while it is open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub(crate) cluster_bits: u32,
    pub(crate) version: u32,
    pub(crate) len_bytes: u64,
    pub(crate) has_backing: bool,
    /// Data clusters are in an external file, each at its guest offset, and have no refcounts.
    pub(crate) has_data_file: bool,
    /// That file is the disk byte for byte.
    pub(crate) is_raw: bool,
    /// Units in a cluster, as a power of two.
    units_bits: u32,
}

impl Geometry {
    /// Returns the geometry that a header describes.
    pub(crate) fn new(header: &Header, has_backing: bool) -> Self {
        Self {
            cluster_bits: header.cluster_bits,
            version: header.version,
            len_bytes: header.len_bytes,
            has_backing,
            has_data_file: header.data_file.is_some(),
            is_raw: header.data_file.as_ref().is_some_and(|data| data.is_raw),
            units_bits: if header.has_extended_l2() {
                SUBCLUSTERS_BITS
            } else {
                0
            },
        }
    }

    /// Returns the size of a cluster in bytes.
    pub(crate) fn cluster_bytes(self) -> u64 {
        1 << self.cluster_bits
    }

    /// Returns the size of a unit in bytes.
    pub(crate) fn unit_bytes(self) -> u64 {
        1 << self.unit_bits()
    }

    /// Returns the size of a unit in bytes, as a power of two.
    pub(crate) fn unit_bits(self) -> u32 {
        self.cluster_bits - self.units_bits
    }

    /// Returns the number of units in a cluster, as a power of two.
    pub(crate) fn units_bits(self) -> u32 {
        self.units_bits
    }

    /// Whether L2 entries have 16 bytes and describe subclusters.
    pub(crate) fn is_extended(self) -> bool {
        self.units_bits != 0
    }

    /// Returns the number of guest clusters that an L2 table maps, as a power of two.
    pub(crate) fn l2_bits(self) -> u32 {
        self.cluster_bits - if self.is_extended() { 4 } else { 3 }
    }

    /// Returns the L1 index and the L2 index of a guest cluster.
    pub(crate) fn indices(self, cluster: u64) -> (u64, usize) {
        (
            cluster >> self.l2_bits(),
            (cluster & ((1 << self.l2_bits()) - 1)) as usize,
        )
    }

    /// Returns the number of guest clusters from `cluster` to the end of its L2 table.
    pub(crate) fn left_in_table(self, cluster: u64) -> u64 {
        let entries = 1 << self.l2_bits();
        entries - (cluster & (entries - 1))
    }

    /// Returns the units of a guest cluster that a range of guest bytes touches, a bit for each.
    pub(crate) fn units_in(self, cluster: u64, range: &Range<u64>) -> u64 {
        let start = cluster << self.cluster_bits;
        let first = (range.start.max(start) - start) >> self.unit_bits();
        let end = (range.end.min(start + self.cluster_bytes()) - start).div_ceil(self.unit_bytes());
        ((1 << end) - 1) & !((1 << first) - 1)
    }

    /// Returns all units of a cluster, a bit for each.
    pub(crate) fn all_units(self) -> u64 {
        (1 << (1u32 << self.units_bits)) - 1
    }
}

/// The host cluster that an L2 entry names ("cluster descriptor" in the specification).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterDescriptor {
    /// None.
    Unallocated,
    /// A host cluster; `is_copied` if its refcount is one.
    Standard { host: u64, is_copied: bool },
    /// Compressed bytes, at any byte offset.
    Compressed { host: u64, len_bytes: u64 },
}

/// An L2 entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct L2Entry {
    pub(crate) word: u64,
    /// Extended entries: the subclusters that store data in the low half, those that read as zeros
    /// in the high half. Plain entries: zero.
    pub(crate) bitmap: u64,
}

impl L2Entry {
    /// Encodes the entry of a cluster compressed into `len_bytes` at `host`: the offset, and the
    /// number of sectors it touches beyond the first.
    ///
    /// # Errors
    ///
    /// EFBIG if the offset does not fit in the entry.
    pub(crate) fn compressed(geometry: Geometry, host: u64, len_bytes: u64) -> Result<Self> {
        let offset_bits = 62 - (geometry.cluster_bits - 8);
        if host >> offset_bits != 0 {
            return Err(Error::new(
                Errno::FBIG,
                "the file is too large for more compressed clusters",
            ));
        }
        let sectors = (host + len_bytes - 1) / 512 - host / 512;
        Ok(Self {
            word: COMPRESSED | host | sectors << offset_bits,
            bitmap: 0,
        })
    }

    /// Decodes the host cluster of guest cluster `cluster`, whose entry this is.
    ///
    /// # Errors
    ///
    /// EUCLEAN for an entry that contradicts the format or the image's features.
    pub(crate) fn descriptor(self, geometry: Geometry, cluster: u64) -> Result<ClusterDescriptor> {
        let word = self.word;
        let bad = |what: &str| Err(Error::corrupt(format!("entry {word:#018x} {what}")));
        if word & COMPRESSED != 0 {
            if geometry.has_data_file {
                return bad("is a compressed cluster in an external data file");
            }
            if self.bitmap != 0 {
                return bad("is a compressed cluster with subclusters");
            }
            let offset_bits = 62 - (geometry.cluster_bits - 8);
            let host = word & ((1 << offset_bits) - 1);
            let sectors = ((word & !(COPIED | COMPRESSED)) >> offset_bits) + 1;
            return Ok(ClusterDescriptor::Compressed {
                host,
                len_bytes: sectors * 512 - host % 512,
            });
        }
        let host = word & OFFSET_MASK;
        if word & RESERVED != 0 || (geometry.is_extended() && word & ZERO != 0) {
            return bad("has reserved bits set");
        }
        if !host.is_multiple_of(geometry.cluster_bytes()) {
            return bad("is not at a cluster's start");
        }
        if word & ZERO != 0 && geometry.version < 3 {
            return bad("is a zero cluster in a version 2 image");
        }
        let is_copied = word & COPIED != 0;
        if geometry.has_data_file && (host != 0 || is_copied) {
            if host != cluster << geometry.cluster_bits {
                return bad("is not its own offset in the external data file");
            }
            // Never shared: such an image has no snapshots.
            return Ok(ClusterDescriptor::Standard {
                host,
                is_copied: true,
            });
        }
        Ok(if host == 0 {
            ClusterDescriptor::Unallocated
        } else {
            ClusterDescriptor::Standard { host, is_copied }
        })
    }

    /// Whether the host cluster stores guest bytes.
    pub(crate) fn holds_data(self, geometry: Geometry, descriptor: ClusterDescriptor) -> bool {
        match descriptor {
            ClusterDescriptor::Unallocated => false,
            ClusterDescriptor::Compressed { .. } => true,
            ClusterDescriptor::Standard { .. } if geometry.is_extended() => {
                self.bitmap & geometry.all_units() != 0
            }
            ClusterDescriptor::Standard { .. } => self.word & ZERO == 0,
        }
    }

    /// Returns the entry after `units` were written to the host cluster at `host`. If it is the
    /// same host cluster as before, the other units keep their data.
    pub(crate) fn with_data(
        self,
        geometry: Geometry,
        host: u64,
        units: u64,
        is_same: bool,
    ) -> Self {
        let word = host | COPIED;
        if !geometry.is_extended() {
            return Self { word, bitmap: 0 };
        }
        let kept = if is_same {
            self.bitmap & geometry.all_units()
        } else {
            0
        };
        let zeros = self.bitmap & !geometry.all_units() & !(units << 32);
        Self {
            word,
            bitmap: zeros | kept | units,
        }
    }

    /// Returns the entry after `units` were made zeros. It releases the host cluster if no unit
    /// stores data there any more.
    pub(crate) fn with_zeros(
        self,
        geometry: Geometry,
        descriptor: ClusterDescriptor,
        units: u64,
    ) -> Self {
        let is_whole = units == geometry.all_units();
        // Without a backing file, unallocated clusters read as zeros.
        if !geometry.is_extended() {
            return match (descriptor, geometry.has_backing) {
                (ClusterDescriptor::Unallocated, true) => Self {
                    word: ZERO,
                    bitmap: 0,
                },
                (ClusterDescriptor::Unallocated, false) => self,
                (_, true) => Self {
                    word: ZERO,
                    bitmap: 0,
                },
                (_, false) => Self { word: 0, bitmap: 0 },
            };
        }
        let held = self.bitmap & geometry.all_units();
        let left = held & !units;
        let zeros = (self.bitmap & !geometry.all_units())
            | (u64::from(geometry.has_backing) * (units << 32));
        let is_empty = is_whole || (left == 0 && held != 0);
        Self {
            word: if is_empty { 0 } else { self.word },
            bitmap: zeros | left,
        }
    }
}

/// The state of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Reads as the backing file does, or as zeros without one.
    Unallocated,
    /// Reads as the backing file does; the host cluster has space for it, because other subclusters
    /// of the cluster are stored there.
    Reserved { host: u64, is_copied: bool },
    /// Reads as zeros.
    Zero,
    /// Reads as zeros and has space in a host cluster.
    ZeroAllocated { host: u64, is_copied: bool },
    /// Stored uncompressed.
    Data { host: u64, is_copied: bool },
    /// The cluster is stored compressed, at any byte offset.
    Compressed { host: u64, len_bytes: u64 },
}

/// The content that an entry states for a unit.
#[derive(Clone, Copy)]
enum UnitContent {
    None,
    Data,
    Zeros,
    /// A contradiction.
    DataAndZeros,
}

impl UnitContent {
    /// Returns the content that the two bits of a subcluster state.
    fn of_bits(is_data: bool, is_zero: bool) -> Self {
        if is_data && is_zero {
            Self::DataAndZeros
        } else if is_data {
            Self::Data
        } else if is_zero {
            Self::Zeros
        } else {
            Self::None
        }
    }
}

impl Mapping {
    /// Decodes the state of guest unit `unit` from the entry of its cluster.
    ///
    /// # Errors
    ///
    /// EUCLEAN for an entry that contradicts itself.
    pub(crate) fn decode(entry: L2Entry, geometry: Geometry, unit: u64) -> Result<Self> {
        let descriptor = entry.descriptor(geometry, unit >> geometry.units_bits)?;
        let (word, bitmap) = (entry.word, entry.bitmap);
        let number = unit & ((1 << geometry.units_bits) - 1);
        let content = if geometry.is_extended() {
            UnitContent::of_bits(bitmap >> number & 1 != 0, bitmap >> 32 >> number & 1 != 0)
        } else if word & ZERO != 0 {
            UnitContent::Zeros
        } else if descriptor == ClusterDescriptor::Unallocated {
            UnitContent::None
        } else {
            UnitContent::Data
        };
        let (host, is_copied) = match descriptor {
            ClusterDescriptor::Compressed { host, len_bytes } => {
                return Ok(Self::Compressed { host, len_bytes });
            }
            ClusterDescriptor::Standard { host, is_copied } => {
                (host + (number << geometry.unit_bits()), is_copied)
            }
            ClusterDescriptor::Unallocated => match content {
                UnitContent::Data | UnitContent::DataAndZeros => {
                    let what =
                        format!("entry {word:#018x} has subclusters {bitmap:#018x} and no cluster");
                    return Err(Error::corrupt(what));
                }
                UnitContent::Zeros => return Ok(Self::Zero),
                UnitContent::None => return Ok(Self::Unallocated),
            },
        };
        match content {
            UnitContent::DataAndZeros => {
                let what = format!(
                    "entry {word:#018x} has subclusters {bitmap:#018x}: data and zeros at once"
                );
                Err(Error::corrupt(what))
            }
            UnitContent::Data => Ok(Self::Data { host, is_copied }),
            UnitContent::Zeros => Ok(Self::ZeroAllocated { host, is_copied }),
            UnitContent::None => Ok(Self::Reserved { host, is_copied }),
        }
    }

    /// Whether the image has no entry for the unit: it reads as the backing file does.
    pub(crate) fn is_inherited(self) -> bool {
        matches!(self, Self::Unallocated | Self::Reserved { .. })
    }

    /// Whether `next`, `distance` bytes later, continues the same run. Compressed clusters form no
    /// runs.
    pub(crate) fn is_continued_by(self, next: Self, distance: u64) -> bool {
        match (self, next) {
            (
                Self::Data { host, is_copied },
                Self::Data {
                    host: next,
                    is_copied: same,
                },
            )
            | (
                Self::ZeroAllocated { host, is_copied },
                Self::ZeroAllocated {
                    host: next,
                    is_copied: same,
                },
            )
            | (
                Self::Reserved { host, is_copied },
                Self::Reserved {
                    host: next,
                    is_copied: same,
                },
            ) => is_copied == same && next == host + distance,
            (Self::Unallocated, Self::Unallocated) | (Self::Zero, Self::Zero) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(units_bits: u32) -> Geometry {
        Geometry {
            cluster_bits: 16,
            version: 3,
            len_bytes: 1 << 30,
            has_backing: true,
            has_data_file: false,
            is_raw: false,
            units_bits,
        }
    }

    #[test]
    fn run_continues_while_host_offsets_do() {
        let data = |host, is_copied| Mapping::Data { host, is_copied };
        assert!(data(0x10000, true).is_continued_by(data(0x30000, true), 0x20000));
        assert!(!data(0x10000, true).is_continued_by(data(0x30000, false), 0x20000));
        assert!(!data(0x10000, true).is_continued_by(data(0x20000, true), 0x20000));
        assert!(Mapping::Zero.is_continued_by(Mapping::Zero, 0x10000));
        assert!(!Mapping::Zero.is_continued_by(Mapping::Unallocated, 0x10000));
    }

    #[test]
    fn range_touches_its_units() {
        let (plain, extended) = (geometry(0), geometry(5));
        assert_eq!(plain.units_in(3, &(0..1 << 20)), 1);
        assert_eq!(plain.all_units(), 1);
        assert_eq!(extended.all_units(), 0xffff_ffff);
        assert_eq!(extended.units_in(0, &(0..1 << 20)), 0xffff_ffff);
        assert_eq!(extended.units_in(1, &(0x10800..0x11800)), 0b110);
        assert_eq!(extended.units_in(1, &(0x10001..0x10002)), 1);
        assert_eq!(extended.units_in(1, &(0x1f800..0x30000)), 1 << 31);
    }

    #[test]
    fn subclusters_decode_separately() {
        let extended = geometry(5);
        let entry = L2Entry {
            word: COPIED | 0x50000,
            bitmap: 0b0010 << 32 | 0b0101,
        };
        let decode = |entry, unit| Mapping::decode(entry, extended, unit);
        let is_copied = true;
        assert_eq!(
            decode(entry, 0).unwrap(),
            Mapping::Data {
                host: 0x50000,
                is_copied
            }
        );
        assert_eq!(
            decode(entry, 33).unwrap(),
            Mapping::ZeroAllocated {
                host: 0x50800,
                is_copied
            }
        );
        assert_eq!(
            decode(entry, 2).unwrap(),
            Mapping::Data {
                host: 0x51000,
                is_copied
            }
        );
        assert_eq!(
            decode(entry, 3).unwrap(),
            Mapping::Reserved {
                host: 0x51800,
                is_copied
            }
        );
        let descriptor = entry.descriptor(extended, 0).unwrap();
        let zeroed = entry.with_zeros(extended, descriptor, 0b0001);
        assert_eq!(
            zeroed,
            L2Entry {
                word: entry.word,
                bitmap: 0b0011 << 32 | 0b0100
            }
        );
        let empty = zeroed.with_zeros(extended, descriptor, 0b0100);
        assert_eq!(
            empty,
            L2Entry {
                word: 0,
                bitmap: 0b0111 << 32
            }
        );
        assert_eq!(decode(empty, 2).unwrap(), Mapping::Zero);
        assert_eq!(decode(empty, 3).unwrap(), Mapping::Unallocated);
        let again = empty.with_data(extended, 0x70000, 0b1010, false);
        assert_eq!(
            again,
            L2Entry {
                word: COPIED | 0x70000,
                bitmap: 0b0101 << 32 | 0b1010
            }
        );
    }

    #[test]
    fn contradicting_entries_are_corrupt() {
        let bad = |entry, unit| {
            Mapping::decode(entry, geometry(5), unit)
                .unwrap_err()
                .to_string()
        };
        let both = L2Entry {
            word: 0x50000,
            bitmap: 1 << 32 | 1,
        };
        assert!(bad(both, 0).contains("data and zeros at once"));
        assert!(Mapping::decode(both, geometry(5), 1).is_ok());
        assert!(bad(L2Entry { word: 0, bitmap: 2 }, 1).contains("no cluster"));
        assert!(
            bad(
                L2Entry {
                    word: 0x50001,
                    bitmap: 0
                },
                0
            )
            .contains("reserved bits")
        );
        assert!(
            bad(
                L2Entry {
                    word: COMPRESSED | 0x50000,
                    bitmap: 4
                },
                0
            )
            .contains("compressed cluster with")
        );
    }
}
