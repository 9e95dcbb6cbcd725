//! Extended attributes: those that several inodes have are stored once, in the shared area.

use crate::format::{RawXattrEntry, RawXattrHeader};
use std::collections::HashMap;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// Prefixes of names, and the numbers of the prefixes.
const PREFIXES: [(&[u8], u8); 5] = [
    (b"user.", 1),
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"trusted.", 4),
    (b"security.", 6),
];
/// The largest number of shared attributes of an inode.
const SHARED_MAX: usize = u8::MAX as usize;
/// Bytes of the list of shared attributes for each of them.
const SHARED_ENTRY_BYTES: usize = 4;
/// The largest number of units of 4 bytes behind an inode.
const UNITS_MAX: usize = u16::MAX as usize - 1;

/// Identifies an attribute with its value.
pub(crate) type XattrId = usize;

struct Entry {
    bytes: Vec<u8>,
    /// The bit of the name filter.
    filter: u32,
    uses: usize,
    /// The place in the shared area, in units of 4 bytes.
    shared: Option<u32>,
}

/// All attributes of an image.
#[derive(Default)]
pub(crate) struct XattrTable {
    ids: HashMap<Vec<u8>, XattrId>,
    entries: Vec<Entry>,
}

/// Returns the entry of an attribute; `None` if EROFS has no place for it.
fn encode(name: &[u8], value: &[u8]) -> Option<(Vec<u8>, u32)> {
    let mut prefixes = PREFIXES.iter();
    let (prefix, index) = prefixes.find(|(prefix, _)| name.starts_with(prefix))?;
    let rest = &name[prefix.len()..];
    let is_acl = prefix.last() != Some(&b'.');
    if is_acl != rest.is_empty() {
        return None;
    }
    let header = RawXattrEntry {
        name_len: u8::try_from(rest.len()).ok()?,
        name_index: *index,
        value_len: U16::new(u16::try_from(value.len()).ok()?),
    };
    let mut bytes = [header.as_bytes(), rest, value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Some((bytes, filter_bit(*index, rest)))
}

/// Returns the bit of the name filter for a whole name.
#[cfg(feature = "check")]
pub(crate) fn filter_of(name: &[u8]) -> Option<u32> {
    encode(name, &[]).map(|(_, filter)| filter)
}

/// Returns the bit of the name filter. Linux: `erofs_getxattr`.
fn filter_bit(index: u8, name: &[u8]) -> u32 {
    const SEED: u32 = 0x25BB_E08F;
    1 << (xxh32(name, SEED.wrapping_add(index.into())) & 31)
}

/// The hash xxHash of 32 bits. Linux: `xxh32`.
fn xxh32(bytes: &[u8], seed: u32) -> u32 {
    const PRIMES: [u32; 5] = [
        0x9E37_79B1,
        0x85EB_CA77,
        0xC2B2_AE3D,
        0x27D4_EB2F,
        0x1656_67B1,
    ];
    let [p1, p2, p3, p4, p5] = PRIMES;
    let (stripes, rest) = bytes.as_chunks::<16>();
    let mut hash = seed.wrapping_add(p5);
    if !stripes.is_empty() {
        let mut lanes = [p1.wrapping_add(p2), p2, 0, p1.wrapping_neg()];
        lanes = lanes.map(|lane| lane.wrapping_add(seed));
        for stripe in stripes {
            for (lane, word) in lanes.iter_mut().zip(stripe.as_chunks::<4>().0) {
                let sum = lane.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(p2));
                *lane = sum.rotate_left(13).wrapping_mul(p1);
            }
        }
        let turned = lanes.iter().zip([1, 7, 12, 18]);
        let turned = turned.map(|(lane, bits)| lane.rotate_left(bits));
        hash = turned.fold(0, u32::wrapping_add);
    }
    hash = hash.wrapping_add(bytes.len() as u32);
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        hash = hash.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(p3));
        hash = hash.rotate_left(17).wrapping_mul(p4);
    }
    for byte in rest {
        hash = hash.wrapping_add(u32::from(*byte).wrapping_mul(p5));
        hash = hash.rotate_left(11).wrapping_mul(p1);
    }
    hash = (hash ^ hash >> 15).wrapping_mul(p2);
    hash = (hash ^ hash >> 13).wrapping_mul(p3);
    hash ^ hash >> 16
}

