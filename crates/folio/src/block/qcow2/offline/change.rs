//! A change of an image's tables as a whole: a power cut leaves the image either as before or as
//! after.
//!
//! New tables are written into free clusters. The references are counted before and after; the
//! refcounts change by the difference:
//!
//! ```text
//!   new tables, dirty bit -> fdatasync -> raise refcounts -> fdatasync
//!     -> clear COPIED flags -> fdatasync
//!     -> the header points to the new tables (one sector) -> fdatasync
//!     -> lower refcounts -> fdatasync -> set COPIED flags -> fdatasync
//!     -> clear the dirty bit -> fdatasync -> punch holes
//! ```
//!
//! Until the header changes, all writes are invisible or only raise refcounts above the references.
//! Flags and refcounts cannot change at once; the dirty bit, which version 2 lacks, states that
//! they may disagree.

use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::check::{
    self, CountedReferences, FindingSink, RefcountFile, align_copied_flags, count,
};
use crate::block::qcow2::layout::features::{AUTOCLEAR_KEPT, CORRUPT, DIRTY};
use crate::block::qcow2::layout::raw_header::{INCOMPATIBLE_FIELD, SIZE_FIELD, read_raw};
use crate::block::qcow2::layout::roots::{Region, Roots};
use crate::block::qcow2::layout::table::numbers;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

/// A change in preparation.
pub(crate) struct TableChange<'a> {
    file: &'a dyn ImageFile,
    roots: Roots,
    before: CountedReferences,
    /// Clusters allocated for new tables.
    taken: Vec<Range<u64>>,
}

impl<'a> TableChange<'a> {
    /// Checks the image in `file`, which no device has open.
    ///
    /// # Errors
    ///
    /// EUCLEAN if its tables or refcounts are wrong: a change based on them would lose data.
    pub(crate) fn begin(file: &'a dyn ImageFile) -> Result<Self> {
        let mut roots = Roots::read(file)?;
        if roots.incompatible & CORRUPT != 0 {
            return Err(Error::corrupt(
                "the image is marked corrupt: run `folio image check --repair all`",
            ));
        }
        if roots.incompatible & DIRTY != 0 {
            check::repair_stale_refcounts(file)?;
            roots = Roots::read(file)?;
        }
        check::clear_unknown_autoclear(file, roots.autoclear)?;
        roots.autoclear &= AUTOCLEAR_KEPT;
        let mut first = None;
        let before = count(
            file,
            &roots,
            &mut FindingSink::new(&mut |finding| {
                first.get_or_insert_with(|| finding.to_string());
            }),
        )?;
        let mut refcounts = RefcountFile::read(file, &roots)?;
        let low = low_refcount(&before, &mut refcounts)?;
        if let Some(what) = first.or(low) {
            let what = format!("{what}: run `folio image check --repair all`");
            return Err(Error::corrupt(what));
        }
        Ok(Self {
            file,
            roots,
            before,
            taken: Vec::new(),
        })
    }

    /// Returns the tables as they are.
    pub(crate) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Writes a new table into free clusters, which no table names yet; returns its offset.
    pub(crate) fn put_table(&mut self, bytes: &[u8]) -> Result<u64> {
        let cluster = self.roots.cluster_bytes();
        let clusters = (bytes.len() as u64).div_ceil(cluster).max(1);
        let first = match self.find_free(clusters)? {
            Some(first) => first,
            None => {
                self.make_refcounts_for(clusters)?;
                let none = || Error::corrupt("no free clusters in a new refcount tree");
                self.find_free(clusters)?.ok_or_else(none)?
            }
        };
        self.taken.push(first..first + clusters);
        let at = first << self.roots.cluster_bits;
        let end = at + clusters * cluster;
        if self.file.len_bytes()? < end {
            self.file.set_len(end)?;
        }
        self.file.write(&[IoSlice::new(bytes)], at)?;
        let rest = clusters * cluster - bytes.len() as u64;
        self.file.write_zeroes(end - rest, rest)?;
        Ok(at)
    }

