//! Counts the references to each cluster of the file: a walk from the header to every leaf that
//! reads each table once.
//!
//! Tables outside the file, or overlapping each other, are reported and not followed. Every L2
//! table is read once, whatever number of L1 entries names it, and holes of the host's file are not
//! read. So the number of stored bytes bounds the work.

use super::counts::{Counts, Use};
use super::finding::{Finding, FindingSink};
use crate::base::{Error, Result};
use crate::block::Allocation;
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::extensions;
use crate::block::qcow2::layout::raw_header::L1_BYTES_MAX;
use crate::block::qcow2::layout::roots::{L1, Region, Roots};
use crate::block::qcow2::layout::table::{
    COMPRESSED, COPIED, L1_RESERVED, OFFSET_MASK, ZERO, numbers,
};
use foldhash::HashMap;
use std::io::IoSliceMut;

/// Tables are read in pieces of this many bytes at most.
const READ_BYTES: u64 = 1 << 20;
const REFCOUNT_ENTRY_RESERVED: u64 = 0x1ff;
const L2_STANDARD_RESERVED: u64 = 0x3f00_0000_0000_01fe;
/// Limits of bitmaps, the same as QEMU's (block/qcow2-bitmap.c).
const BITMAPS_MAX: u32 = 65535;
const BITMAP_DIRECTORY_BYTES_MAX: u64 = 65535 * 1024;
const BITMAP_TABLE_ENTRIES_MAX: u64 = 0x0800_0000;

/// The number of references to an L2 table, by all L1 tables and by the active one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct L2Use {
    pub(crate) all: u64,
    pub(crate) active: u64,
}

/// An L2 table while its entries are counted, in the guest's order.
struct L2Walk<'t> {
    what: &'t str,
    used: L2Use,
    /// End of the data cluster before.
    next: Option<u64>,
    /// In an extended table, a first half whose second half is not known yet; either may be zero.
    first_half: Option<FirstHalf>,
}

/// The first half of an entry of an extended L2 table.
struct FirstHalf {
    index: u64,
    entry: u64,
}

/// The result of the walk.
pub(crate) struct CountedReferences {
    pub(crate) counts: Counts,
    /// L2 tables by offset; only those that can be read.
    pub(crate) l2_tables: Vec<(u64, L2Use)>,
    /// Entries that could not be followed: their targets were not counted.
    pub(crate) corruptions: u64,
    /// Tables that could not be read.
    pub(crate) check_errors: u64,
    /// The refcount table or a block is damaged.
    pub(crate) is_refcount_tree_bad: bool,
    pub(crate) allocated_clusters: u64,
    pub(crate) fragmented_clusters: u64,
    pub(crate) compressed_clusters: u64,
}

impl CountedReferences {
    /// Whether every reference was counted, so that a cluster without references is free.
    pub(crate) fn is_complete(&self) -> bool {
        self.corruptions == 0 && self.check_errors == 0
    }
}

/// Counts the references in the image whose header points to `roots`. A table that cannot be read
/// is a finding, not an error.
///
/// # Errors
///
/// EFBIG for a file with more clusters than can be counted.
pub(crate) fn count(
    file: &dyn ImageFile,
    roots: &Roots,
    findings: &mut FindingSink<'_>,
) -> Result<CountedReferences> {
    let file_bytes = file.len_bytes()?;
    let counts = Counts::new(file_bytes.div_ceil(roots.cluster_bytes()))?;
    let counted = CountedReferences {
        counts,
        l2_tables: Vec::new(),
        corruptions: 0,
        check_errors: 0,
        is_refcount_tree_bad: false,
        allocated_clusters: 0,
        fragmented_clusters: 0,
        compressed_clusters: 0,
    };
    let mut walk = Walk {
        file,
        roots,
        file_bytes,
        counted,
        l2: HashMap::default(),
        findings,
    };
    walk.run()?;
    Ok(walk.counted)
}

struct Walk<'a, 'b> {
    file: &'a dyn ImageFile,
    roots: &'a Roots,
    file_bytes: u64,
    counted: CountedReferences,
    l2: HashMap<u64, L2Use>,
    findings: &'a mut FindingSink<'b>,
}