impl XattrTable {
    /// Returns the ids of attributes, sorted by name, and the number of those for which EROFS has
    /// no place.
    pub(crate) fn intern(&mut self, xattrs: &[(Vec<u8>, Vec<u8>)]) -> (Vec<XattrId>, u64) {
        let mut sorted: Vec<_> = xattrs.iter().collect();
        sorted.sort_unstable();
        let (mut ids, mut unsupported, mut units) = (Vec::new(), 0, 0);
        for (name, value) in sorted {
            let encoded = encode(name, value);
            match encoded.filter(|(bytes, _)| units + bytes.len() / 4 <= UNITS_MAX) {
                Some((bytes, filter)) => {
                    units += bytes.len() / 4;
                    ids.push(self.insert(bytes, filter));
                }
                None => unsupported += 1,
            }
        }
        (ids, unsupported)
    }

    fn insert(&mut self, bytes: Vec<u8>, filter: u32) -> XattrId {
        let next = self.entries.len();
        let id = *self.ids.entry(bytes.clone()).or_insert(next);
        if id == next {
            self.entries.push(Entry {
                bytes,
                filter,
                uses: 0,
                shared: None,
            });
        }
        id
    }

    /// Decides which attributes are shared, by those of all inodes; returns the shared area.
    pub(crate) fn share<'a>(&mut self, inodes: impl Iterator<Item = &'a [XattrId]>) -> Vec<u8> {
        for id in inodes.flatten() {
            self.entries[*id].uses += 1;
        }
        let mut area = Vec::new();
        for entry in &mut self.entries {
            let saved = entry.bytes.len() * entry.uses.saturating_sub(1);
            if saved > entry.uses * SHARED_ENTRY_BYTES {
                entry.shared = u32::try_from(area.len() / 4).ok();
                area.extend_from_slice(&entry.bytes);
            }
        }
        area
    }

    /// Returns the bytes behind an inode with these attributes.
    pub(crate) fn body(&self, ids: &[XattrId]) -> Vec<u8> {
        if ids.is_empty() {
            return Vec::new();
        }
        let (mut shared, mut own, mut filter) = (Vec::new(), Vec::new(), 0);
        for id in ids {
            let entry = &self.entries[*id];
            filter |= entry.filter;
            match entry.shared.filter(|_| shared.len() < SHARED_MAX) {
                Some(place) => shared.push(place),
                None => own.extend_from_slice(&entry.bytes),
            }
        }
        let header = RawXattrHeader {
            name_filter: U32::new(!filter),
            shared_count: shared.len() as u8,
            reserved: [0; 7],
        };
        let mut body = header.as_bytes().to_vec();
        body.extend(shared.into_iter().flat_map(u32::to_le_bytes));
        body.extend(own);
        body
    }
}

/// Returns the number of an inode for the length of what [`XattrTable::body`] returned.
pub(crate) fn count_of(body: &[u8]) -> u16 {
    match body.len().checked_sub(size_of::<RawXattrHeader>()) {
        None => 0,
        // The attributes of an inode were limited.
        Some(len) => u16::try_from(len / 4 + 1).unwrap_or(u16::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xxh32_returns_published_values() {
        assert_eq!(xxh32(b"", 0), 0x02CC_5D05);
        assert_eq!(xxh32(b"a", 0), 0x550D_7456);
        assert_eq!(
            xxh32(b"Nobody inspects the spammish repetition", 0),
            0xE229_3B2F
        );
    }
}
