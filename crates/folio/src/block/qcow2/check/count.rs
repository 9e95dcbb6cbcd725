//! Counts who uses each cluster of the file: a walk from the header to every leaf, each table read
//! once.
//!
//! Tables that lead nowhere, or to each other, are told and not followed. Every L2 table is read
//! once however many L1 entries point to it, and holes of the host's file are not read at all: the
//! work is bounded by the bytes that are really there.

use super::super::super::Allocation;
use super::super::super::image_file::ImageFile;
use super::super::roots::{L1, Region, Roots};
use super::super::table::{COPIED, numbers};
use super::counts::{Counts, Use};
use super::{Finding, Told};
use crate::base::{Error, Result};
use foldhash::HashMap;
use std::io::IoSliceMut;

/// Tables are read in pieces of this many bytes at most.
const READ_BYTES: u64 = 1 << 20;
const L1_ENTRY_RESERVED: u64 = 0x7f00_0000_0000_01ff;
const REFCOUNT_ENTRY_RESERVED: u64 = 0x1ff;
const L2_STANDARD_RESERVED: u64 = 0x3f00_0000_0000_01fe;
pub(super) const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
pub(super) const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
/// Limits of bitmaps, the same as QEMU's (block/qcow2-bitmap.c).
const BITMAPS_MAX: u32 = 65535;
const BITMAP_DIRECTORY_BYTES_MAX: u64 = 65535 * 1024;
const BITMAP_TABLE_ENTRIES_MAX: u64 = 0x0800_0000;

/// How often an L2 table is used, by all L1 tables and by the disk's own.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct L2Use {
    pub(in super::super) all: u64,
    pub(in super::super) active: u64,
}

/// What the walk found.
pub(in super::super) struct Counted {
    pub(in super::super) counts: Counts,
    /// L2 tables by offset; only those that can be read.
    pub(in super::super) l2_tables: Vec<(u64, L2Use)>,
    /// Something leads nowhere: what it should lead to was not counted.
    pub(in super::super) corruptions: u64,
    /// Something could not be read.
    pub(in super::super) check_errors: u64,
    /// The refcount table or a block is damaged.
    pub(in super::super) is_refcount_tree_bad: bool,
    pub(in super::super) allocated_clusters: u64,
    pub(in super::super) fragmented_clusters: u64,
    pub(in super::super) compressed_clusters: u64,
}

impl Counted {
    /// Whether every reference was understood, so that what has none is free.
    pub(in super::super) fn is_complete(&self) -> bool {
        self.corruptions == 0 && self.check_errors == 0
    }
}

/// Counts the references in the image whose tables hang on `roots`. Findings go to `told`.
///
/// Errors: EFBIG for a file with more clusters than can be counted. What cannot be read is a
/// finding, no error.
pub(in super::super) fn count(
    file: &dyn ImageFile,
    roots: &Roots,
    told: &mut Told<'_>,
) -> Result<Counted> {
    let file_bytes = file.len_bytes()?;
    let counts = Counts::new(file_bytes.div_ceil(roots.cluster_bytes()))?;
    let counted = Counted {
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
        told,
    };
    walk.run()?;
    Ok(walk.counted)
}

