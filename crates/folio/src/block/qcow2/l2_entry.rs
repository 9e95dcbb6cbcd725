//! L2 entries: what they say of a guest cluster, and of its parts.
//!
//! A *unit* is what an entry tells apart: the cluster, or with extended entries (16 bytes, the
//! second half two bitmaps) one of its 32 subclusters.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("L2 table entry", "Extended L2 Entries").

use super::header::Header;
use super::table::{COPIED, OFFSET_MASK, Table};
use crate::base::{Errno, Error, Result};
use std::ops::Range;

const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeros (version 3); extended entries say that by subcluster.
const ZERO: u64 = 1;
const RESERVED: u64 = !(COPIED | COMPRESSED | OFFSET_MASK | ZERO);
/// Subclusters in a cluster, as a power of two.
const SUBCLUSTERS_BITS: u32 = 5;

/// What never changes about an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    pub(super) cluster_bits: u32,
    pub(super) version: u32,
    pub(super) len_bytes: u64,
    pub(super) has_backing: bool,
    /// Data clusters lie in a file of their own, each at its guest offset, and have no refcounts.
    pub(super) has_data_file: bool,
    /// That file is the disk byte for byte.
    pub(super) is_raw: bool,
    /// Units in a cluster, as a power of two.
    units_bits: u32,
}

impl Geometry {
    /// The geometry that a header tells.
    pub(super) fn new(header: &Header, has_backing: bool) -> Self {
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

    /// Bytes in a cluster.
    pub(super) fn cluster_bytes(self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes in a unit.
    pub(super) fn unit_bytes(self) -> u64 {
        1 << self.unit_bits()
    }

    /// Bytes in a unit, as a power of two.
    pub(super) fn unit_bits(self) -> u32 {
        self.cluster_bits - self.units_bits
    }

    /// Units in a cluster, as a power of two.
    pub(super) fn units_bits(self) -> u32 {
        self.units_bits
    }

    fn is_extended(self) -> bool {
        self.units_bits != 0
    }

    /// Guest clusters that an L2 table maps, as a power of two.
    pub(super) fn l2_bits(self) -> u32 {
        self.cluster_bits - if self.is_extended() { 4 } else { 3 }
    }

    /// L1 index and L2 index of a guest cluster.
    pub(super) fn indices(self, cluster: u64) -> (u64, usize) {
        (
            cluster >> self.l2_bits(),
            (cluster & ((1 << self.l2_bits()) - 1)) as usize,
        )
    }

    /// Guest clusters from `cluster` to the end of its L2 table.
    pub(super) fn left_in_table(self, cluster: u64) -> u64 {
        let entries = 1 << self.l2_bits();
        entries - (cluster & (entries - 1))
    }

    /// Entry `index` of an L2 table.
    pub(super) fn entry(self, table: &Table, index: usize) -> Entry {
        match self.is_extended() {
            false => Entry {
                word: table.word(index),
                bitmap: 0,
            },
            true => Entry {
                word: table.word(index * 2),
                bitmap: table.word(index * 2 + 1),
            },
        }
    }

    /// Sets entry `index` of an L2 table.
    pub(super) fn set_entry(self, table: &mut Table, index: usize, entry: Entry) {
        match self.is_extended() {
            false => table.set_word(index, entry.word),
            true => {
                table.set_word(index * 2, entry.word);
                table.set_word(index * 2 + 1, entry.bitmap);
            }
        }
    }

    /// The units of a guest cluster that a range of guest bytes touches, a bit for each.
    pub(super) fn units_in(self, cluster: u64, range: &Range<u64>) -> u64 {
        let start = cluster << self.cluster_bits;
        let first = (range.start.max(start) - start) >> self.unit_bits();
        let end = (range.end.min(start + self.cluster_bytes()) - start).div_ceil(self.unit_bytes());
        ((1 << end) - 1) & !((1 << first) - 1)
    }

    /// All units of a cluster.
    pub(super) fn all_units(self) -> u64 {
        (1 << (1u32 << self.units_bits)) - 1
    }
}

/// What a guest cluster has in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Nothing,
    /// A cluster, which nobody shares if the flag is set.
    Cluster {
        host: u64,
        is_copied: bool,
    },
    /// Compressed bytes, anywhere.
    Compressed {
        host: u64,
        len_bytes: u64,
    },
}

/// An L2 entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) word: u64,
    /// Extended entries: below the subclusters that hold data, above those that read as zeros; else
    /// zero.
    pub(super) bitmap: u64,
}

