//! The table: links of clusters, their allocation, and the information sector.

use super::cache::BlockCache;
use super::chain::{Chain, ClusterMap, Run};
use super::layout::{
    BOOT_BYTES, CLUSTER_MIN, Geometry, INFO_FREE_AT, INFO_SIGNATURES, STATE_DIRTY, damaged, u16_at,
    u32_at,
};
use super::width::FatWidth;
use crate::base::{Errno, Result};
use crate::block::Device;
use std::sync::Arc;

/// Bytes of the table that are read at once: whole entries of each width.
const SCAN_BYTES: u64 = 3 << 16;

/// The file system on its device, below files and directories.
pub(crate) struct Disk {
    pub(crate) cache: BlockCache,
    pub(crate) geometry: Geometry,
    /// Read at the first change.
    map: Option<ClusterMap>,
    /// The state byte was marked as dirty by this mount.
    is_marked: bool,
}

impl Disk {
    /// Reads the boot sector.
    ///
    /// # Errors
    ///
    /// EUCLEAN if it is damaged, else the device's errors.
    pub(crate) fn open(device: Arc<dyn Device>) -> Result<Self> {
        if device.len_bytes() < BOOT_BYTES as u64 {
            return Err(damaged("the device is smaller than a boot sector"));
        }
        let mut cache = BlockCache::new(device);
        let mut boot = [0; BOOT_BYTES];
        cache.read(0, &mut boot)?;
        Ok(Self {
            geometry: Geometry::parse(&boot)?,
            cache,
            map: None,
            is_marked: false,
        })
    }

    /// Returns the offset of an entry in the table.
    fn entry_at(&self, cluster: u32) -> u64 {
        u64::from(cluster) * u64::from(self.geometry.width.bits()) / 8
    }

    fn table_at(&self, copy: u8) -> u64 {
        self.geometry.table_offset + u64::from(copy) * self.geometry.table_bytes
    }

    /// Returns the entry of a cluster, whose number is valid.
    fn entry(&mut self, cluster: u32) -> Result<u32> {
        let mut bytes = [0; 4];
        let len = self.geometry.width.entry_bytes();
        let at = self.table_at(self.geometry.table_active) + self.entry_at(cluster);
        self.cache.read(at, &mut bytes[..len])?;
        Ok(decode(self.geometry.width, &bytes, cluster))
    }

    /// Sets the entry of a cluster in all copies of the table.
    fn set_entry(&mut self, cluster: u32, value: u32) -> Result<()> {
        let (width, len) = (self.geometry.width, self.geometry.width.entry_bytes());
        for copy in 0..self.geometry.table_count {
            let at = self.table_at(copy) + self.entry_at(cluster);
            let mut bytes = [0; 4];
            self.cache.read(at, &mut bytes[..len])?;
            // The other bits belong to the neighbor, or are reserved.
            let shift = shift(width, cluster);
            let old = u32::from_le_bytes(bytes) & !(width.end_mark() << shift);
            let new = old | (value & width.end_mark()) << shift;
            self.cache.write(at, &new.to_le_bytes()[..len])?;
        }
        Ok(())
    }

    /// Follows a chain until `len` clusters are known, or to its end.
    ///
    /// # Errors
    ///
    /// EUCLEAN if it loops, leaves the file system, or reaches a free cluster.
    pub(crate) fn follow(&mut self, chain: &mut Chain, len: u32) -> Result<()> {
        let end = self.geometry.cluster_end();
        while chain.len() < len
            && let Some(cluster) = chain.next()
        {
            if !(CLUSTER_MIN..end).contains(&cluster) {
                return Err(damaged("a chain of clusters leaves the file system"));
            }
            let entry = self.entry(cluster)?;
            if entry < CLUSTER_MIN {
                return Err(damaged("a chain of clusters reaches a free one"));
            }
            let next = (entry < self.geometry.width.end_min()).then_some(entry);
            if !chain.step(cluster, next) {
                return Err(damaged("a chain of clusters loops"));
            }
        }
        Ok(())
    }

    /// Returns the map of clusters, after reading the table.
    fn map(&mut self) -> Result<&mut ClusterMap> {
        if self.map.is_none() {
            self.map = Some(self.read_map()?);
        }
        Ok(self.map.as_mut().ok_or(Errno::IO)?)
    }

    fn read_map(&mut self) -> Result<ClusterMap> {
        let (width, end) = (self.geometry.width, self.geometry.cluster_end());
        let mut map = ClusterMap::new(end);
        let chunk_entries = (SCAN_BYTES * 8 / u64::from(width.bits())) as u32;
        let mut bytes = vec![0; SCAN_BYTES.min(self.geometry.table_bytes) as usize];
        for first in (0..end).step_by(chunk_entries as usize) {
            let skipped = self.entry_at(first);
            let len = SCAN_BYTES.min(self.geometry.table_bytes - skipped) as usize;
            let at = self.table_at(self.geometry.table_active) + skipped;
            self.cache.read_data(at, &mut bytes[..len])?;
            for index in 0..chunk_entries.min(end - first) {
                let at = self.entry_at(index) as usize;
                let stop = at + width.entry_bytes();
                if first + index >= CLUSTER_MIN && decode(width, &bytes[at..stop], index) == 0 {
                    map.release(first + index);
                }
            }
        }
        Ok(map)
    }

