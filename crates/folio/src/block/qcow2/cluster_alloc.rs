//! Guest clusters to host clusters: lookups, and what a write has to do before, with and after its data.
//!
//! All of this runs under the metadata lock and moves no guest data. A write that needs new clusters is in
//! flight from its plan until its end; others that need the same guest clusters wait for it.

use super::super::image_file::ImageFile;
use super::header::Header;
use super::refcount::{Allocated, Refcounts};
use super::table::{COPIED, Mapping, Table, TableCache, ZERO, decode_l1, numbers, read_table};
use crate::base::{Errno, Error, Result};
use std::collections::BTreeSet;
use std::ops::Range;

/// Memory for L2 tables.
const L2_BYTES_MAX: usize = 32 << 20;
/// Most bytes planned as one write into new clusters.
const RUN_BYTES_MAX: u64 = 64 << 20;

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
}

impl Geometry {
    /// Bytes in a cluster.
    pub(super) fn cluster_bytes(self) -> u64 {
        1 << self.cluster_bits
    }

    fn l2_bits(self) -> u32 {
        self.cluster_bits - 3
    }

    /// L1 index and L2 index of a guest cluster.
    fn indices(self, cluster: u64) -> (u64, usize) {
        (cluster >> self.l2_bits(), (cluster & ((1 << self.l2_bits()) - 1)) as usize)
    }

    /// Guest clusters from `cluster` to the end of its L2 table.
    fn left_in_table(self, cluster: u64) -> u64 {
        let entries = 1 << self.l2_bits();
        entries - (cluster & (entries - 1))
    }
}

/// What a write does next.
#[derive(Debug)]
pub(super) enum Plan {
    /// Another write is making these clusters; ask again when one has ended.
    Wait,
    /// The clusters are there: write `len_bytes` at `host`.
    InPlace { host: u64, len_bytes: u64 },
    /// Fill new clusters, then call [`Metadata::finish`].
    New(NewClusters),
}

/// Host clusters for a run of guest clusters, not yet in the L2 table.
#[derive(Debug)]
pub(super) struct NewClusters {
    pub(super) first: u64,
    pub(super) clusters: Allocated,
    /// What the first and last guest cluster were: where bytes come from that the write does not cover.
    pub(super) first_was: Mapping,
    pub(super) last_was: Mapping,
    /// The host clusters are the guest clusters' own, which counted as zeros.
    is_reused: bool,
}

/// A reference that is given up once the L2 tables no longer hold it.
pub(super) type Release = (u64, u64);

/// All tables and what is in motion.
pub(super) struct Metadata {
    pub(super) geometry: Geometry,
    pub(super) l1: Vec<u64>,
    pub(super) dirty_l1: BTreeSet<usize>,
    pub(super) l2: TableCache,
    pub(super) refcounts: Refcounts,
    in_flight: Vec<Range<u64>>,
    /// First host cluster and count; the L2 tables in memory have forgotten them, those in the file may not.
    pub(super) releases: Vec<Release>,
}

impl Metadata {
    /// Reads L1 and refcount table.
    pub(super) fn read(file: &dyn ImageFile, header: &Header, has_backing: bool) -> Result<Self> {
        let bits = header.cluster_bits;
        let l1_bytes = read_table(file, header.l1_offset, header.l1_entries * 8)
            .map_err(|error| error.at(format!("L1 table at {:#x}", header.l1_offset)))?;
        let l1: Vec<u64> = numbers(&l1_bytes).collect();
        let mut fences = vec![0];
        let first = header.l1_offset >> bits;
        fences.extend(first..first + (l1_bytes.len() as u64).div_ceil(1 << bits));
        for (index, entry) in l1.iter().enumerate() {
            let table = decode_l1(*entry, bits).map_err(|error| error.at(format!("L1 index {index}")))?;
            fences.extend(table.map(|(host, _)| host >> bits));
        }
        let geometry = Geometry {
            cluster_bits: bits,
            version: header.version,
            len_bytes: header.len_bytes,
            has_backing,
            has_data_file: header.data_file.is_some(),
            is_raw: header.data_file.as_ref().is_some_and(|data| data.is_raw),
        };
        Ok(Self {
            geometry,
            l1,
            dirty_l1: BTreeSet::new(),
            l2: TableCache::new(1 << bits, L2_BYTES_MAX),
            refcounts: Refcounts::read(file, header, fences)?,
            in_flight: Vec::new(),
            releases: Vec::new(),
        })
    }

