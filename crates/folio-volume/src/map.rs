//! The map in memory: the place of every stored block of a volume.
//!
//! A volume's map takes about 0.3 KB for each 256 KiB stored. It is loaded when the volume is
//! opened, so a read costs requests for data only.

use crate::format::{
    BLOCK_BYTES, BlockRef, FORMAT_VERSION, GROUP_BLOCKS, Group, Key, Place, SIZES, SegmentId,
    VolumeMeta, WriterRecord, decode_group, encode_group,
};
use crate::place::StorePlace;
use bytes::Bytes;
use folio::{Error, Result};
use std::collections::{BTreeMap, HashMap};

/// The place of every stored block at one flush.
#[derive(Clone)]
pub(crate) struct VolumeMap {
    pub(crate) meta: VolumeMeta,
    pub(crate) writer: Option<WriterRecord>,
    /// The number of the flush that made this state.
    pub(crate) flush: u64,
    groups: BTreeMap<u64, Box<[u8]>>,
    inline: BTreeMap<u64, Bytes>,
}

/// The content of a map.
pub(crate) enum MapState {
    /// A volume.
    Volume(Box<VolumeMap>),
    /// The rest of a volume whose deletion has begun.
    Deleted,
    /// Nothing: the creation of the volume was interrupted.
    Empty,
}

impl MapState {
    /// Returns the map of the volume.
    ///
    /// # Errors
    ///
    /// ENOENT if there is none.
    pub(crate) fn volume(self, place: &StorePlace) -> Result<VolumeMap> {
        match self {
            Self::Volume(map) => Ok(*map),
            Self::Deleted => Err(place.half_deleted()),
            Self::Empty => Err(place.missing()),
        }
    }
}

/// Collects the entries of a map.
#[derive(Default)]
pub(crate) struct MapLoader {
    meta: Option<VolumeMeta>,
    writer: Option<WriterRecord>,
    flush: u64,
    groups: BTreeMap<u64, Box<[u8]>>,
    inline: BTreeMap<u64, Bytes>,
}

impl MapLoader {
    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// EUCLEAN for an entry that no volume has.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let json = |e: serde_json::Error| Error::corrupt("map: invalid description").caused_by(e);
        match Key::parse(key)? {
            Key::Meta => self.meta = Some(serde_json::from_slice(value).map_err(json)?),
            Key::Writer => self.writer = Some(serde_json::from_slice(value).map_err(json)?),
            Key::Flush => {
                let number = <[u8; 8]>::try_from(value)
                    .map_err(|_| Error::corrupt("map: invalid flush number"))?;
                self.flush = u64::from_le_bytes(number);
            }
            Key::Group(group) => {
                self.groups.insert(group, value.into());
            }
            Key::Inline(block) => {
                if value.len() != BLOCK_BYTES {
                    return Err(Error::corrupt(format!(
                        "map: invalid length of block {block}"
                    )));
                }
                self.inline.insert(block, Bytes::copy_from_slice(value));
            }
        }
        Ok(())
    }

    /// Returns the content of the map.
    ///
    /// # Errors
    ///
    /// EUCLEAN for entries that contradict each other; EOPNOTSUPP for another version.
    pub(crate) fn finish(self) -> Result<MapState> {
        let Some(meta) = self.meta else {
            // A creation writes the description with its first commit, and a deletion removes it.
            let is_empty = self.writer.is_none() && self.groups.is_empty();
            return Ok(if is_empty && self.inline.is_empty() {
                MapState::Empty
            } else {
                MapState::Deleted
            });
        };
        if meta.format != FORMAT_VERSION {
            return Err(Error::unsupported(format!(
                "volume has format version {}; this program reads version {FORMAT_VERSION}",
                meta.format
            )));
        }
        // Offsets within the disk, and the next flush number, must not overflow.
        if !SIZES.contains(&meta.size_bytes) {
            let size_bytes = meta.size_bytes;
            let text = format!("map: invalid size of {size_bytes} bytes");
            return Err(Error::corrupt(text));
        }
        if self.flush == u64::MAX {
            return Err(Error::corrupt("map: invalid flush number"));
        }
        let blocks = meta.size_bytes.div_ceil(BLOCK_BYTES as u64);
        let map = VolumeMap {
            meta,
            writer: self.writer,
            flush: self.flush,
            groups: self.groups,
            inline: self.inline,
        };
        for (&number, value) in &map.groups {
            // Also one without blocks: its number leads to the next block that is stored.
            if number >= blocks.div_ceil(GROUP_BLOCKS) {
                return Err(Error::corrupt(format!("map: invalid group {number}")));
            }
            let group = decode_group(value, map.meta.origins.len())
                .map_err(|e| e.at(format!("group {number}")))?;
            for (n, block) in group.iter().enumerate() {
                let Some(stored) = block else { continue };
                let block = number * GROUP_BLOCKS + n as u64;
                let is_missing = stored.place == Place::Inline && !map.inline.contains_key(&block);
                if block >= blocks || is_missing {
                    return Err(Error::corrupt(format!(
                        "map: invalid entry of block {block}"
                    )));
                }
            }
        }
        Ok(MapState::Volume(Box::new(map)))
    }
}

