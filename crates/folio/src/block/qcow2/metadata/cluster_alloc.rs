//! Guest clusters to host clusters: lookups, and the steps of a write before and after its data.
//!
//! All of this runs under the metadata lock and transfers no guest data. A write that needs new
//! clusters is in flight from its plan until its end; other writes to the same guest clusters wait
//! for it.

use super::published::Published;
use super::refcounts::{Allocated, Refcounts};
use super::table_cache::{MetadataTable, TableCache};
use crate::base::sync::atomic::Ordering;
use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::header::Header;
use crate::block::qcow2::layout::l2_entry::{ClusterDescriptor, Geometry, L2Entry, Mapping};
use crate::block::qcow2::layout::table::{COPIED, decode_l1, numbers, read_table};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Memory for L2 tables.
const L2_BYTES_MAX: usize = 32 << 20;
/// Largest size in bytes of one write into new clusters.
const RUN_BYTES_MAX: u64 = 64 << 20;

/// The next step of a write.
#[derive(Debug)]
pub(crate) enum WritePlan {
    /// Another write to these clusters is in flight; plan again when one has ended.
    Wait,
    /// The clusters exist: write `len_bytes` at `host`.
    InPlace { host: u64, len_bytes: u64 },
    /// Fill new clusters, then call [`Metadata::finish`].
    New(NewClusters),
    /// Nothing is to be written for so many bytes.
    Skip { len_bytes: u64 },
}

/// The states of a range of guest bytes: runs in order, each with its length in bytes.
pub(crate) type MappingRuns = SmallVec<[(Mapping, u64); 2]>;

/// Host clusters for a run of guest clusters, not yet in the L2 table.
#[derive(Debug)]
pub(crate) struct NewClusters {
    pub(crate) first: u64,
    pub(crate) clusters: Allocated,
    /// The guest bytes to be stored there: whole units. `head` and `tail` describe those that the
    /// write does not cover.
    pub(crate) range: Range<u64>,
    pub(crate) head: MappingRuns,
    pub(crate) tail: MappingRuns,
    /// The host clusters were the guest clusters' own already, without data in these units.
    is_reused: bool,
}

/// The result of a step of [`Metadata::clear`].
pub(crate) enum ClearResult {
    /// The units are cleared up to this guest offset.
    Upto(u64),
    /// A write in flight must end first.
    Wait,
    /// Up to this guest offset the units are part of a compressed cluster, which must be written.
    Compressed(u64),
}

/// References to drop once no L2 table in the file holds them: first host cluster and count.
pub(crate) type Release = (u64, u64);

/// All tables in memory, and the writes in flight.
pub(crate) struct Metadata {
    pub(crate) geometry: Geometry,
    pub(crate) l1: Vec<u64>,
    pub(crate) dirty_l1: BTreeSet<usize>,
    pub(crate) l2: TableCache,
    pub(crate) refcounts: Refcounts,
    in_flight: Vec<Range<u64>>,
    /// No L2 table in memory holds these references; those in the file may.
    pub(crate) releases: Vec<Release>,
    /// What threads know without the lock.
    pub(crate) published: Arc<Published>,
}

impl Metadata {
    /// Reads the L1 table and the refcount table.
    ///
    /// # Errors
    ///
    /// EUCLEAN for tables that contradict the format, else the file's errors.
    pub(crate) fn read(file: &dyn ImageFile, header: &Header, has_backing: bool) -> Result<Self> {
        let bits = header.cluster_bits;
        let l1_bytes = read_table(file, header.l1_offset, header.l1_entries * 8)
            .map_err(|error| error.at(format!("L1 table at {:#x}", header.l1_offset)))?;
        let l1: Vec<u64> = numbers(&l1_bytes).collect();
        let mut metadata_clusters = vec![0];
        let first = header.l1_offset >> bits;
        metadata_clusters.extend(first..first + (l1_bytes.len() as u64).div_ceil(1 << bits));
        for (index, entry) in l1.iter().enumerate() {
            let table =
                decode_l1(*entry, bits).map_err(|error| error.at(format!("L1 index {index}")))?;
            metadata_clusters.extend(table.map(|(host, _)| host >> bits));
        }
        let geometry = Geometry::new(header, has_backing);
        let published = Arc::new(Published::new(geometry.len_bytes.div_ceil(1 << bits)));
        Ok(Self {
            geometry,
            l1,
            dirty_l1: BTreeSet::new(),
            l2: TableCache::new(1 << bits, L2_BYTES_MAX, Arc::clone(&published)),
            refcounts: Refcounts::read(file, header, metadata_clusters, Arc::clone(&published))?,
            in_flight: Vec::new(),
            releases: Vec::new(),
            published,
        })
    }