impl Entry {
    /// The entry of a cluster that lies compressed at `host`: its place, and how many more sectors
    /// than one it touches.
    pub(super) fn compressed(geometry: Geometry, host: u64, len_bytes: u64) -> Result<Self> {
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

    /// What guest cluster `cluster` has in the file, if this is its entry.
    pub(super) fn place(self, geometry: Geometry, cluster: u64) -> Result<Place> {
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
            return Ok(Place::Compressed {
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
            // Nobody shares it: such an image has no snapshots.
            return Ok(Place::Cluster {
                host,
                is_copied: true,
            });
        }
        Ok(if host == 0 {
            Place::Nothing
        } else {
            Place::Cluster { host, is_copied }
        })
    }

    /// Whether bytes of the guest would be lost with the place.
    pub(super) fn holds_data(self, geometry: Geometry, place: Place) -> bool {
        match place {
            Place::Nothing => false,
            Place::Compressed { .. } => true,
            Place::Cluster { .. } if geometry.is_extended() => {
                self.bitmap & geometry.all_units() != 0
            }
            Place::Cluster { .. } => self.word & ZERO == 0,
        }
    }

    /// The entry once `units` hold data in the cluster at `host`; those that did keep it if it is
    /// the same cluster.
    pub(super) fn with_data(
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

    /// The entry once `units` read as zeros; it lets go of the place if nothing is left there.
    pub(super) fn with_zeros(self, geometry: Geometry, place: Place, units: u64) -> Self {
        let is_whole = units == geometry.all_units();
        // Without a backing file, what is not allocated reads as zeros.
        if !geometry.is_extended() {
            return match (place, geometry.has_backing) {
                (Place::Nothing, true) => Self {
                    word: ZERO,
                    bitmap: 0,
                },
                (Place::Nothing, false) => self,
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

/// What a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mapping {
    /// Reads as the backing file does, or as zeros.
    Unallocated,
    /// The same, in a cluster that has a place for it: other subclusters are there.
    Reserved { host: u64, is_copied: bool },
    /// Reads as zeros.
    Zero,
    /// Reads as zeros and has a place.
    ZeroAllocated { host: u64, is_copied: bool },
    /// Stored as it is.
    Data { host: u64, is_copied: bool },
    /// The cluster is stored compressed, anywhere.
    Compressed { host: u64, len_bytes: u64 },
}

impl Mapping {
    /// What guest unit `unit` is, by the entry of its cluster.
    pub(super) fn decode(entry: Entry, geometry: Geometry, unit: u64) -> Result<Self> {
        let place = entry.place(geometry, unit >> geometry.units_bits)?;
        let (word, bitmap) = (entry.word, entry.bitmap);
        let number = unit & ((1 << geometry.units_bits) - 1);
        let (is_data, is_zero) = match geometry.is_extended() {
            false => (
                word & ZERO == 0 && place != Place::Nothing,
                word & ZERO != 0,
            ),
            true => (bitmap >> number & 1 != 0, bitmap >> 32 >> number & 1 != 0),
        };
        let (host, is_copied) = match place {
            Place::Compressed { host, len_bytes } => {
                return Ok(Self::Compressed { host, len_bytes });
            }
            Place::Cluster { host, is_copied } => {
                (host + (number << geometry.unit_bits()), is_copied)
            }
            Place::Nothing => match (is_data, is_zero) {
                (true, _) => {
                    let what =
                        format!("entry {word:#018x} has subclusters {bitmap:#018x} and no cluster");
                    return Err(Error::corrupt(what));
                }
                (false, true) => return Ok(Self::Zero),
                (false, false) => return Ok(Self::Unallocated),
            },
        };
        match (is_data, is_zero) {
            (true, true) => {
                let what = format!(
                    "entry {word:#018x} has subclusters {bitmap:#018x}: data and zeros at once"
                );
                Err(Error::corrupt(what))
            }
            (true, false) => Ok(Self::Data { host, is_copied }),
            (false, true) => Ok(Self::ZeroAllocated { host, is_copied }),
            (false, false) => Ok(Self::Reserved { host, is_copied }),
        }
    }

    /// Whether `next`, `distance` bytes behind, carries on the same run; compressed clusters are
    /// not runs.
    pub(super) fn goes_on(self, next: Self, distance: u64) -> bool {
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
    fn runs_go_on_while_the_file_does() {
        let data = |host, is_copied| Mapping::Data { host, is_copied };
        assert!(data(0x10000, true).goes_on(data(0x30000, true), 0x20000));
        assert!(!data(0x10000, true).goes_on(data(0x30000, false), 0x20000));
        assert!(!data(0x10000, true).goes_on(data(0x20000, true), 0x20000));
        assert!(Mapping::Zero.goes_on(Mapping::Zero, 0x10000));
        assert!(!Mapping::Zero.goes_on(Mapping::Unallocated, 0x10000));
    }

    #[test]
    fn units_of_a_range() {
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
    fn subclusters_are_told_apart() {
        let extended = geometry(5);
        let entry = Entry {
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
        let place = entry.place(extended, 0).unwrap();
        let zeroed = entry.with_zeros(extended, place, 0b0001);
        assert_eq!(
            zeroed,
            Entry {
                word: entry.word,
                bitmap: 0b0011 << 32 | 0b0100
            }
        );
        let empty = zeroed.with_zeros(extended, place, 0b0100);
        assert_eq!(
            empty,
            Entry {
                word: 0,
                bitmap: 0b0111 << 32
            }
        );
        assert_eq!(decode(empty, 2).unwrap(), Mapping::Zero);
        assert_eq!(decode(empty, 3).unwrap(), Mapping::Unallocated);
        let again = empty.with_data(extended, 0x70000, 0b1010, false);
        assert_eq!(
            again,
            Entry {
                word: COPIED | 0x70000,
                bitmap: 0b0101 << 32 | 0b1010
            }
        );
    }

    #[test]
    fn entries_that_cannot_be() {
        let bad = |entry, unit| {
            Mapping::decode(entry, geometry(5), unit)
                .unwrap_err()
                .to_string()
        };
        let both = Entry {
            word: 0x50000,
            bitmap: 1 << 32 | 1,
        };
        assert!(bad(both, 0).contains("data and zeros at once"));
        assert!(Mapping::decode(both, geometry(5), 1).is_ok());
        assert!(bad(Entry { word: 0, bitmap: 2 }, 1).contains("no cluster"));
        assert!(
            bad(
                Entry {
                    word: 0x50001,
                    bitmap: 0
                },
                0
            )
            .contains("reserved bits")
        );
        assert!(
            bad(
                Entry {
                    word: COMPRESSED | 0x50000,
                    bitmap: 4
                },
                0
            )
            .contains("compressed cluster with")
        );
    }
}