    /// Returns the first of a run of clusters that are free by refcount and by reference count.
    fn find_free(&self, clusters: u64) -> Result<Option<u64>> {
        let mut refcounts = RefcountFile::read(self.file, &self.roots)?;
        let mut start = 0;
        let mut cluster = 0;
        while cluster < refcounts.end() {
            if !refcounts.has_block(cluster) {
                cluster = refcounts.block_end(cluster);
                start = cluster;
                continue;
            }
            let is_taken = self.taken.iter().any(|range| range.contains(&cluster));
            let is_used =
                is_taken || self.before.counts.get(cluster) > 0 || refcounts.get(cluster)? > 0;
            cluster += 1;
            if is_used {
                start = cluster;
            } else if cluster - start == clusters {
                return Ok(Some(start));
            }
        }
        Ok(None)
    }

    /// Writes a new refcount tree that describes `clusters` more clusters, and frees the old one.
    fn make_refcounts_for(&mut self, clusters: u64) -> Result<()> {
        let old = self.tree_clusters()?;
        // The new tree first: the old one counts as used until the header names the new one.
        // Behind the new tables, too, which nothing names yet.
        let first = self.taken.iter().map(|range| range.end).max().unwrap_or(0);
        self.roots = check::rebuild(self.file, &self.roots, first, clusters)?;
        self.before = count(self.file, &self.roots, &mut FindingSink::new(&mut |_| {}))?;
        let mut refcounts = RefcountFile::read(self.file, &self.roots)?;
        for cluster in old {
            if self.before.counts.get(cluster) == 0 {
                refcounts.set(cluster, 0)?;
            }
        }
        refcounts.sync()
    }

    /// Returns the clusters of the refcount table and its blocks, which `begin` has checked.
    fn tree_clusters(&self) -> Result<Vec<u64>> {
        let table = self.roots.refcount_table;
        let bits = self.roots.cluster_bits;
        let mut bytes = vec![0; table.len_bytes as usize];
        self.file
            .read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], table.at)?;
        let blocks = numbers(&bytes).filter(|at| *at != 0).map(|at| at >> bits);
        Ok((table.at >> bits..(table.at + table.len_bytes) >> bits)
            .chain(blocks)
            .collect())
    }

    /// Makes the change: `switch` makes the one write to the header after which a reader sees the
    /// new tables, and `after` describes these.
    pub(crate) fn commit(
        self,
        after: &Roots,
        switch: &mut dyn FnMut(&dyn ImageFile) -> Result<()>,
    ) -> Result<()> {
        let file = self.file;
        // A refcount may be too high at a power cut, never too low.
        self.raise(after)?;
        switch(file)?;
        file.sync_data()?;
        self.lower(after)
    }

    /// Raises refcounts to the maximum of before and after, and corrects the COPIED flags of the
    /// new tables.
    ///
    /// # Errors
    ///
    /// EFBIG if a refcount does not fit in its bits; nothing was written then.
    pub(crate) fn raise(&self, after: &Roots) -> Result<()> {
        let file = self.file;
        let counted = complete(file, after)?;
        let mut refcounts = RefcountFile::read(file, after)?;
        let max = after.refcount_max();
        // A refcount that does not fit is rejected before the first write.
        let more = |this: &Self, cluster| {
            counted
                .counts
                .get(cluster)
                .saturating_sub(this.before.counts.get(cluster))
        };
        for cluster in counted.counts.used() {
            let more = more(self, cluster);
            let sum = refcounts.get(cluster)?.checked_add(more);
            if more > 0 && sum.is_none_or(|sum| sum > max) {
                let what = format!(
                    "a cluster would have more references than {} bits count",
                    1u32 << after.refcount_order
                );
                return Err(Error::new(crate::base::Errno::FBIG, what));
            }
        }
        self.mark(DIRTY)?;
        for cluster in counted.counts.used() {
            let more = more(self, cluster);
            if more > 0 {
                let refcount = refcounts.get(cluster)?;
                refcounts.set(cluster, refcount + more)?;
            }
        }
        refcounts.sync()?;
        align_copied_flags(file, after, &counted, &mut refcounts, &mut |_| {}).map(drop)
    }

    /// Sets or clears the dirty bit, durably.
    fn mark(&self, dirty: u64) -> Result<()> {
        if self.roots.version < 3 {
            return Ok(());
        }
        let features = self.roots.incompatible & !DIRTY | dirty;
        self.file
            .write(&[IoSlice::new(&features.to_be_bytes())], INCOMPATIBLE_FIELD)?;
        self.file.sync_data()
    }

    /// Lowers refcounts to the references after the change, and releases the space of free
    /// clusters.
    pub(crate) fn lower(&self, after: &Roots) -> Result<()> {
        let file = self.file;
        let counted = complete(file, after)?;
        let mut refcounts = RefcountFile::read(file, after)?;
        let mut unused = Vec::new();
        for cluster in self.before.counts.used() {
            let less = self
                .before
                .counts
                .get(cluster)
                .saturating_sub(counted.counts.get(cluster));
            if less > 0 {
                let refcount = refcounts.get(cluster)?.saturating_sub(less);
                refcounts.set(cluster, refcount)?;
                if refcount == 0 {
                    unused.push(cluster);
                }
            }
        }
        refcounts.sync()?;
        align_copied_flags(file, after, &counted, &mut refcounts, &mut |_| {})?;
        // Refcounts and flags agree from here on.
        self.mark(0)?;
        for run in unused.chunk_by(|a, b| a + 1 == *b) {
            let at = run.first().copied().unwrap_or_default() << after.cluster_bits;
            file.punch_hole(at, (run.len() as u64) << after.cluster_bits)?;
        }
        Ok(())
    }
}