    /// Drops tables that are in the file as well until the limits hold; whether they now do.
    pub(super) fn shrink(&mut self) -> bool {
        self.l2.shrink() & self.refcounts.blocks.shrink()
    }

    /// Whether the file lacks anything.
    pub(super) fn is_dirty(&self) -> bool {
        self.l2.is_dirty()
            || self.refcounts.blocks.is_dirty()
            || self.refcounts.is_table_dirty
            || self.refcounts.is_table_moved
            || !self.dirty_l1.is_empty()
            || !self.releases.is_empty()
    }

    /// What lies at a guest offset, and for how many bytes of `len_bytes` that goes on without a break.
    pub(super) fn map(
        &mut self,
        file: &dyn ImageFile,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(Mapping, u64)> {
        let geometry = self.geometry;
        let bits = geometry.cluster_bits;
        let first = offset >> bits;
        let in_cluster = offset & (geometry.cluster_bytes() - 1);
        let (l1_index, l2_index) = geometry.indices(first);
        let wanted = (in_cluster + len_bytes).div_ceil(1 << bits).min(geometry.left_in_table(first));
        let host_end = if geometry.has_data_file { u64::MAX } else { self.refcounts.host_end };
        let Some(table) = self.l2_table(file, l1_index)? else {
            return Ok((Mapping::Unallocated, ((wanted << bits) - in_cluster).min(len_bytes)));
        };
        let table_at = table.at;
        let place = |error: Error, cluster: u64| {
            error.at(format!("L2 table at {table_at:#x} (guest offset {:#x})", cluster << bits))
        };
        let decode = |index: u64| {
            let mapping = Mapping::decode(table.entry(l2_index + index as usize), geometry, first + index)?;
            check_host(mapping, host_end)?;
            Ok(mapping)
        };
        let start = decode(0).map_err(|error| place(error, first))?;
        let mut count = 1;
        while count < wanted && !matches!(start, Mapping::Compressed { .. }) {
            // An entry that is wrong ends the run and is told when it is asked for.
            match decode(count) {
                Ok(next) if follows(start, next, count << bits) => count += 1,
                _ => break,
            }
        }
        Ok((start, ((count << bits) - in_cluster).min(len_bytes)))
    }

    /// Decides how to write at a guest offset; takes clusters if it needs them.
    pub(super) fn plan_write(&mut self, file: &dyn ImageFile, offset: u64, len_bytes: u64) -> Result<Plan> {
        let geometry = self.geometry;
        let bits = geometry.cluster_bits;
        let first = offset >> bits;
        let in_cluster = offset & (geometry.cluster_bytes() - 1);
        let is_owned = self.owns_table(first)?;
        let (start, run_bytes) = self.map(file, offset, len_bytes)?;
        if let (Mapping::Data { host, is_copied: true }, true) = (start, is_owned) {
            return Ok(Plan::InPlace { host: host + in_cluster, len_bytes: run_bytes });
        }
        if self.is_in_flight(first..first + 1) {
            return Ok(Plan::Wait);
        }
        let is_reused = matches!(start, Mapping::ZeroAllocated { is_copied: true, .. }) && is_owned;
        let wanted = (in_cluster + len_bytes.min(RUN_BYTES_MAX)).div_ceil(1 << bits);
        let mut count = if is_reused {
            (in_cluster + run_bytes).div_ceil(1 << bits)
        } else {
            self.count_without_place(file, first, wanted.min(geometry.left_in_table(first)))?
        };
        while self.is_in_flight(first..first + count) {
            count -= 1;
        }
        self.own_table(file, first)?;
        let clusters = match start {
            Mapping::ZeroAllocated { host, .. } if is_reused => Allocated { host, count, is_fresh: false },
            // What the data file holds there is unknown.
            _ if geometry.has_data_file => Allocated { host: first << bits, count, is_fresh: false },
            _ => self.refcounts.allocate(file, count)?,
        };
        let last = first + clusters.count - 1;
        self.in_flight.push(first..last + 1);
        let last_was = self.map(file, last << bits, 1);
        let last_was = match last_was {
            Ok((mapping, _)) => mapping,
            Err(error) => {
                let new = NewClusters { first, clusters, first_was: start, last_was: start, is_reused };
                self.abandon(file, &new)?;
                return Err(error);
            }
        };
        Ok(Plan::New(NewClusters { first, clusters, first_was: start, last_was, is_reused }))
    }

    /// The new clusters hold their data: guests see them from now on.
    pub(super) fn finish(&mut self, file: &dyn ImageFile, new: &NewClusters) -> Result<()> {
        if let Err(error) = self.publish(file, new) {
            self.abandon(file, new)?;
            return Err(error);
        }
        self.land(new.first);
        Ok(())
    }

    /// The data could not be written: the clusters are free again and nothing has changed.
    pub(super) fn abandon(&mut self, file: &dyn ImageFile, new: &NewClusters) -> Result<()> {
        self.land(new.first);
        if new.is_reused || self.geometry.has_data_file {
            return Ok(());
        }
        let first = new.clusters.host >> self.geometry.cluster_bits;
        self.refcounts.release(file, first, new.clusters.count, &mut Vec::new())
    }

    /// Makes whole guest clusters read as zeros (or as anything, for a discard) and gives their space back.
    /// Returns how many of `count` were done, or nothing if a write in flight has to end first.
    pub(super) fn clear(&mut self, file: &dyn ImageFile, first: u64, count: u64) -> Result<Option<u64>> {
        let geometry = self.geometry;
        let count = count.min(geometry.left_in_table(first));
        if self.is_in_flight(first..first + count) {
            return Ok(None);
        }
        // Without a backing file, what is not allocated reads as zeros.
        let entry = if geometry.has_backing { ZERO } else { 0 };
        let (l1_index, l2_index) = geometry.indices(first);
        if entry == 0 && self.l2_table(file, l1_index)?.is_none() {
            return Ok(Some(count));
        }
        self.own_table(file, first)?;
        for index in 0..count as usize {
            let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
            let old = table.entry(l2_index + index);
            let mapping = Mapping::decode(old, geometry, first + index as u64)?;
            // The bytes of a raw data file become zeros where they are.
            let stays = geometry.is_raw && matches!(mapping, Mapping::Data { .. });
            if mapping != Mapping::Zero && old != entry && !stays {
                table.set_entry(l2_index + index, entry);
                self.release_later(mapping);
            }
        }
        Ok(Some(count))
    }

    /// Takes a table of this guest cluster into memory, if there is one.
    fn l2_table(&mut self, file: &dyn ImageFile, l1_index: u64) -> Result<Option<&mut Table>> {
        if self.l2.get(l1_index).is_none() {
            let bits = self.geometry.cluster_bits;
            let entry = self.l1.get(l1_index as usize).copied().unwrap_or(0);
            let Some((host, _)) = decode_l1(entry, bits)? else { return Ok(None) };
            let guest = l1_index << (bits + self.geometry.l2_bits());
            let bytes = read_table(file, host, 1 << bits)
                .map_err(|error| error.at(format!("L2 table at {host:#x} (guest offset {guest:#x})")))?;
            return Ok(Some(self.l2.insert_clean(l1_index, host, bytes)));
        }
        Ok(self.l2.get(l1_index))
    }

    fn owns_table(&self, cluster: u64) -> Result<bool> {
        let (l1_index, _) = self.geometry.indices(cluster);
        let entry = self.l1.get(l1_index as usize).copied().unwrap_or(0);
        Ok(decode_l1(entry, self.geometry.cluster_bits)?.is_some_and(|(_, is_copied)| is_copied))
    }

    /// Makes sure that the L2 table of a guest cluster exists and is no snapshot's.
    fn own_table(&mut self, file: &dyn ImageFile, cluster: u64) -> Result<()> {
        if self.owns_table(cluster)? {
            return Ok(());
        }
        let bits = self.geometry.cluster_bits;
        let (l1_index, _) = self.geometry.indices(cluster);
        let shared = self.l2_table(file, l1_index)?.map(|table| table.at);
        let new = self.refcounts.allocate(file, 1)?;
        match (shared, self.l2.get(l1_index)) {
            (Some(old), Some(table)) => {
                table.move_to(new.host);
                self.releases.push((old >> bits, 1));
            }
            _ => {
                self.l2.insert_new(l1_index, new.host, 1 << bits);
            }
        }
        let slot = self.l1.get_mut(l1_index as usize).ok_or(Errno::IO)?;
        *slot = new.host | COPIED;
        self.dirty_l1.insert(l1_index as usize);
        Ok(())
    }

    /// How many guest clusters in a row have no cluster that could be written in place.
    fn count_without_place(&mut self, file: &dyn ImageFile, first: u64, count_max: u64) -> Result<u64> {
        let (l1_index, l2_index) = self.geometry.indices(first);
        let geometry = self.geometry;
        let is_owned = self.owns_table(first)?;
        let Some(table) = self.l2_table(file, l1_index)? else { return Ok(count_max) };
        let has_place = |index: u64| match Mapping::decode(
            table.entry(l2_index + index as usize),
            geometry,
            first + index,
        ) {
            Ok(Mapping::Data { is_copied, .. } | Mapping::ZeroAllocated { is_copied, .. }) => {
                is_copied && is_owned
            }
            Ok(_) => false,
            Err(_) => true,
        };
        Ok((1..count_max).find(|index| has_place(*index)).unwrap_or(count_max))
    }

    fn publish(&mut self, file: &dyn ImageFile, new: &NewClusters) -> Result<()> {
        let geometry = self.geometry;
        let (l1_index, l2_index) = geometry.indices(new.first);
        for index in 0..new.clusters.count {
            let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
            let old = table.entry(l2_index + index as usize);
            let host = new.clusters.host + (index << geometry.cluster_bits);
            table.set_entry(l2_index + index as usize, host | COPIED);
            if !new.is_reused {
                self.release_later(Mapping::decode(old, geometry, new.first + index)?);
            }
        }
        Ok(())
    }

    fn release_later(&mut self, mapping: Mapping) {
        let bits = self.geometry.cluster_bits;
        let release = match mapping {
            Mapping::Unallocated | Mapping::Zero => return,
            _ if self.geometry.has_data_file => return,
            Mapping::Data { host, .. } | Mapping::ZeroAllocated { host, .. } => (host >> bits, 1),
            Mapping::Compressed { host, len_bytes } => {
                let first = host >> bits;
                (first, ((host + len_bytes - 1) >> bits) - first + 1)
            }
        };
        match self.releases.last_mut() {
            Some((first, count)) if *first + *count == release.0 => *count += release.1,
            _ => self.releases.push(release),
        }
    }

    fn is_in_flight(&self, range: Range<u64>) -> bool {
        self.in_flight.iter().any(|other| other.start < range.end && range.start < other.end)
    }

    fn land(&mut self, first: u64) {
        self.in_flight.retain(|range| range.start != first);
    }
}

/// A mapping's bytes have to start inside the file.
fn check_host(mapping: Mapping, host_end: u64) -> Result<()> {
    match mapping {
        Mapping::Data { host, .. } | Mapping::Compressed { host, .. } if host >= host_end => {
            Err(Error::corrupt(format!("cluster at {host:#x} lies beyond the end of the file")))
        }
        _ => Ok(()),
    }
}

/// Whether `next`, `distance` bytes behind `start`, carries on the same run.
fn follows(start: Mapping, next: Mapping, distance: u64) -> bool {
    match (start, next) {
        (Mapping::Data { host, is_copied }, Mapping::Data { host: next, is_copied: same })
        | (
            Mapping::ZeroAllocated { host, is_copied },
            Mapping::ZeroAllocated { host: next, is_copied: same },
        ) => is_copied == same && next == host + distance,
        (Mapping::Unallocated, Mapping::Unallocated) | (Mapping::Zero, Mapping::Zero) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_on_while_the_file_does() {
        let data = |host, is_copied| Mapping::Data { host, is_copied };
        assert!(follows(data(0x10000, true), data(0x30000, true), 0x20000));
        assert!(!follows(data(0x10000, true), data(0x30000, false), 0x20000));
        assert!(!follows(data(0x10000, true), data(0x20000, true), 0x20000));
        assert!(follows(Mapping::Zero, Mapping::Zero, 0x10000));
        assert!(!follows(Mapping::Zero, Mapping::Unallocated, 0x10000));
    }
}
