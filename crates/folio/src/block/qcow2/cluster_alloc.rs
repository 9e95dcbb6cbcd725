//! Guest clusters to host clusters: lookups, and what a write has to do before, with and after its
//! data.
//!
//! All of this runs under the metadata lock and moves no guest data. A write that needs new
//! clusters is in flight from its plan until its end; others that need the same guest clusters wait
//! for it.

use super::super::image_file::ImageFile;
use super::header::Header;
use super::l2_entry::{Entry, Geometry, Mapping, Place};
use super::refcount::{Allocated, Refcounts};
use super::table::{COPIED, Table, TableCache, decode_l1, numbers, read_table};
use crate::base::{Errno, Error, Result};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Range;

/// Memory for L2 tables.
const L2_BYTES_MAX: usize = 32 << 20;
/// Most bytes planned as one write into new clusters.
const RUN_BYTES_MAX: u64 = 64 << 20;

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

/// What a range of the guest's disk is: runs in order, each with its length in bytes.
pub(super) type Extents = SmallVec<[(Mapping, u64); 2]>;

/// Host clusters for a run of guest clusters, not yet in the L2 table.
#[derive(Debug)]
pub(super) struct NewClusters {
    pub(super) first: u64,
    pub(super) clusters: Allocated,
    /// The guest bytes that will lie there: whole units. Those that the write does not give come
    /// from `head` and `tail`.
    pub(super) range: Range<u64>,
    pub(super) head: Extents,
    pub(super) tail: Extents,
    /// The host clusters are the guest clusters' own, where these units held nothing.
    is_reused: bool,
}