/// Counts the references in tables that must be correct.
fn complete(file: &dyn ImageFile, roots: &Roots) -> Result<CountedReferences> {
    let mut first = None;
    let counted = count(
        file,
        roots,
        &mut FindingSink::new(&mut |finding| {
            first.get_or_insert_with(|| finding.to_string());
        }),
    )?;
    first.map_or(Ok(counted), |what| Err(Error::corrupt(what)))
}

/// Describes the first cluster with more references than its refcount, or with two exclusive uses.
fn low_refcount(
    counted: &CountedReferences,
    refcounts: &mut RefcountFile<'_>,
) -> Result<Option<String>> {
    let mut cluster = counted.counts.next_used(0);
    while cluster < counted.counts.clusters() {
        let (references, refcount) = (counted.counts.get(cluster), refcounts.get(cluster)?);
        if refcount < references {
            return Ok(Some(format!(
                "cluster {cluster} refcount={refcount} reference={references}"
            )));
        }
        if counted.counts.overlaps(cluster) {
            return Ok(Some(format!(
                "cluster {cluster} holds metadata and something else"
            )));
        }
        cluster = counted.counts.next_used(cluster + 1);
    }
    Ok(None)
}

/// Reads the entries of the table in `region`, which a count has checked.
pub(crate) fn read_entries(file: &dyn ImageFile, region: Region) -> Result<Vec<u64>> {
    // An L1 table: at most 32 MiB.
    let mut bytes = vec![0; region.len_bytes as usize];
    file.read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], region.at)?;
    Ok(numbers(&bytes).collect())
}

/// Encodes entries of a table.
pub(crate) fn entry_bytes(entries: &[u64]) -> Vec<u8> {
    entries
        .iter()
        .flat_map(|entry| entry.to_be_bytes())
        .collect()
}

/// Writes the disk's size and the L1 table to the header: contiguous fields in the first sector.
pub(crate) fn write_disk(file: &dyn ImageFile, after: &Roots) -> Result<()> {
    let raw = read_raw(file)?;
    let mut fields = [0; 24];
    fields[..8].copy_from_slice(&after.len_bytes.to_be_bytes());
    fields[8..12].copy_from_slice(&raw.crypt_method.get().to_be_bytes());
    // The table has at most 32 MiB.
    fields[12..16].copy_from_slice(&(after.l1.entries as u32).to_be_bytes());
    fields[16..].copy_from_slice(&after.l1.at.to_be_bytes());
    file.write(&[IoSlice::new(&fields)], SIZE_FIELD)
}
