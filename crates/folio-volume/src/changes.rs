//! The changes of a flush, as entries of the map.

use crate::format::{
    BlockRef, FLUSH_KEY, GROUP_BLOCKS, Group, Place, crc32c, encode_group, group_key, inline_key,
};
use crate::layer::{Layer, Slot};
use crate::map::VolumeMap;
use bytes::Bytes;
use slatedb::WriteBatch;
use std::collections::BTreeMap;

/// The changes of a flush, as the map stores them.
pub(crate) struct Changes {
    groups: Vec<(u64, Group)>,
    inline: Vec<(u64, Option<Bytes>)>,
    flush: u64,
}

impl Changes {
    /// Returns the changes that `layer` makes to `map`.
    pub(crate) fn of(map: &VolumeMap, layer: &Layer) -> Self {
        let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
        let mut inline = Vec::new();
        for (&block, slot) in layer {
            let number = block / GROUP_BLOCKS;
            // A group is stored as a whole: what did not change comes from the map.
            let group = groups.entry(number).or_insert_with(|| map.group(number));
            let was_inline = map.inline_blocks().contains_key(&block);
            let (stored, bytes) = match slot {
                Slot::Data { bytes, .. } => {
                    let stored = BlockRef {
                        place: Place::Inline,
                        crc: crc32c(bytes),
                    };
                    // A copy: a slice would keep the rest of its piece in memory.
                    (Some(stored), Some(Bytes::copy_from_slice(bytes)))
                }
                Slot::Stored(stored) => (Some(*stored), None),
                Slot::Zero => (None, None),
            };
            group[(block % GROUP_BLOCKS) as usize] = stored;
            // The map must not keep the bytes that a segment has now.
            if bytes.is_some() || was_inline {
                inline.push((block, bytes));
            }
        }
        Self {
            groups: groups.into_iter().collect(),
            inline,
            flush: map.flush + 1,
        }
    }

    /// Adds the changes to `batch`.
    pub(crate) fn write(&self, batch: &mut WriteBatch) {
        for (number, group) in &self.groups {
            let value = encode_group(group);
            if value.is_empty() {
                batch.delete(group_key(*number))
            } else {
                batch.put(group_key(*number), value)
            }
        }
        for (block, bytes) in &self.inline {
            match bytes {
                Some(bytes) => {
                    batch.put_bytes(Bytes::copy_from_slice(&inline_key(*block)), bytes.clone())
                }
                None => batch.delete(inline_key(*block)),
            }
        }
        batch.put(FLUSH_KEY, self.flush.to_le_bytes());
    }

    /// Makes the changes in the map in memory.
    pub(crate) fn apply(self, map: &mut VolumeMap) {
        for (number, group) in &self.groups {
            map.set_group(*number, group);
        }
        for (block, bytes) in self.inline {
            map.set_inline(block, bytes);
        }
        map.flush = self.flush;
    }
}

/// Adds to `batch` what turns `map` into the content of `old`.
pub(crate) fn difference(map: &VolumeMap, old: &VolumeMap, batch: &mut WriteBatch) {
    for (number, value) in old.groups() {
        if map.groups().get(number) != Some(value) {
            batch.put(group_key(*number), value);
        }
    }
    for number in map
        .groups()
        .keys()
        .filter(|n| !old.groups().contains_key(n))
    {
        batch.delete(group_key(*number));
    }
    for (block, bytes) in old.inline_blocks() {
        if map.inline_blocks().get(block) != Some(bytes) {
            batch.put(inline_key(*block), bytes);
        }
    }
    let inline = map.inline_blocks().keys();
    for block in inline.filter(|b| !old.inline_blocks().contains_key(b)) {
        batch.delete(inline_key(*block));
    }
    batch.put(FLUSH_KEY, (map.flush + 1).to_le_bytes());
}