    /// Returns the number of free clusters.
    pub(crate) fn free_count(&mut self) -> Result<u32> {
        Ok(self.map()?.free_count())
    }

    /// Adds `count` clusters to a chain. Their content is undefined.
    ///
    /// # Errors
    ///
    /// ENOSPC; nothing is changed then.
    pub(crate) fn extend(&mut self, chain: &mut Chain, count: u32) -> Result<()> {
        self.follow(chain, u32::MAX)?;
        let last = chain.last();
        let near = last.map(|last| last + 1);
        let taken = self.map()?.take(count, near).ok_or(Errno::NOSPC)?;
        // From the end on, so that the chain on the disk is always complete.
        let mut next = self.geometry.width.end_mark();
        for run in taken.iter().rev() {
            for cluster in (run.cluster..run.cluster + run.count).rev() {
                self.set_entry(cluster, next)?;
                next = cluster;
            }
        }
        if let Some(last) = last
            && count > 0
        {
            self.set_entry(last, next)?;
        }
        taken.into_iter().for_each(|run| chain.push(run));
        Ok(())
    }

    /// Frees the clusters of a chain behind the first `len`.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a damaged chain, of which the part before the damage is freed.
    pub(crate) fn cut(&mut self, chain: &mut Chain, len: u32) -> Result<()> {
        self.map()?;
        let followed = self.follow(chain, u32::MAX);
        let had = chain.len();
        let removed = chain.cut(len);
        if let Some(last) = chain.last()
            && (had > len || followed.is_err())
        {
            self.set_entry(last, self.geometry.width.end_mark())?;
        }
        for Run { cluster, count } in removed {
            for cluster in cluster..cluster + count {
                self.set_entry(cluster, 0)?;
                self.map()?.release(cluster);
            }
        }
        followed
    }

    /// Marks the file system as changed by a mount. Linux: `fat_set_state`.
    pub(crate) fn mark_dirty(&mut self) -> Result<()> {
        let mut state = [0];
        self.cache.read(self.geometry.state_offset, &mut state)?;
        if !self.is_marked && state[0] & STATE_DIRTY == 0 {
            state[0] |= STATE_DIRTY;
            self.cache.write(self.geometry.state_offset, &state)?;
            self.is_marked = true;
        }
        Ok(())
    }

    /// Undoes [`Disk::mark_dirty`]. A file system that was dirty before stays so.
    fn clear_mark(&mut self) -> Result<()> {
        let mut state = [0];
        self.cache.read(self.geometry.state_offset, &mut state)?;
        if std::mem::take(&mut self.is_marked) {
            state[0] &= !STATE_DIRTY;
            self.cache.write(self.geometry.state_offset, &state)?;
        }
        Ok(())
    }

    /// Writes all changes to the device; with `is_last`, also marks the file system as clean.
    pub(crate) fn flush(&mut self, is_last: bool) -> Result<()> {
        self.write_info()?;
        if is_last {
            self.clear_mark()?;
        }
        self.cache.flush()?;
        self.cache.device().flush()
    }

    /// Writes the number of free clusters to the information sector, if it was counted.
    fn write_info(&mut self) -> Result<()> {
        let (Some(offset), Some(map)) = (self.geometry.info_offset, &self.map) else {
            return Ok(());
        };
        let mut fields = [0; 8];
        fields[..4].copy_from_slice(&map.free_count().to_le_bytes());
        fields[4..].copy_from_slice(&map.next().to_le_bytes());
        let mut info = [0; BOOT_BYTES];
        self.cache.read(offset, &mut info)?;
        let is_valid = |(at, bytes): &(usize, &[u8; 4])| info[*at..].starts_with(*bytes);
        if INFO_SIGNATURES.iter().all(is_valid) && info[INFO_FREE_AT..][..8] != fields {
            self.cache.write(offset + INFO_FREE_AT as u64, &fields)?;
        }
        Ok(())
    }
}

/// Returns the bits before an entry in the first byte that has some of its own.
fn shift(width: FatWidth, index: u32) -> u32 {
    if width == FatWidth::Fat12 {
        index % 2 * 4
    } else {
        0
    }
}

/// Decodes entry `index`, which begins in the first of `bytes`.
fn decode(width: FatWidth, bytes: &[u8], index: u32) -> u32 {
    let value = if width == FatWidth::Fat32 {
        u32_at(bytes, 0)
    } else {
        u16_at(bytes, 0).into()
    };
    value >> shift(width, index) & width.end_mark()
}
