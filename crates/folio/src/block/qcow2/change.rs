//! A change of an image's tables as a whole, so that a power cut leaves the image as it was or as
//! it shall be.
//!
//! New tables are written into free clusters. The references are counted as they are and as they
//! will be; what differs is what becomes of the refcounts:
//!
//! ```text
//!   new tables, dirty bit -> fdatasync -> raise refcounts -> fdatasync -> clear COPIED flags -> fdatasync
//!     -> the header points to the new tables (one sector) -> fdatasync
//!     -> lower refcounts -> fdatasync -> set COPIED flags -> fdatasync -> no dirty bit -> punch holes
//! ```
//!
//! Until the header changes, what is written is invisible or only says that clusters are more used
//! than they are. Flags and refcounts cannot change at once; the dirty bit, which version 2 lacks,
//! says that they may disagree.

use super::super::image_file::ImageFile;
use super::check::{self, Counted, RefcountFile, Told, align_copied_flags, count};
use super::roots::{CORRUPT, DIRTY, Region, Roots};
use crate::base::{Error, Result};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

/// Autoclear features that stay true: bitmaps in step with the disk, a data file that is the disk.
const AUTOCLEAR_KEPT: u64 = 3;

/// A change that is being prepared.
pub(super) struct Change<'a> {
    file: &'a dyn ImageFile,
    roots: Roots,
    before: Counted,
    /// Clusters chosen for new tables.
    taken: Vec<Range<u64>>,
}

impl<'a> Change<'a> {
    /// Looks at the image in `file`, which no device has open.
    ///
    /// Errors: EUCLEAN if its tables or refcounts are wrong: whoever relied on them would make it
    /// worse.
    pub(super) fn begin(file: &'a dyn ImageFile) -> Result<Self> {
        let mut roots = Roots::read(file)?;
        if roots.incompatible & CORRUPT != 0 {
            return Err(Error::corrupt(
                "the image is marked corrupt; `folio image check --repair all` may mend it",
            ));
        }
        if roots.incompatible & DIRTY != 0 {
            check::mend_stale_refcounts(file)?;
            roots = Roots::read(file)?;
        }
        let unknown = roots.autoclear & !AUTOCLEAR_KEPT;
        if unknown != 0 {
            roots.autoclear &= AUTOCLEAR_KEPT;
            file.write(
                &[IoSlice::new(&roots.autoclear.to_be_bytes())],
                super::header::AUTOCLEAR_FIELD,
            )?;
            file.sync_data()?;
        }
        let mut first = None;
        let before = count(
            file,
            &roots,
            &mut Told::new(&mut |finding| {
                first.get_or_insert_with(|| finding.to_string());
            }),
        )?;
        let mut refcounts = RefcountFile::read(file, &roots)?;
        let low = low_refcount(&before, &mut refcounts)?;
        if let Some(what) = first.or(low) {
            let what = format!("{what}; `folio image check --repair all` may mend it");
            return Err(Error::corrupt(what));
        }
        Ok(Self {
            file,
            roots,
            before,
            taken: Vec::new(),
        })
    }