struct Walk<'a, 'b> {
    file: &'a dyn ImageFile,
    roots: &'a Roots,
    file_bytes: u64,
    counted: Counted,
    l2: HashMap<u64, L2Use>,
    told: &'a mut Told<'b>,
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
        self.refcount_tree()
    }

    fn corrupt(&mut self, what: String) {
        self.counted.corruptions += 1;
        self.told.tell(Finding::Corruption(what));
    }

    fn unreadable(&mut self, what: &str, error: &Error) {
        self.counted.check_errors += 1;
        self.told.tell(Finding::Failure(format!("{what}: {error}")));
    }

    /// Counts what lies in a range, as far as the file goes; whether it does.
    fn add(&mut self, region: Region, times: u64, used_as: Use, what: &str) -> Result<bool> {
        if region.len_bytes == 0 {
            return Ok(true);
        }
        let cluster = self.roots.cluster_bytes();
        let end = region.at.checked_add(region.len_bytes);
        // The last cluster of the file may be cut.
        let Some(end) = end.filter(|end| *end < self.file_bytes.saturating_add(cluster)) else {
            let Region { at, len_bytes } = region;
            self.corrupt(format!(
                "{what} at {at:#x} of {len_bytes} bytes reaches beyond the end of the file"
            ));
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

    /// Counts a table that starts at a cluster; whether it can be followed.
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

    /// Calls `each` with index and entry of those that are not zero in a table of 8-byte entries.
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
            if let Ok((Allocation::Hole, hole_bytes)) = self.file.allocation(at, left) {
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

    /// Gathers the L2 tables of the disk and of its snapshots.
    fn l1_tables(&mut self) -> Result<()> {
        let roots = self.roots;
        self.l1_table(roots.l1, true, "L1 table")?;
        // Tables that overlap would be read again and again.
        let mut left = self.file_bytes;
        for (index, snapshot) in roots.snapshots.iter().enumerate() {
            let what = format!("L1 table of snapshot {index}");
            let l1 = L1 {
                at: snapshot.l1_offset,
                entries: snapshot.l1_entries.into(),
            };
            match left.checked_sub(l1.region().len_bytes) {
                _ if l1.region().len_bytes > super::super::header::L1_BYTES_MAX => {
                    self.corrupt(format!("{what} has {} entries", l1.entries));
                }
                Some(less) => {
                    left = less;
                    self.l1_table(l1, false, &what)?;
                }
                None => self.corrupt(format!("{what} overlaps others")),
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
            if entry & L1_ENTRY_RESERVED != 0 {
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

    /// Counts the L2 tables and what they lead to, as often as they are used.
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
        // Where the data cluster before ended, in the guest's order.
        let mut next = None;
        // An entry of an extended table is two numbers, and either may be zero.
        let mut halves = (u64::MAX, 0);
        self.entries(region, &what, &mut |this, index, number| {
            if !is_extended {
                return this.l2_entry(&what, index, number, 0, used, &mut next);
            }
            if index.is_multiple_of(2) {
                this.flush_half(&what, &mut halves, used, &mut next)?;
                halves = (index / 2, number);
                return Ok(());
            }
            let entry = if halves.0 == index / 2 { halves.1 } else { 0 };
            if halves.0 != index / 2 {
                this.flush_half(&what, &mut halves, used, &mut next)?;
            }
            halves.0 = u64::MAX;
            this.l2_entry(&what, index / 2, entry, number, used, &mut next)
        })?;
        self.flush_half(&what, &mut halves, used, &mut next)
    }

    /// Counts an extended entry whose second half is zero.
    fn flush_half(
        &mut self,
        what: &str,
        halves: &mut (u64, u64),
        used: L2Use,
        next: &mut Option<u64>,
    ) -> Result<()> {
        let (index, entry) = std::mem::replace(halves, (u64::MAX, 0));
        if index == u64::MAX {
            Ok(())
        } else {
            self.l2_entry(what, index, entry, 0, used, next)
        }
    }

    fn l2_entry(
        &mut self,
        what: &str,
        index: u64,
        entry: u64,
        bitmap: u64,
        used: L2Use,
        next: &mut Option<u64>,
    ) -> Result<()> {
        let place = || format!("{what}: entry {index} is {entry:#018x}");
        if entry & COMPRESSED != 0 {
            return self.compressed(&place(), entry, bitmap, used);
        }
        if entry & L2_STANDARD_RESERVED != 0 {
            self.corrupt(format!("{}: reserved bits are set", place()));
        }
        let host = entry & OFFSET_MASK;
        let is_allocated = host != 0 || (self.roots.has_data_file && entry & COPIED != 0);
        // Subclusters that hold data, and those that read as zeros.
        let (data, zeros) = (bitmap & 0xffff_ffff, bitmap >> 32);
        if !is_allocated {
            if data != 0 {
                self.corrupt(format!(
                    "{}: not allocated, with allocated subclusters",
                    place()
                ));
            }
            return Ok(());
        }
        if data & zeros != 0 {
            self.corrupt(format!(
                "{}: subclusters are data and zeros at once: {bitmap:#018x}",
                place()
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
            // Both clusters that it touches stay counted: nobody else may have them.
            self.corrupt(format!(
                "{}: {kind} cluster not at a cluster's start",
                place()
            ));
        }
        self.counted.allocated_clusters += used.active;
        if next.is_some_and(|next| next != host) {
            self.counted.fragmented_clusters += used.active;
        }
        *next = Some(host + self.roots.cluster_bytes());
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

    fn compressed(&mut self, place: &str, entry: u64, bitmap: u64, used: L2Use) -> Result<()> {
        if entry & COPIED != 0 {
            self.corrupt(format!("{place}: a compressed cluster marked as copied"));
        }
        if self.roots.has_data_file {
            self.corrupt(format!("{place}: a compressed cluster with a data file"));
            return Ok(());
        }
        if bitmap != 0 {
            self.corrupt(format!("{place}: a compressed cluster with subclusters"));
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

    /// The directory of persistent bitmaps, their tables, and their clusters.
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
        let mut left = self.file_bytes;
        for index in 0..count {
            let what = format!("bitmap {index}");
            let Some((table, entry_bytes)) = bitmap_entry(rest) else {
                self.corrupt(format!("{what} lies outside its directory"));
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
                // Without an offset the bit says whether all is set.
                if region.at != 0 {
                    this.metadata(region, &what)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The refcount table and its blocks, which nothing else may use.
    fn refcount_tree(&mut self) -> Result<()> {
        let table = self.roots.refcount_table;
        if table.len_bytes == 0 || table.at == 0 || !self.metadata(table, "refcount table")? {
            if table.len_bytes == 0 || table.at == 0 {
                self.corrupt("there is no refcount table".to_owned());
            }
            self.counted.is_refcount_tree_bad = true;
            return Ok(());
        }
        let before = self.counted.check_errors;
        self.entries(table, "refcount table", &mut |this, index, entry| {
            let at = entry & OFFSET_MASK;
            let place = || format!("refcount table: entry {index} is {entry:#018x}");
            if entry & REFCOUNT_ENTRY_RESERVED != 0 {
                this.corrupt(format!("{}: reserved bits are set", place()));
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
                this.corrupt(format!("{}: that block has {count} uses", place()));
                this.counted.is_refcount_tree_bad = true;
            }
            Ok(())
        })?;
        self.counted.is_refcount_tree_bad |= self.counted.check_errors > before;
        Ok(())
    }
}

/// A bitmap's table and the length of its entry in the directory.
fn bitmap_entry(bytes: &[u8]) -> Option<(Region, usize)> {
    let at = super::super::extensions::number(bytes, 0)?;
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