impl Walk<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let roots = self.roots;
        self.metadata(
            Region {
                at: 0,
                len_bytes: roots.cluster_bytes(),
            },
            "header",
        )?;
        self.l1_tables()?;
        self.l2_tables()?;
        self.metadata(roots.snapshot_table, "snapshot table")?;
        if let Some(region) = roots.crypto_header {
            self.metadata(region, "LUKS header")?;
        }
        if let Some((directory, count)) = roots.bitmaps {
            self.bitmaps(directory, count)?;
        }
        // Last: a refcount block may have no other use, and all other uses are counted by now.
        self.refcount_tree()
    }

    fn corrupt(&mut self, what: String) {
        self.counted.corruptions += 1;
        self.findings.report(Finding::Corruption(what));
    }

    fn unreadable(&mut self, what: &str, error: &Error) {
        self.counted.check_errors += 1;
        self.findings
            .report(Finding::Failure(format!("{what}: {error}")));
    }

    /// Counts `times` references to the clusters of a range; returns whether it is inside the file.
    fn add(&mut self, region: Region, times: u64, used_as: Use, what: &str) -> Result<bool> {
        if region.len_bytes == 0 {
            return Ok(true);
        }
        let cluster = self.roots.cluster_bytes();
        let end = region.at.checked_add(region.len_bytes);
        // The file may end inside its last cluster.
        let Some(end) = end.filter(|end| *end < self.file_bytes.saturating_add(cluster)) else {
            self.counted.corruptions += 1;
            self.findings.report(Finding::BeyondEnd {
                what: what.to_owned(),
                offset: region.at,
                len_bytes: region.len_bytes,
            });
            return Ok(false);
        };
        let bits = self.roots.cluster_bits;
        for cluster in region.at >> bits..=(end - 1) >> bits {
            if cluster < self.counted.counts.clusters() {
                self.counted.counts.add(cluster, times, used_as)?;
            }
        }
        Ok(true)
    }

    /// Counts a table that must start at a cluster; returns whether it can be followed.
    fn metadata(&mut self, region: Region, what: &str) -> Result<bool> {
        if region.len_bytes != 0 && !region.at.is_multiple_of(self.roots.cluster_bytes()) {
            self.corrupt(format!(
                "{what} at {:#x} is not at a cluster's start",
                region.at
            ));
            return Ok(false);
        }
        self.add(region, 1, Use::Metadata, what)
    }

    /// Calls `each` with index and value of the nonzero entries in a table of 8-byte entries.
    fn entries(
        &mut self,
        region: Region,
        what: &str,
        each: &mut dyn FnMut(&mut Self, u64, u64) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = vec![0; region.len_bytes.min(READ_BYTES) as usize];
        let mut done = 0;
        while done < region.len_bytes {
            let (at, left) = (region.at + done, region.len_bytes - done);
            // Of a small table a read costs less than the question: tmpfs examines each page.
            if left > READ_BYTES
                && let Ok((Allocation::Hole, hole_bytes)) = self.file.allocation(at, left)
            {
                // Whole entries, so that the next read starts with one.
                let skip = if hole_bytes == left {
                    left
                } else {
                    hole_bytes & !7
                };
                if skip > 0 {
                    done += skip;
                    continue;
                }
            }
            let piece = &mut bytes[..left.min(READ_BYTES) as usize];
            if let Err(error) = self.file.read_or_zeros(&mut [IoSliceMut::new(piece)], at) {
                self.unreadable(what, &error);
                return Ok(());
            }
            let count = piece.len() as u64;
            for (index, entry) in numbers(&bytes[..count as usize]).enumerate() {
                if entry != 0 {
                    each(self, done / 8 + index as u64, entry)?;
                }
            }
            done += count;
        }
        Ok(())
    }

    /// Collects the L2 tables of the disk and of its snapshots.
    fn l1_tables(&mut self) -> Result<()> {
        let roots = self.roots;
        self.l1_table(roots.l1, true, "L1 table")?;
        // The sum of all tables is limited to the file's size, because overlapping tables would be
        // read again and again.
        let mut left = self.file_bytes;
        for (index, snapshot) in roots.snapshots.iter().enumerate() {
            let what = format!("L1 table of snapshot {index}");
            let l1 = L1 {
                at: snapshot.l1_offset,
                entries: snapshot.l1_entries.into(),
            };
            match left.checked_sub(l1.region().len_bytes) {
                _ if l1.region().len_bytes > L1_BYTES_MAX => {
                    self.corrupt(format!("{what} has {} entries", l1.entries));
                }
                Some(less) => {
                    left = less;
                    self.l1_table(l1, false, &what)?;
                }
                None => self.corrupt(format!("{what} overlaps other tables")),
            }
        }
        Ok(())
    }

    fn l1_table(&mut self, l1: L1, is_active: bool, what: &str) -> Result<()> {
        if !self.metadata(l1.region(), what)? {
            return Ok(());
        }
        self.entries(l1.region(), what, &mut |this, index, entry| {
            let host = entry & OFFSET_MASK;
            if entry & L1_RESERVED != 0 {
                this.corrupt(format!(
                    "{what}: entry {index} is {entry:#018x}: reserved bits are set"
                ));
            }
            if !host.is_multiple_of(this.roots.cluster_bytes()) {
                this.corrupt(format!(
                    "{what}: entry {index} is {entry:#018x}: not at a cluster's start"
                ));
            } else if host != 0 {
                let used = this.l2.entry(host).or_default();
                used.all += 1;
                used.active += u64::from(is_active);
            }
            Ok(())
        })
    }

    /// Counts the L2 tables and their clusters, once for each reference to the table.
    fn l2_tables(&mut self) -> Result<()> {
        let mut tables: Vec<(u64, L2Use)> = std::mem::take(&mut self.l2).into_iter().collect();
        tables.sort_unstable_by_key(|(host, _)| *host);
        for (host, used) in tables {
            let region = Region {
                at: host,
                len_bytes: self.roots.cluster_bytes(),
            };
            if self.add(region, used.all, Use::L2Table, "L2 table")? {
                self.counted.l2_tables.push((host, used));
                self.l2_table(region, used)?;
            }
        }
        Ok(())
    }

    fn l2_table(&mut self, region: Region, used: L2Use) -> Result<()> {
        let what = format!("L2 table at {:#x}", region.at);
        let is_extended = self.roots.is_extended;
        let mut walk = L2Walk {
            what: &what,
            used,
            next: None,
            first_half: None,
        };
        self.entries(region, &what, &mut |this, index, number| {
            if !is_extended {
                return this.l2_entry(&mut walk, index, number, 0);
            }
            if index.is_multiple_of(2) {
                this.flush_half(&mut walk)?;
                walk.first_half = Some(FirstHalf {
                    index: index / 2,
                    entry: number,
                });
                return Ok(());
            }
            let pair = walk.first_half.take_if(|half| half.index == index / 2);
            this.flush_half(&mut walk)?;
            let entry = pair.map_or(0, |half| half.entry);
            this.l2_entry(&mut walk, index / 2, entry, number)
        })?;
        self.flush_half(&mut walk)
    }

    /// Counts an extended entry whose second half is zero.
    fn flush_half(&mut self, walk: &mut L2Walk<'_>) -> Result<()> {
        match walk.first_half.take() {
            Some(half) => self.l2_entry(walk, half.index, half.entry, 0),
            None => Ok(()),
        }
    }

    fn l2_entry(
        &mut self,
        walk: &mut L2Walk<'_>,
        index: u64,
        entry: u64,
        bitmap: u64,
    ) -> Result<()> {
        let (what, used) = (walk.what, walk.used);
        let at_entry = || format!("{what}: entry {index} is {entry:#018x}");
        if entry & COMPRESSED != 0 {
            return self.compressed(&at_entry(), entry, bitmap, used);
        }
        if entry & L2_STANDARD_RESERVED != 0 {
            self.corrupt(format!("{}: reserved bits are set", at_entry()));
        }
        let host = entry & OFFSET_MASK;
        let is_allocated = host != 0 || (self.roots.has_data_file && entry & COPIED != 0);
        // Subclusters that store data, and those that read as zeros.
        let (data, zeros) = (bitmap & 0xffff_ffff, bitmap >> 32);
        if !is_allocated {
            if data != 0 {
                self.corrupt(format!(
                    "{}: not allocated, with allocated subclusters",
                    at_entry()
                ));
            }
            return Ok(());
        }
        if data & zeros != 0 {
            self.corrupt(format!(
                "{}: subclusters are data and zeros at once: {bitmap:#018x}",
                at_entry()
            ));
            return Ok(());
        }
        if !host.is_multiple_of(self.roots.cluster_bytes()) {
            let is_data = if self.roots.is_extended {
                data != 0
            } else {
                entry & ZERO == 0
            };
            let kind = if is_data { "data" } else { "preallocated" };
            // Both clusters that it touches stay counted, so that neither is reused.
            self.corrupt(format!(
                "{}: {kind} cluster not at a cluster's start",
                at_entry()
            ));
        }
        self.counted.allocated_clusters += used.active;
        if walk.next.is_some_and(|next| next != host) {
            self.counted.fragmented_clusters += used.active;
        }
        walk.next = Some(host + self.roots.cluster_bytes());
        if self.roots.has_data_file {
            return Ok(());
        }
        let region = Region {
            at: host,
            len_bytes: self.roots.cluster_bytes(),
        };
        self.add(region, used.all, Use::Data, "data cluster")
            .map(|_| ())
    }

    fn compressed(&mut self, at_entry: &str, entry: u64, bitmap: u64, used: L2Use) -> Result<()> {
        if entry & COPIED != 0 {
            self.corrupt(format!("{at_entry}: a compressed cluster marked as copied"));
        }
        if self.roots.has_data_file {
            self.corrupt(format!("{at_entry}: a compressed cluster with a data file"));
            return Ok(());
        }
        if bitmap != 0 {
            self.corrupt(format!("{at_entry}: a compressed cluster with subclusters"));
            return Ok(());
        }
        let offset_bits = 62 - (self.roots.cluster_bits - 8);
        let host = entry & ((1 << offset_bits) - 1);
        let sectors = ((entry & !(COPIED | COMPRESSED)) >> offset_bits) + 1;
        let region = Region {
            at: host,
            len_bytes: sectors * 512 - host % 512,
        };
        self.counted.allocated_clusters += used.active;
        self.counted.compressed_clusters += used.active;
        self.counted.fragmented_clusters += used.active;
        self.add(region, used.all, Use::Data, "compressed cluster")
            .map(|_| ())
    }

    /// Counts the directory of persistent bitmaps, their tables, and their clusters.
    fn bitmaps(&mut self, directory: Region, count: u32) -> Result<()> {
        let what = "bitmap directory";
        if count > BITMAPS_MAX || directory.len_bytes > BITMAP_DIRECTORY_BYTES_MAX {
            self.corrupt(format!(
                "{what} of {count} bitmaps in {} bytes",
                directory.len_bytes
            ));
            return Ok(());
        }
        if !self.metadata(directory, what)? {
            return Ok(());
        }
        // At most 64 MiB, checked above.
        let mut bytes = vec![0; directory.len_bytes as usize];
        if let Err(error) = self
            .file
            .read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], directory.at)
        {
            self.unreadable(what, &error);
            return Ok(());
        }
        let mut rest = &bytes[..];
        // As for snapshots: overlapping tables must not be read again and again.
        let mut left = self.file_bytes;
        for index in 0..count {
            let what = format!("bitmap {index}");
            let Some((table, entry_bytes)) = bitmap_entry(rest) else {
                self.corrupt(format!("{what} is outside its directory"));
                return Ok(());
            };
            rest = rest.get(entry_bytes..).unwrap_or_default();
            match left.checked_sub(table.len_bytes) {
                Some(less) if table.len_bytes <= BITMAP_TABLE_ENTRIES_MAX * 8 => left = less,
                _ => {
                    self.corrupt(format!("{what} has a table of {} bytes", table.len_bytes));
                    continue;
                }
            }
            if !self.metadata(table, &what)? {
                continue;
            }
            self.entries(table, &what, &mut |this, _, entry| {
                let region = Region {
                    at: entry & OFFSET_MASK,
                    len_bytes: this.roots.cluster_bytes(),
                };
                // An entry without an offset describes a cluster of equal bits.
                if region.at != 0 {
                    this.metadata(region, &what)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Counts the refcount table and its blocks, which must have no other use.
    fn refcount_tree(&mut self) -> Result<()> {
        let table = self.roots.refcount_table;
        if table.len_bytes == 0 || table.at == 0 || !self.metadata(table, "refcount table")? {
            if table.len_bytes == 0 || table.at == 0 {
                self.corrupt("the image has no refcount table".to_owned());
            }
            self.counted.is_refcount_tree_bad = true;
            return Ok(());
        }
        let before = self.counted.check_errors;
        self.entries(table, "refcount table", &mut |this, index, entry| {
            let at = entry & OFFSET_MASK;
            let at_entry = || format!("refcount table: entry {index} is {entry:#018x}");
            if entry & REFCOUNT_ENTRY_RESERVED != 0 {
                this.corrupt(format!("{}: reserved bits are set", at_entry()));
                this.counted.is_refcount_tree_bad = true;
                return Ok(());
            }
            if at == 0 {
                return Ok(());
            }
            let region = Region {
                at,
                len_bytes: this.roots.cluster_bytes(),
            };
            if !this.metadata(region, "refcount block")? {
                this.counted.is_refcount_tree_bad = true;
                return Ok(());
            }
            let count = this.counted.counts.get(at >> this.roots.cluster_bits);
            if count != 1 {
                this.corrupt(format!("{}: the block has {count} uses", at_entry()));
                this.counted.is_refcount_tree_bad = true;
            }
            Ok(())
        })?;
        self.counted.is_refcount_tree_bad |= self.counted.check_errors > before;
        Ok(())
    }
}

/// Decodes a bitmap's table, and the size in bytes of its entry in the directory.
fn bitmap_entry(bytes: &[u8]) -> Option<(Region, usize)> {
    let at = extensions::number(bytes, 0)?;
    let entries = u32::from_be_bytes(bytes.get(8..12)?.try_into().ok()?);
    let name_len = u16::from_be_bytes(bytes.get(18..20)?.try_into().ok()?);
    let extra_len = u32::from_be_bytes(bytes.get(20..24)?.try_into().ok()?);
    let len = 24u64 + u64::from(name_len) + u64::from(extra_len);
    let len = usize::try_from(len.next_multiple_of(8)).ok()?;
    let table = Region {
        at,
        len_bytes: u64::from(entries) * 8,
    };
    (len <= bytes.len().next_multiple_of(8)).then_some((table, len))
}