    /// The tables as they are.
    pub(super) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Writes a new table into free clusters, which nothing points to yet; returns where.
    pub(super) fn put_table(&mut self, bytes: &[u8]) -> Result<u64> {
        let cluster = self.roots.cluster_bytes();
        let clusters = (bytes.len() as u64).div_ceil(cluster).max(1);
        let first = match self.find_free(clusters)? {
            Some(first) => first,
            None => {
                self.make_refcounts_for(clusters)?;
                let none = || Error::corrupt("no room in refcounts that were just made");
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

    /// A run of clusters that are free by refcount and by count.
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

    /// A new refcount tree that describes so many clusters more; the old one becomes free.
    fn make_refcounts_for(&mut self, clusters: u64) -> Result<()> {
        let old = self.tree_clusters()?;
        self.roots = check::rebuild(self.file, &self.roots, clusters)?;
        self.before = count(self.file, &self.roots, &mut Told::new(&mut |_| {}))?;
        let mut refcounts = RefcountFile::read(self.file, &self.roots)?;
        for cluster in old {
            if self.before.counts.get(cluster) == 0 {
                refcounts.set(cluster, 0)?;
            }
        }
        refcounts.sync()
    }

    /// Clusters of the refcount table and its blocks, which `begin` found sound.
    fn tree_clusters(&self) -> Result<Vec<u64>> {
        let table = self.roots.refcount_table;
        let bits = self.roots.cluster_bits;
        let mut bytes = vec![0; table.len_bytes as usize];
        self.file
            .read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], table.at)?;
        let blocks = super::table::numbers(&bytes)
            .filter(|at| *at != 0)
            .map(|at| at >> bits);
        Ok((table.at >> bits..(table.at + table.len_bytes) >> bits)
            .chain(blocks)
            .collect())
    }

    /// Makes the change: `after` says what the header leads to once `switch` has written it.
    ///
    /// `switch` makes the one write after which a reader sees the new tables.
    pub(super) fn commit(
        self,
        after: &Roots,
        switch: &mut dyn FnMut(&dyn ImageFile) -> Result<()>,
    ) -> Result<()> {
        let file = self.file;
        self.raise(after)?;
        switch(file)?;
        file.sync_data()?;
        self.lower(after)
    }

    /// Makes refcounts high enough for both, and no COPIED flag of the new tables wrong by that.
    pub(super) fn raise(&self, after: &Roots) -> Result<()> {
        let file = self.file;
        let counted = complete(file, after)?;
        let mut refcounts = RefcountFile::read(file, after)?;
        let max = after.refcount_max();
        // What would not fit is refused before anything is written.
        let more = |this: &Self, cluster| {
            counted
                .counts
                .get(cluster)
                .saturating_sub(this.before.counts.get(cluster))
        };
        for cluster in counted.counts.used() {
            let more = more(self, cluster);
            if more > 0 && refcounts.get(cluster)?.saturating_add(more) > max {
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
        align_copied_flags(file, after, &counted, &mut refcounts, &mut |_| {})
    }

    /// Sets or clears the dirty bit, durably.
    fn mark(&self, dirty: u64) -> Result<()> {
        if self.roots.version < 3 {
            return Ok(());
        }
        let features = self.roots.incompatible & !DIRTY | dirty;
        self.file.write(
            &[IoSlice::new(&features.to_be_bytes())],
            super::header::INCOMPATIBLE_FIELD,
        )?;
        self.file.sync_data()
    }

    /// Gives up the references that are gone, in the file as it now is.
    pub(super) fn lower(&self, after: &Roots) -> Result<()> {
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
        self.mark(0)?;
        for run in unused.chunk_by(|a, b| a + 1 == *b) {
            let at = run.first().copied().unwrap_or_default() << after.cluster_bits;
            file.punch_hole(at, (run.len() as u64) << after.cluster_bits)?;
        }
        Ok(())
    }
}

/// The references in tables that are known to be sound.
fn complete(file: &dyn ImageFile, roots: &Roots) -> Result<Counted> {
    let mut first = None;
    let counted = count(
        file,
        roots,
        &mut Told::new(&mut |finding| {
            first.get_or_insert_with(|| finding.to_string());
        }),
    )?;
    first.map_or(Ok(counted), |what| Err(Error::corrupt(what)))
}

/// A cluster that is used more often than its refcount says, or as two things.
fn low_refcount(counted: &Counted, refcounts: &mut RefcountFile<'_>) -> Result<Option<String>> {
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

/// Entries of the table in `region`, which was counted and found sound.
pub(super) fn read_entries(file: &dyn ImageFile, region: Region) -> Result<Vec<u64>> {
    // An L1 table: at most 32 MiB.
    let mut bytes = vec![0; region.len_bytes as usize];
    file.read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], region.at)?;
    Ok(super::table::numbers(&bytes).collect())
}

/// Entries as the file has them.
pub(super) fn entry_bytes(entries: &[u64]) -> Vec<u8> {
    entries
        .iter()
        .flat_map(|entry| entry.to_be_bytes())
        .collect()
}

/// The header's disk size and L1 table, which lie together in the first sector.
pub(super) fn write_disk(file: &dyn ImageFile, after: &Roots) -> Result<()> {
    let raw = super::header::read_raw(file)?;
    let mut fields = [0; 24];
    fields[..8].copy_from_slice(&after.len_bytes.to_be_bytes());
    fields[8..12].copy_from_slice(&raw.crypt_method.get().to_be_bytes());
    // The table has at most 32 MiB.
    fields[12..16].copy_from_slice(&(after.l1.entries as u32).to_be_bytes());
    fields[16..].copy_from_slice(&after.l1.at.to_be_bytes());
    file.write(&[IoSlice::new(&fields)], super::header::SIZE_FIELD)
}

#[cfg(test)]
mod tests {
    use super::super::super::image_file::DeviceFile;
    use super::super::super::{Device, MemoryDevice, OverlayDevice, RecordDevice};
    use super::super::check::{Repair, check};
    use super::super::{CreateOptions, Qcow2Device, snapshots};
    use super::*;
    use crate::base::Timespec;
    use std::sync::Arc;

    const FILE_BYTES: u64 = 8 << 20;
    const DISK_BYTES: usize = 1 << 20;

    type Work = fn(&dyn ImageFile) -> Result<()>;

    fn write(device: &Arc<dyn Device>, value: u8, range: Range<usize>) {
        let image = Qcow2Device::open_on(device.clone()).unwrap();
        image
            .write_at(&vec![value; range.len()], range.start as u64)
            .unwrap();
        image.flush().unwrap();
    }

    fn content(device: &Arc<dyn Device>) -> Vec<u8> {
        // For reading only, or the open would mend a dirty image.
        let image =
            Qcow2Device::open_on(Arc::new(OverlayDevice::new(device.clone()).sealed())).unwrap();
        let mut bytes = vec![0; image.len_bytes() as usize];
        image.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn is_dirty(device: &dyn Device) -> bool {
        let mut features = [0; 8];
        device
            .read_at(&mut features, super::super::header::INCOMPATIBLE_FIELD)
            .unwrap();
        u64::from_be_bytes(features) & DIRTY != 0
    }

    fn copy_of(device: &dyn Device) -> Arc<dyn Device> {
        let copy = MemoryDevice::new(FILE_BYTES);
        let mut bytes = vec![0; FILE_BYTES as usize];
        device.read_at(&mut bytes, 0).unwrap();
        copy.write_at(&bytes, 0).unwrap();
        Arc::new(copy)
    }

    /// Cuts the power at every write of `work`: what is there then is what was there before or what
    /// is there after, and what a repair leaves is clean.
    fn cut_everywhere(
        name: &str,
        prepare: &[(u8, Range<usize>)],
        snapshot_after: usize,
        work: Work,
    ) {
        let base: Arc<dyn Device> = Arc::new(MemoryDevice::new(FILE_BYTES));
        let options = CreateOptions {
            cluster_bytes: 4096,
            ..CreateOptions::default()
        };
        drop(Qcow2Device::create_on(base.clone(), DISK_BYTES as u64, &options).unwrap());
        for (index, (value, range)) in prepare.iter().enumerate() {
            write(&base, *value, range.clone());
            if index < snapshot_after {
                let name = format!("s{index}");
                snapshots::create(&DeviceFile::open(base.clone()), &name, Timespec::new(1, 0))
                    .unwrap();
            }
        }
        let start = copy_of(&*base);
        let record = Arc::new(RecordDevice::new(copy_of(&*base)));
        work(&DeviceFile::open(record.clone())).unwrap();
        let end: Arc<dyn Device> = record.clone();
        let (before, after) = (content(&start), content(&end));
        let count_of = |device: &Arc<dyn Device>| {
            snapshots::list(&DeviceFile::open(device.clone()))
                .unwrap()
                .len()
        };
        let counts = [count_of(&start), count_of(&end)];
        let steps = record.recorded();
        assert!(steps.len() > 5, "{name}");
        for cut in 0..=steps.len() {
            let device = copy_of(&*start);
            steps[..cut]
                .iter()
                .try_for_each(|step| step.replay(&*device))
                .unwrap();
            let now = content(&device);
            assert!(now == before || now == after, "{name}: cut at {cut}");
            let file = DeviceFile::open(device.clone());
            let found = check(&file, Repair::Nothing, &mut |finding| {
                // In a dirty image a flag that disagrees with its refcount is all that may be wrong
                // besides leaks.
                let text = finding.to_string();
                assert!(
                    text.starts_with("Leaked")
                        || (text.contains("OFLAG_COPIED") && is_dirty(&*device)),
                    "{name}: cut at {cut}: {text}"
                );
            });
            assert_eq!(found.unwrap().check_errors, 0);
            assert!(counts.contains(&count_of(&device)), "{name}: cut at {cut}");
            let left = check(&file, Repair::All, &mut |_| {}).unwrap();
            assert_eq!(
                (left.leaks, left.corruptions),
                (0, 0),
                "{name}: cut at {cut}"
            );
            assert!(
                content(&device) == now,
                "{name}: cut at {cut}: the repair changed the disk"
            );
            // Without a repair it is as safe to go on.
            let device = copy_of(&*start);
            steps[..cut]
                .iter()
                .try_for_each(|step| step.replay(&*device))
                .unwrap();
            write(&device, 0xee, 0..DISK_BYTES.min(now.len()));
            let listed = snapshots::list(&DeviceFile::open(device.clone())).unwrap();
            check(&DeviceFile::open(device.clone()), Repair::All, &mut |_| {}).unwrap();
            for snapshot in listed {
                snapshots::apply(&DeviceFile::open(device.clone()), &snapshot.id).unwrap();
                assert!(
                    !content(&device).starts_with(&[0xee; 64]),
                    "{name}: cut at {cut}: a snapshot was written"
                );
            }
        }
    }

    const WRITES: [(u8, Range<usize>); 3] =
        [(1, 0..700_000), (2, 4096..300_000), (3, 200_000..1_000_000)];

    #[test]
    fn power_cuts_while_a_snapshot_is_made() {
        let work: Work = |file| snapshots::create(file, "new", Timespec::new(1, 0));
        cut_everywhere("first", &WRITES, 0, work);
        cut_everywhere("third", &WRITES, 2, work);
    }

    #[test]
    fn power_cuts_while_a_snapshot_is_applied() {
        cut_everywhere("apply", &WRITES, 2, |file| snapshots::apply(file, "s0"));
        cut_everywhere("apply the same", &WRITES, 3, |file| {
            snapshots::apply(file, "s2")
        });
    }

    #[test]
    fn power_cuts_while_a_snapshot_is_deleted() {
        cut_everywhere("delete", &WRITES, 2, |file| snapshots::delete(file, "s1"));
        cut_everywhere("delete the last", &WRITES, 1, |file| {
            snapshots::delete(file, "s0")
        });
    }
}