impl VolumeMap {
    /// Returns the map of a new, empty volume.
    pub(crate) fn empty(meta: VolumeMeta) -> Self {
        Self {
            meta,
            writer: None,
            flush: 0,
            groups: BTreeMap::new(),
            inline: BTreeMap::new(),
        }
    }

    /// Returns the references of a group.
    pub(crate) fn group(&self, group: u64) -> Group {
        self.groups
            .get(&group)
            .and_then(|value| decode_group(value, self.meta.origins.len()).ok())
            .unwrap_or([None; GROUP_BLOCKS as usize])
    }

    /// Returns the references of `count` blocks from `first` on.
    pub(crate) fn blocks(&self, first: u64, count: u64) -> Vec<Option<BlockRef>> {
        let mut found = Vec::with_capacity(count as usize);
        let mut block = first;
        while block < first + count {
            let group = self.group(block / GROUP_BLOCKS);
            let start = block % GROUP_BLOCKS;
            let end = (start + first + count - block).min(GROUP_BLOCKS);
            found.extend_from_slice(&group[start as usize..end as usize]);
            block += end - start;
        }
        found
    }

    /// Returns the bytes of a block that is stored in the map.
    pub(crate) fn inline(&self, block: u64) -> Option<Bytes> {
        self.inline.get(&block).cloned()
    }

    /// Returns all blocks that are stored in the map.
    pub(crate) fn inline_blocks(&self) -> &BTreeMap<u64, Bytes> {
        &self.inline
    }

    /// Sets the references of a group.
    pub(crate) fn set_group(&mut self, number: u64, group: &Group) {
        let value = encode_group(group);
        if value.is_empty() {
            self.groups.remove(&number);
        } else {
            self.groups.insert(number, value.into());
        }
    }

    /// Sets or removes the bytes of a block in the map.
    pub(crate) fn set_inline(&mut self, block: u64, bytes: Option<Bytes>) {
        match bytes {
            Some(bytes) => self.inline.insert(block, bytes),
            None => self.inline.remove(&block),
        };
    }

    /// Returns the groups and their stored values.
    pub(crate) fn groups(&self) -> &BTreeMap<u64, Box<[u8]>> {
        &self.groups
    }

    /// Returns the first group at or behind `group` that has a stored block.
    pub(crate) fn next_group(&self, group: u64) -> Option<u64> {
        self.groups.range(group..).next().map(|(number, _)| *number)
    }

    /// Returns the number of used blocks of each segment.
    pub(crate) fn segment_use(&self) -> HashMap<SegmentId, u32> {
        let mut used = HashMap::new();
        for &number in self.groups.keys() {
            for block in self.group(number).into_iter().flatten() {
                if let Place::Segment { segment, .. } = block.place {
                    *used.entry(segment).or_default() += 1;
                }
            }
        }
        used
    }

    /// Returns the number of stored blocks.
    pub(crate) fn stored_blocks(&self) -> u64 {
        self.groups
            .keys()
            .map(|&number| self.group(number).iter().flatten().count() as u64)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FLUSH_KEY, META_KEY, group_key};

    /// Loads a map of a disk of this size, with one more entry.
    fn load(size_bytes: u64, key: &[u8], value: &[u8]) -> Result<MapState> {
        let meta = VolumeMeta {
            format: FORMAT_VERSION,
            id: uuid::Uuid::nil(),
            size_bytes,
            origins: vec!["vol".to_owned()],
            parent_checkpoint: None,
        };
        let mut loader = MapLoader::default();
        loader.add(META_KEY, &meta.to_json()?)?;
        loader.add(key, value)?;
        loader.finish()
    }

    #[test]
    fn map_beyond_the_disk_is_refused() {
        let flush = |number: u64| number.to_le_bytes();
        assert!(load(1 << 60, FLUSH_KEY, &flush(1)).is_ok());
        for size_bytes in [0, (1 << 60) + 1, u64::MAX] {
            assert!(load(size_bytes, FLUSH_KEY, &flush(1)).is_err());
        }
        // The next flush would have number 0.
        assert!(load(4096, FLUSH_KEY, &flush(u64::MAX)).is_err());
        // Groups without blocks.
        assert!(load(65 * 4096, &group_key(1), b"").is_ok());
        for group in [2, u64::MAX / 64, u64::MAX] {
            assert!(load(65 * 4096, &group_key(group), b"").is_err());
        }
    }
}