    /// Notes that a mapping is about to change.
    fn begin_change(&self) {
        self.published.holds_mappings.store(true, Ordering::Release);
    }

    /// Ends a write-back that has succeeded.
    pub(crate) fn end_write_back(&self) {
        let holds_mappings = self.l2.is_dirty() || !self.dirty_l1.is_empty();
        self.published
            .holds_mappings
            .store(holds_mappings, Ordering::Release);
    }

    /// Evicts clean tables until the limits hold; returns whether they hold.
    pub(crate) fn shrink(&mut self) -> bool {
        let fits = self.l2.shrink() & self.refcounts.blocks.shrink();
        self.published.is_crowded.store(!fits, Ordering::Release);
        fits
    }

    /// Whether the file lacks a change.
    pub(crate) fn is_dirty(&self) -> bool {
        self.l2.is_dirty()
            || self.refcounts.blocks.is_dirty()
            || self.refcounts.is_table_dirty
            || self.refcounts.is_table_moved
            || !self.dirty_l1.is_empty()
            || !self.releases.is_empty()
    }

    /// Returns the mapping at a guest offset, and the length in bytes of its run, at most
    /// `len_bytes`.
    ///
    /// # Errors
    ///
    /// EUCLEAN with the table's offset for an entry that contradicts the format.
    pub(crate) fn map(
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
            let mapping = Mapping::decode(table.entry(geometry, entry), geometry, first + index)?;
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
                // A corrupt entry ends the run; a lookup of its own offset reports it.
                match decode(count) {
                    Ok(next) if start.is_continued_by(next, count << unit_bits) => count += 1,
                    _ => break,
                }
            }
        }
        if let Mapping::Data {
            host,
            is_copied: true,
        } = start
            && !geometry.is_extended()
            && self.owns_table(first)?
        {
            self.published.in_place.set(first, host >> bits);
        }
        Ok((start, ((count << unit_bits) - in_unit).min(len_bytes)))
    }

    /// Returns where a range of guest bytes is stored as it is, if it is stored in one piece.
    pub(crate) fn place(
        &mut self,
        file: &dyn ImageFile,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Option<u64>> {
        let in_unit = offset & (self.geometry.unit_bytes() - 1);
        Ok(match self.map(file, offset, len_bytes)? {
            (Mapping::Data { host, .. }, count) if count == len_bytes => Some(host + in_unit),
            _ => None,
        })
    }

    /// Returns all runs of a range of guest bytes.
    pub(crate) fn runs(&mut self, file: &dyn ImageFile, range: Range<u64>) -> Result<MappingRuns> {
        let mut runs = MappingRuns::new();
        let mut at = range.start;
        while at < range.end {
            let (mapping, count) = self.map(file, at, range.end - at)?;
            runs.push((mapping, count));
            at += count;
        }
        Ok(runs)
    }

    /// Plans a write of `len_bytes` at a guest offset: in place, or into clusters that it
    /// allocates.
    ///
    /// # Errors
    ///
    /// EUCLEAN for tables that contradict the format, EFBIG if the file cannot grow further, else
    /// the file's errors. No guest cluster has changed then.
    pub(crate) fn plan_write(
        &mut self,
        file: &dyn ImageFile,
        offset: u64,
        len_bytes: u64,
    ) -> Result<WritePlan> {
        let geometry = self.geometry;
        let first = offset >> geometry.cluster_bits;
        let is_owned = self.owns_table(first)?;
        // The entries of a run are examined once, also where a caller has a large range to fill.
        let len_bytes = len_bytes.min(RUN_BYTES_MAX);
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
            return Ok(WritePlan::InPlace {
                host: host + in_unit,
                len_bytes: run_bytes,
            });
        }
        // After the check for writes in place, which need not wait: their cluster exists.
        if self.is_in_flight(first..first + 1) {
            return Ok(WritePlan::Wait);
        }
        let own_cluster = match start {
            Mapping::ZeroAllocated {
                host,
                is_copied: true,
            }
            | Mapping::Reserved {
                host,
                is_copied: true,
            } if is_owned => {
                // The cluster that contains the unit.
                Some(host >> geometry.cluster_bits << geometry.cluster_bits)
            }
            _ => None,
        };
        let len_bytes = match own_cluster {
            Some(_) => run_bytes,
            None => len_bytes,
        };
        self.plan_new(file, offset..offset + len_bytes, own_cluster)
    }

    /// Plans the copy of guest bytes from the backing file into clusters that it allocates. Bytes
    /// for which the image has an entry are skipped.
    ///
    /// # Errors
    ///
    /// Those of [`Metadata::plan_write`].
    pub(crate) fn plan_pull(
        &mut self,
        file: &dyn ImageFile,
        offset: u64,
        len_bytes: u64,
    ) -> Result<WritePlan> {
        let (mapping, len_bytes) = self.map(file, offset, len_bytes)?;
        if mapping.is_inherited() {
            self.plan_write(file, offset, len_bytes)
        } else {
            Ok(WritePlan::Skip { len_bytes })
        }
    }

    /// Makes whole guest units zeros as [`Metadata::clear`] does, where they read from the backing
    /// file. Units for which the image has an entry are skipped.
    pub(crate) fn clear_inherited(
        &mut self,
        file: &dyn ImageFile,
        range: Range<u64>,
    ) -> Result<ClearResult> {
        let (mapping, len_bytes) = self.map(file, range.start, range.end - range.start)?;
        let end = range.start + len_bytes;
        if mapping.is_inherited() {
            self.clear(file, range.start..end)
        } else {
            Ok(ClearResult::Upto(end))
        }
    }

    /// Plans a write of guest bytes into the guest clusters' own host clusters, which start at
    /// `own_cluster`, or into newly allocated ones.
    fn plan_new(
        &mut self,
        file: &dyn ImageFile,
        bytes: Range<u64>,
        own_cluster: Option<u64>,
    ) -> Result<WritePlan> {
        let geometry = self.geometry;
        let bits = geometry.cluster_bits;
        let first = bytes.start >> bits;
        let wanted = (bytes.end - (first << bits))
            .div_ceil(1 << bits)
            .min(geometry.left_in_table(first));
        let mut count = match own_cluster {
            Some(_) => wanted,
            None => self.count_without_own_cluster(file, first, wanted)?,
        };
        // A shorter run instead of a wait: the rest is planned again.
        while self.is_in_flight(first..first + count) {
            count -= 1;
        }
        // Before the clusters are allocated: a failure here leaves none to free.
        self.own_table(file, first)?;
        let clusters = match own_cluster {
            Some(host) => Allocated {
                host,
                count,
                is_fresh: false,
            },
            // The data file may store anything there.
            None if geometry.has_data_file => Allocated {
                host: first << bits,
                count,
                is_fresh: false,
            },
            None => self.refcounts.allocate(file, count)?,
        };
        let end = bytes.end.min((first + clusters.count) << bits);
        // From here on other writes to these guest clusters wait.
        self.in_flight.push(first..first + clusters.count);
        let mut new = NewClusters {
            first,
            clusters,
            range: bytes.start..end,
            head: MappingRuns::new(),
            tail: MappingRuns::new(),
            is_reused: own_cluster.is_some(),
        };
        match self.cover_units(file, &mut new) {
            Ok(()) => Ok(WritePlan::New(new)),
            Err(error) => self.abandon(file, &new).and(Err(error)),
        }
    }

    /// Extends the range of `new` to whole units, and to whole clusters where other units of the
    /// cluster store data.
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
        new.head = self.runs(file, range.start..given.start)?;
        new.tail = self.runs(file, given.end..range.end)?;
        new.range = range;
        Ok(())
    }

    /// Enters new clusters, whose data is written, into the L2 table: readers see them from now on.
    pub(crate) fn finish(&mut self, file: &dyn ImageFile, new: &NewClusters) -> Result<()> {
        if let Err(error) = self.publish(file, new) {
            self.abandon(file, new)?;
            return Err(error);
        }
        self.end_flight(new.first);
        Ok(())
    }

    /// Frees new clusters whose data could not be written.
    pub(crate) fn abandon(&mut self, file: &dyn ImageFile, new: &NewClusters) -> Result<()> {
        self.end_flight(new.first);
        if new.is_reused || self.geometry.has_data_file {
            return Ok(());
        }
        let first = new.clusters.host >> self.geometry.cluster_bits;
        self.refcounts
            .release(file, first, new.clusters.count, &mut Vec::new())
    }

    /// Makes whole guest units read as zeros, and releases whole clusters.
    pub(crate) fn clear(&mut self, file: &dyn ImageFile, range: Range<u64>) -> Result<ClearResult> {
        self.begin_change();
        let geometry = self.geometry;
        let bits = geometry.cluster_bits;
        let first = range.start >> bits;
        let count =
            ((range.end - (first << bits)).div_ceil(1 << bits)).min(geometry.left_in_table(first));
        if self.is_in_flight(first..first + count) {
            return Ok(ClearResult::Wait);
        }
        let end = range.end.min((first + count) << bits);
        let (l1_index, l2_index) = geometry.indices(first);
        // The caller writes zeros to a raw data file; unallocated clusters read as zeros.
        if geometry.is_raw || (!geometry.has_backing && self.l2_table(file, l1_index)?.is_none()) {
            return Ok(ClearResult::Upto(end));
        }
        // A snapshot may share the table: its entries must stay.
        self.own_table(file, first)?;
        for index in 0..count as usize {
            let cluster = first + index as u64;
            self.published.in_place.remove(cluster);
            let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
            let old = table.entry(geometry, l2_index + index);
            let descriptor = old.descriptor(geometry, cluster)?;
            let units = geometry.units_in(cluster, &(range.start..end));
            if matches!(descriptor, ClusterDescriptor::Compressed { .. })
                && units != geometry.all_units()
            {
                // The clusters before it are cleared; a part of a compressed cluster cannot be.
                return Ok(match index {
                    0 => ClearResult::Compressed(end.min((first + 1) << bits)),
                    _ => ClearResult::Upto(cluster << bits),
                });
            }
            let new = old.with_zeros(geometry, descriptor, units);
            if new != old {
                table.set_entry(geometry, l2_index + index, new);
            }
            if new.descriptor(geometry, cluster)? == ClusterDescriptor::Unallocated {
                self.release_later(descriptor);
            }
        }
        Ok(ClearResult::Upto(end))
    }

    /// Releases guest clusters, zero clusters as well: they then read as the backing file does. No
    /// write is in flight. Returns the first cluster that is left.
    pub(crate) fn release_clusters(
        &mut self,
        file: &dyn ImageFile,
        clusters: Range<u64>,
    ) -> Result<u64> {
        self.begin_change();
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
            self.published.in_place.remove(cluster);
            let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
            let old = table.entry(geometry, l2_index + index);
            let descriptor = old.descriptor(geometry, cluster)?;
            table.set_entry(geometry, l2_index + index, L2Entry { word: 0, bitmap: 0 });
            self.release_later(descriptor);
        }
        Ok(end)
    }

    /// Returns the L2 table of an L1 index, read into memory if needed; none if there is no table.
    fn l2_table(
        &mut self,
        file: &dyn ImageFile,
        l1_index: u64,
    ) -> Result<Option<&mut MetadataTable>> {
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

    /// Whether the L2 table of a guest cluster exists and may be written in place.
    fn owns_table(&self, cluster: u64) -> Result<bool> {
        let (l1_index, _) = self.geometry.indices(cluster);
        let entry = self.l1.get(l1_index as usize).copied().unwrap_or(0);
        Ok(decode_l1(entry, self.geometry.cluster_bits)?.is_some_and(|(_, is_copied)| is_copied))
    }

    /// Makes the L2 table of a guest cluster writable: creates it, or copies a snapshot's.
    fn own_table(&mut self, file: &dyn ImageFile, cluster: u64) -> Result<()> {
        self.begin_change();
        if self.owns_table(cluster)? {
            return Ok(());
        }
        let bits = self.geometry.cluster_bits;
        let (l1_index, _) = self.geometry.indices(cluster);
        let shared_at = self.l2_table(file, l1_index)?.map(|table| table.at);
        let new = self.refcounts.allocate(file, 1)?;
        match (shared_at, self.l2.get(l1_index)) {
            (Some(old), Some(table)) => {
                table.move_to(new.host);
                // The L1 table in the file names the old table until the next write-back.
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

    /// Returns how many consecutive guest clusters have no host cluster that may be written in
    /// place.
    fn count_without_own_cluster(
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
        let has_own_cluster = |index: u64| {
            let entry = table.entry(geometry, l2_index + index as usize);
            match entry.descriptor(geometry, first + index) {
                Ok(ClusterDescriptor::Standard { is_copied, .. }) => is_copied && is_owned,
                Ok(_) => false,
                Err(_) => true,
            }
        };
        Ok((1..count_max)
            .find(|index| has_own_cluster(*index))
            .unwrap_or(count_max))
    }

    /// Whether a guest cluster stores bytes in the file.
    fn holds_data(&mut self, file: &dyn ImageFile, cluster: u64) -> Result<bool> {
        let geometry = self.geometry;
        let (l1_index, l2_index) = geometry.indices(cluster);
        let Some(table) = self.l2_table(file, l1_index)? else {
            return Ok(false);
        };
        let entry = table.entry(geometry, l2_index);
        Ok(entry.holds_data(geometry, entry.descriptor(geometry, cluster)?))
    }

    /// Enters new clusters into their L2 table. None of them is published: what is, is written in
    /// place.
    fn publish(&mut self, file: &dyn ImageFile, new: &NewClusters) -> Result<()> {
        self.begin_change();
        let geometry = self.geometry;
        let (l1_index, l2_index) = geometry.indices(new.first);
        for index in 0..new.clusters.count {
            let cluster = new.first + index;
            let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
            let old = table.entry(geometry, l2_index + index as usize);
            let host = new.clusters.host + (index << geometry.cluster_bits);
            // An empty range reserves the clusters alone.
            let units = if new.range.is_empty() {
                0
            } else {
                geometry.units_in(cluster, &new.range)
            };
            let entry = old.with_data(geometry, host, units, new.is_reused);
            table.set_entry(geometry, l2_index + index as usize, entry);
            // The L2 table in the file names the old cluster until the next write-back.
            if !new.is_reused {
                self.release_later(old.descriptor(geometry, cluster)?);
            }
        }
        Ok(())
    }

    /// Replaces a guest cluster by compressed bytes at `host`, of length `len_bytes`.
    pub(crate) fn set_compressed(
        &mut self,
        file: &dyn ImageFile,
        cluster: u64,
        host: u64,
        len_bytes: u64,
    ) -> Result<()> {
        self.begin_change();
        let geometry = self.geometry;
        let entry = L2Entry::compressed(geometry, host, len_bytes)?;
        self.own_table(file, cluster)?;
        self.published.in_place.remove(cluster);
        let (l1_index, l2_index) = geometry.indices(cluster);
        let table = self.l2_table(file, l1_index)?.ok_or(Errno::IO)?;
        let old = table
            .entry(geometry, l2_index)
            .descriptor(geometry, cluster)?;
        table.set_entry(geometry, l2_index, entry);
        self.release_later(old);
        Ok(())
    }

    /// Drops the references of a host cluster after the next write-back of L2 tables.
    fn release_later(&mut self, descriptor: ClusterDescriptor) {
        let bits = self.geometry.cluster_bits;
        let release = match descriptor {
            ClusterDescriptor::Unallocated => return,
            _ if self.geometry.has_data_file => return,
            ClusterDescriptor::Standard { host, .. } => (host >> bits, 1),
            ClusterDescriptor::Compressed { host, len_bytes } => {
                let first = host >> bits;
                (first, ((host + len_bytes - 1) >> bits) - first + 1)
            }
        };
        match self.releases.last_mut() {
            Some((first, count)) if *first + *count == release.0 => *count += release.1,
            _ => self.releases.push(release),
        }
    }

    /// Whether a write to any of these guest clusters is in flight.
    pub(crate) fn is_in_flight(&self, range: Range<u64>) -> bool {
        self.in_flight
            .iter()
            .any(|other| other.start < range.end && range.start < other.end)
    }

    fn end_flight(&mut self, first: u64) {
        self.in_flight.retain(|range| range.start != first);
    }
}

/// Rejects a mapping to a cluster that starts beyond the end of the file.
fn check_host(mapping: Mapping, host_end: u64, geometry: Geometry) -> Result<()> {
    let host = match mapping {
        Mapping::Data { host, .. } => host & !(geometry.cluster_bytes() - 1),
        Mapping::Compressed { host, .. } => host,
        _ => return Ok(()),
    };
    if host >= host_end {
        return Err(Error::corrupt(format!(
            "cluster at {host:#x} is beyond the end of the file"
        )));
    }
    Ok(())
}