/// What became of units to be cleared.
pub(super) enum Cleared {
    /// They are, up to this guest offset.
    Upto(u64),
    /// A write in flight has to end first.
    Wait,
    /// Up to this guest offset they are part of a compressed cluster: it has to be written.
    Compressed(u64),
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
    /// First host cluster and count; the L2 tables in memory have forgotten them, those in the file
    /// may not.
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
            let table =
                decode_l1(*entry, bits).map_err(|error| error.at(format!("L1 index {index}")))?;
            fences.extend(table.map(|(host, _)| host >> bits));
        }
        let geometry = Geometry::new(header, has_backing);
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

    /// What lies at a guest offset, and for how many bytes of `len_bytes` that goes on without a
    /// break.
    pub(super) fn map(
        &mut self,
        file: &dyn ImageFile,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(Mapping, u64)> {
        let geometry = self.geometry;
        let (bits, unit_bits) = (geometry.cluster_bits, geometry.unit_bits());
        let first = offset >> unit_bits;
        let in_unit = offset & (geometry.unit_bytes() - 1);
        let (l1_index, l2_index) = geometry.indices(offset >> bits);
        let in_cluster = first & ((1 << geometry.units_bits()) - 1);
        let left_in_table =
            (geometry.left_in_table(offset >> bits) << geometry.units_bits()) - in_cluster;
        let wanted = (in_unit + len_bytes)
            .div_ceil(geometry.unit_bytes())
            .min(left_in_table);
        let host_end = if geometry.has_data_file {
            u64::MAX
        } else {
            self.refcounts.host_end
        };
        let Some(table) = self.l2_table(file, l1_index)? else {
            return Ok((
                Mapping::Unallocated,
                ((wanted << unit_bits) - in_unit).min(len_bytes),
            ));
        };
        let decode = |index: u64| {
            let entry = l2_index + ((in_cluster + index) >> geometry.units_bits()) as usize;
            let mapping = Mapping::decode(geometry.entry(table, entry), geometry, first + index)?;
            check_host(mapping, host_end, geometry)?;
            Ok(mapping)
        };
        let start = decode(0).map_err(|error: Error| {
            let cluster = offset >> bits << bits;
            error.at(format!(
                "L2 table at {:#x} (guest offset {cluster:#x})",
                table.at
            ))
        })?;
        let mut count = 1;
        if let Mapping::Compressed { .. } = start {
            count = wanted.min((1 << geometry.units_bits()) - in_cluster);
        } else {
            while count < wanted {
                // An entry that is wrong ends the run and is told when it is asked for.
                match decode(count) {
                    Ok(next) if start.goes_on(next, count << unit_bits) => count += 1,
                    _ => break,
                }
            }
        }
        Ok((start, ((count << unit_bits) - in_unit).min(len_bytes)))
    }

    /// All that a range is.
    pub(super) fn extents(&mut self, file: &dyn ImageFile, range: Range<u64>) -> Result<Extents> {
        let mut extents = Extents::new();
        let mut at = range.start;
        while at < range.end {
            let (mapping, count) = self.map(file, at, range.end - at)?;
            extents.push((mapping, count));
            at += count;
        }
        Ok(extents)
    }

    /// Decides how to write at a guest offset; takes clusters if it needs them.
    pub(super) fn plan_write(
        &mut self,
        file: &dyn ImageFile,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Plan> {
        let geometry = self.geometry;
        let bits = geometry.cluster_bits;
        let first = offset >> bits;
        let is_owned = self.owns_table(first)?;
        let (start, run_bytes) = self.map(file, offset, len_bytes)?;
        if let (
            Mapping::Data {
                host,
                is_copied: true,
            },
            true,
        ) = (start, is_owned)
        {
            let in_unit = offset & (geometry.unit_bytes() - 1);
            return Ok(Plan::InPlace {
                host: host + in_unit,
                len_bytes: run_bytes,
            });
        }
        if self.is_in_flight(first..first + 1) {
            return Ok(Plan::Wait);
        }
        let own_place = match start {
            Mapping::ZeroAllocated {
                host,
                is_copied: true,
            }
            | Mapping::Reserved {
                host,
                is_copied: true,
            } if is_owned => {
                // The cluster that the unit lies in.
                Some(host >> bits << bits)
            }
            _ => None,
        };
        let end = offset
            + if own_place.is_some() {
                run_bytes
            } else {
                len_bytes.min(RUN_BYTES_MAX)
            };
        let wanted = (end - (first << bits))
            .div_ceil(1 << bits)
            .min(geometry.left_in_table(first));
        let mut count = match own_place {
            Some(_) => wanted,
            None => self.count_without_place(file, first, wanted)?,
        };
        while self.is_in_flight(first..first + count) {
            count -= 1;
        }
        self.own_table(file, first)?;
        let clusters = match own_place {
            Some(host) => Allocated {
                host,
                count,
                is_fresh: false,
            },
            // What the data file holds there is unknown.
            None if geometry.has_data_file => Allocated {
                host: first << bits,
                count,
                is_fresh: false,
            },
            None => self.refcounts.allocate(file, count)?,
        };
        let end = end.min((first + clusters.count) << bits);
        self.in_flight.push(first..first + clusters.count);
        let mut new = NewClusters {
            first,
            clusters,
            range: offset..end,
            head: Extents::new(),
            tail: Extents::new(),
            is_reused: own_place.is_some(),
        };
        match self.cover_units(file, &mut new) {
            Ok(()) => Ok(Plan::New(new)),
            Err(error) => self.abandon(file, &new).and(Err(error)),
        }
    }

    /// Extends the range of `new` to whole units, and to whole clusters where others would be lost.
    fn cover_units(&mut self, file: &dyn ImageFile, new: &mut NewClusters) -> Result<()> {
        let geometry = self.geometry;
        let given = new.range.clone();
        let mut range = given.start >> geometry.unit_bits() << geometry.unit_bits()
            ..given.end.next_multiple_of(geometry.unit_bytes());
        let last = new.first + new.clusters.count - 1;
        // A plain entry has one unit: that is the whole cluster.
        if geometry.units_bits() != 0 && !new.is_reused {
            if self.holds_data(file, new.first)? {
                range.start = new.first << geometry.cluster_bits;
            }
            if self.holds_data(file, last)? {
                range.end = (last + 1) << geometry.cluster_bits;
            }
        }
        new.head = self.extents(file, range.start..given.start)?;
        new.tail = self.extents(file, given.end..range.end)?;
        new.range = range;
        Ok(())
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
        self.refcounts
            .release(file, first, new.clusters.count, &mut Vec::new())
    }

    /// Makes whole guest units read as zeros (or as anything, for a discard) and gives the space of
    /// whole clusters back.
    pub(super) fn clear(&mut self, file: &dyn ImageFile, range: Range<u64>) -> Result<Cleared> {
        let geometry = self.geometry;
        let bits = geometry.cluster_bits;
        let first = range.start >> bits;
        let count =
            ((range.end - (first << bits)).div_ceil(1 << bits)).min(geometry.left_in_table(first));
        if self.is_in_flight(first..first + count) {
            return Ok(Cleared::Wait);
        }
        let end = range.end.min((first + count) << bits);
        let (l1_index, l2_index) = geometry.indices(first);
        // The bytes of a raw data file become zeros where they are; what is not allocated reads as
        // zeros.
        if geometry.is_raw || (!geometry.has_backing && self.l2_table(file, l1_index)?.is_none()) {
            return Ok(Cleared::Upto(end));
        }
        self.own_table(file, first)?;
        for index in 0..count as usize {
            let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
            let cluster = first + index as u64;
            let old = geometry.entry(table, l2_index + index);
            let place = old.place(geometry, cluster)?;
            let units = geometry.units_in(cluster, &(range.start..end));
            if matches!(place, Place::Compressed { .. }) && units != geometry.all_units() {
                // Those before are done; a unit of it cannot be.
                return Ok(match index {
                    0 => Cleared::Compressed(end.min((first + 1) << bits)),
                    _ => Cleared::Upto(cluster << bits),
                });
            }
            let new = old.with_zeros(geometry, place, units);
            if new != old {
                geometry.set_entry(table, l2_index + index, new);
            }
            if new.place(geometry, cluster)? == Place::Nothing {
                self.release_later(place);
            }
        }
        Ok(Cleared::Upto(end))
    }

    /// Lets go of all that some guest clusters hold, zeros too: they read as the backing file does.
    /// No write is in flight. Returns the first cluster that is left.
    pub(super) fn forget(&mut self, file: &dyn ImageFile, clusters: Range<u64>) -> Result<u64> {
        let geometry = self.geometry;
        let end = clusters
            .end
            .min(clusters.start + geometry.left_in_table(clusters.start));
        let (l1_index, l2_index) = geometry.indices(clusters.start);
        if self.l2_table(file, l1_index)?.is_none() {
            return Ok(end);
        }
        self.own_table(file, clusters.start)?;
        for (index, cluster) in (clusters.start..end).enumerate() {
            let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
            let old = geometry.entry(table, l2_index + index);
            let place = old.place(geometry, cluster)?;
            geometry.set_entry(table, l2_index + index, Entry { word: 0, bitmap: 0 });
            self.release_later(place);
        }
        Ok(end)
    }

    /// Takes a table of this guest cluster into memory, if there is one.
    fn l2_table(&mut self, file: &dyn ImageFile, l1_index: u64) -> Result<Option<&mut Table>> {
        if self.l2.get(l1_index).is_none() {
            let bits = self.geometry.cluster_bits;
            let entry = self.l1.get(l1_index as usize).copied().unwrap_or(0);
            let Some((host, _)) = decode_l1(entry, bits)? else {
                return Ok(None);
            };
            let guest = l1_index << (bits + self.geometry.l2_bits());
            let bytes = read_table(file, host, 1 << bits).map_err(|error| {
                error.at(format!("L2 table at {host:#x} (guest offset {guest:#x})"))
            })?;
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
    fn count_without_place(
        &mut self,
        file: &dyn ImageFile,
        first: u64,
        count_max: u64,
    ) -> Result<u64> {
        let (l1_index, l2_index) = self.geometry.indices(first);
        let geometry = self.geometry;
        let is_owned = self.owns_table(first)?;
        let Some(table) = self.l2_table(file, l1_index)? else {
            return Ok(count_max);
        };
        let has_place = |index: u64| {
            let entry = geometry.entry(table, l2_index + index as usize);
            match entry.place(geometry, first + index) {
                Ok(Place::Cluster { is_copied, .. }) => is_copied && is_owned,
                Ok(_) => false,
                Err(_) => true,
            }
        };
        Ok((1..count_max)
            .find(|index| has_place(*index))
            .unwrap_or(count_max))
    }

    /// Whether a guest cluster has bytes in the file.
    fn holds_data(&mut self, file: &dyn ImageFile, cluster: u64) -> Result<bool> {
        let geometry = self.geometry;
        let (l1_index, l2_index) = geometry.indices(cluster);
        let Some(table) = self.l2_table(file, l1_index)? else {
            return Ok(false);
        };
        let entry = geometry.entry(table, l2_index);
        Ok(entry.holds_data(geometry, entry.place(geometry, cluster)?))
    }

    fn publish(&mut self, file: &dyn ImageFile, new: &NewClusters) -> Result<()> {
        let geometry = self.geometry;
        let (l1_index, l2_index) = geometry.indices(new.first);
        for index in 0..new.clusters.count {
            let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
            let cluster = new.first + index;
            let old = geometry.entry(table, l2_index + index as usize);
            let host = new.clusters.host + (index << geometry.cluster_bits);
            let units = geometry.units_in(cluster, &new.range);
            let entry = old.with_data(geometry, host, units, new.is_reused);
            geometry.set_entry(table, l2_index + index as usize, entry);
            if !new.is_reused {
                self.release_later(old.place(geometry, cluster)?);
            }
        }
        Ok(())
    }

    /// A guest cluster is from now on what lies compressed at this place and of this length.
    pub(super) fn set_compressed(
        &mut self,
        file: &dyn ImageFile,
        cluster: u64,
        (host, len_bytes): (u64, u64),
    ) -> Result<()> {
        let geometry = self.geometry;
        let entry = Entry::compressed(geometry, host, len_bytes)?;
        self.own_table(file, cluster)?;
        let (l1_index, l2_index) = geometry.indices(cluster);
        let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
        let old = geometry.entry(table, l2_index).place(geometry, cluster)?;
        geometry.set_entry(table, l2_index, entry);
        self.release_later(old);
        Ok(())
    }

    fn release_later(&mut self, place: Place) {
        let bits = self.geometry.cluster_bits;
        let release = match place {
            Place::Nothing => return,
            _ if self.geometry.has_data_file => return,
            Place::Cluster { host, .. } => (host >> bits, 1),
            Place::Compressed { host, len_bytes } => {
                let first = host >> bits;
                (first, ((host + len_bytes - 1) >> bits) - first + 1)
            }
        };
        match self.releases.last_mut() {
            Some((first, count)) if *first + *count == release.0 => *count += release.1,
            _ => self.releases.push(release),
        }
    }

    /// Whether a write is making any of these guest clusters.
    pub(super) fn is_in_flight(&self, range: Range<u64>) -> bool {
        self.in_flight
            .iter()
            .any(|other| other.start < range.end && range.start < other.end)
    }

    fn land(&mut self, first: u64) {
        self.in_flight.retain(|range| range.start != first);
    }
}

/// A cluster has to start inside the file.
fn check_host(mapping: Mapping, host_end: u64, geometry: Geometry) -> Result<()> {
    let host = match mapping {
        Mapping::Data { host, .. } => host & !(geometry.cluster_bytes() - 1),
        Mapping::Compressed { host, .. } => host,
        _ => return Ok(()),
    };
    if host >= host_end {
        return Err(Error::corrupt(format!(
            "cluster at {host:#x} lies beyond the end of the file"
        )));
    }
    Ok(())
}
