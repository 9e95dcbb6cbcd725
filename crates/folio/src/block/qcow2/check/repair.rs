//! Mends what a check found: refcounts in place, the COPIED flags, or a new refcount tree behind
//! the end of the file.
//!
//! Order: refcounts are raised before anything relies on it, and lowered when nothing does. What
//! the count could not follow may still be in use, so then nothing is lowered.

use super::super::super::image_file::ImageFile;
use super::super::header::{REFCOUNT_TABLE_BYTES_MAX, REFCOUNT_TABLE_FIELD, read_raw};
use super::super::refcount;
use super::super::roots::{CORRUPT, DIRTY, Region, Roots};
use super::super::table::{COPIED, numbers};
use super::count::{COMPRESSED, OFFSET_MASK};
use super::refcount_file::RefcountFile;
use super::{Counted, Finding, Repair, Told, count};
use crate::base::{Errno, Error, Result};
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::mem::offset_of;

/// Tables are looked at in pieces of this many bytes at most.
const PIECE_BYTES: u64 = 1 << 20;

/// Mends what `repair` allows; each thing mended is told.
pub(super) fn repair(file: &dyn ImageFile, repair: Repair, told: &mut Told<'_>) -> Result<()> {
    let silent = &mut |_: &Finding| {};
    let mut roots = Roots::read(file)?;
    let mut counted = count(file, &roots, &mut Told::new(silent))?;
    if repair == Repair::All && needs_rebuild(file, &roots, &counted)? {
        told.tell(Finding::Repaired(
            "refcount structure: a new one at the end of the file".to_owned(),
        ));
        roots = rebuild(file, &roots, 0)?;
        counted = count(file, &roots, &mut Told::new(silent))?;
    }
    let mut refcounts = RefcountFile::read(file, &roots)?;
    let raised = repair == Repair::All;
    if raised {
        settle(
            &roots,
            &counted,
            &mut refcounts,
            told,
            &|refcount, references| refcount < references,
        )?;
        refcounts.sync()?;
    }
    if counted.is_complete() {
        settle(
            &roots,
            &counted,
            &mut refcounts,
            told,
            &|refcount, references| refcount > references,
        )?;
        refcounts.sync()?;
    } else {
        let why = "tables lead nowhere: what seems to be leaked may be theirs, and is left";
        told.tell(Finding::Failure(why.to_owned()));
    }
    if raised || is_settled(&counted, &mut refcounts)? {
        align_copied_flags(file, &roots, &counted, &mut refcounts, &mut |what| {
            told.tell(Finding::Repaired(what));
        })?;
    }
    Ok(())
}

/// The dirty and the corrupt bit go.
pub(super) fn clear_marks(file: &dyn ImageFile) -> Result<()> {
    let raw = read_raw(file)?;
    let marks = raw.incompatible.get();
    if raw.version.get() < 3 || marks & (DIRTY | CORRUPT) == 0 {
        return Ok(());
    }
    file.sync_data()?;
    let at = offset_of!(super::super::header::RawHeader, incompatible) as u64;
    file.write(
        &[IoSlice::new(&(marks & !(DIRTY | CORRUPT)).to_be_bytes())],
        at,
    )?;
    file.sync_data()
}

/// Whether refcounts cannot be mended where they are.
fn needs_rebuild(file: &dyn ImageFile, roots: &Roots, counted: &Counted) -> Result<bool> {
    if counted.is_refcount_tree_bad {
        return Ok(true);
    }
    let refcounts = RefcountFile::read(file, roots)?;
    let mut cluster = counted.counts.next_used(0);
    while cluster < counted.counts.clusters() {
        if counted.counts.get(cluster) > 0 && !refcounts.has_block(cluster) {
            return Ok(true);
        }
        cluster = counted.counts.next_used(cluster + 1);
    }
    Ok(false)
}

/// Sets the refcounts for which `is_wrong` holds (of refcount and references) to what was counted.
fn settle(
    roots: &Roots,
    counted: &Counted,
    refcounts: &mut RefcountFile<'_>,
    told: &mut Told<'_>,
    is_wrong: &dyn Fn(u64, u64) -> bool,
) -> Result<()> {
    let clusters = counted.counts.clusters();
    let mut cluster = 0;
    while cluster < clusters {
        if !refcounts.has_block(cluster) {
            cluster = refcounts.block_end(cluster);
            continue;
        }
        let (refcount, references) = (refcounts.get(cluster)?, counted.counts.get(cluster));
        if is_wrong(refcount, references) {
            let what = format!("cluster {cluster} refcount={refcount} reference={references}");
            match refcounts.set(cluster, references.min(roots.refcount_max())) {
                Ok(()) if references <= roots.refcount_max() => told.tell(Finding::Repaired(what)),
                Ok(()) => told.tell(Finding::Failure(format!("{what}: too many for its bits"))),
                Err(error) => return Err(error.at(what)),
            }
        }
        cluster += 1;
    }
    Ok(())
}

/// Whether all refcounts are what was counted.
fn is_settled(counted: &Counted, refcounts: &mut RefcountFile<'_>) -> Result<bool> {
    for cluster in counted.counts.used() {
        if refcounts.get(cluster)? != counted.counts.get(cluster) {
            return Ok(false);
        }
    }
    let mut cluster = 0;
    while let Some(counting) = refcounts.next_counting(cluster)? {
        if counted.counts.get(counting) == 0 {
            return Ok(false);
        }
        cluster = counting + 1;
    }
    Ok(counted.is_complete())
}

/// Writes a new refcount table and its blocks behind all that is in use, with room to describe
/// `spare` clusters more, and makes the header point to them. A refcount is the larger of what was
/// counted and what the old tree says, so that nothing becomes free here; the old tree itself is a
/// leak then.
pub(in super::super) fn rebuild(file: &dyn ImageFile, roots: &Roots, spare: u64) -> Result<Roots> {
    let without = Roots {
        refcount_table: Region {
            at: 0,
            len_bytes: 0,
        },
        ..roots.clone()
    };
    let counted = count(file, &without, &mut Told::new(&mut |_| {}))?;
    let mut old = RefcountFile::read(file, roots)?;
    let plan = Plan::make(roots, &counted, &mut old, spare)?;
    let end = (plan.start + plan.blocks.len() as u64 + plan.table_clusters) << roots.cluster_bits;
    let mut table = vec![0; (plan.table_clusters << roots.cluster_bits) as usize];
    for (number, index) in (0..).zip(&plan.blocks) {
        let at = (plan.start + number) << roots.cluster_bits;
        let slot = *index as usize * 8;
        table[slot..slot + 8].copy_from_slice(&at.to_be_bytes());
        let block = plan.block(roots, *index, &counted, &mut old)?;
        file.write(&[IoSlice::new(&block)], at)?;
    }
    let table_at = end - table.len() as u64;
    file.write(&[IoSlice::new(&table)], table_at)?;
    file.sync_data()?;
    let mut field = [0; 12];
    field[..8].copy_from_slice(&table_at.to_be_bytes());
    // The table has at most 8 MiB.
    field[8..].copy_from_slice(&(plan.table_clusters as u32).to_be_bytes());
    file.write(&[IoSlice::new(&field)], REFCOUNT_TABLE_FIELD)?;
    file.sync_data()?;
    let refcount_table = Region {
        at: table_at,
        len_bytes: table.len() as u64,
    };
    Ok(Roots {
        refcount_table,
        ..roots.clone()
    })
}

/// Where a new refcount tree goes: its blocks from `start` on, then its table.
struct Plan {
    start: u64,
    /// Indices of the blocks there will be, in order.
    blocks: BTreeSet<u64>,
    table_clusters: u64,
}

impl Plan {
    fn make(
        roots: &Roots,
        counted: &Counted,
        old: &mut RefcountFile<'_>,
        spare: u64,
    ) -> Result<Self> {
        let bits = old.block_bits();
        let start = Self::start(counted, old)?;
        let mut blocks = BTreeSet::new();
        let mut cluster = 0;
        while cluster < start {
            let next_block = old.block_end(cluster);
            if old.has_block(cluster) || counted.counts.next_used(cluster) < next_block {
                blocks.insert(cluster >> bits);
            }
            cluster = next_block;
        }
        let table_clusters_max = REFCOUNT_TABLE_BYTES_MAX >> roots.cluster_bits;
        let mut table_clusters = 0;
        loop {
            let end = start + blocks.len() as u64 + table_clusters + spare;
            let before = (blocks.len(), table_clusters);
            blocks.extend(start >> bits..=end >> bits);
            let entries = blocks.last().map_or(0, |last| last + 1);
            table_clusters = (entries * 8).div_ceil(roots.cluster_bytes());
            if table_clusters > table_clusters_max || end >> (56 - roots.cluster_bits) != 0 {
                return Err(Error::new(
                    Errno::FBIG,
                    "the refcount table cannot grow further",
                ));
            }
            if (blocks.len(), table_clusters) == before {
                return Ok(Self {
                    start,
                    blocks,
                    table_clusters,
                });
            }
        }
    }

    /// Behind all that is in use or counts as used: on a device the image may end long before the
    /// file does.
    fn start(counted: &Counted, old: &mut RefcountFile<'_>) -> Result<u64> {
        // Counted without a refcount table, which is one corruption; with more, something unknown
        // may lie anywhere.
        if counted.corruptions > 1 || counted.check_errors > 0 {
            return Ok(counted.counts.clusters());
        }
        let mut start = counted.counts.used().last().map_or(1, |last| last + 1);
        while let Some(counting) = old.next_counting(start)? {
            start = counting + 1;
        }
        Ok(start)
    }

    /// The bytes of block `index`.
    fn block(
        &self,
        roots: &Roots,
        index: u64,
        counted: &Counted,
        old: &mut RefcountFile<'_>,
    ) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 1 << roots.cluster_bits];
        let (bits, order) = (old.block_bits(), roots.refcount_order);
        let own = self.start..self.start + self.blocks.len() as u64 + self.table_clusters;
        for entry in 0..1 << bits {
            let cluster = (index << bits) + entry;
            let value = match own.contains(&cluster) {
                true => 1,
                false => counted
                    .counts
                    .get(cluster)
                    .max(old.get(cluster)?)
                    .min(roots.refcount_max()),
            };
            if value > 0 {
                refcount::put(&mut bytes, order, entry, value);
            }
        }
        Ok(bytes)
    }
}

/// Makes the COPIED flags of the disk's L1 and L2 tables say whether the refcount is one. Durable
/// at the end.
pub(in super::super) fn align_copied_flags(
    file: &dyn ImageFile,
    roots: &Roots,
    counted: &Counted,
    refcounts: &mut RefcountFile<'_>,
    tell: &mut dyn FnMut(String),
) -> Result<()> {
    walk_copied_flags(file, roots, counted, refcounts, Some(file), tell)?;
    file.sync_data()
}

/// Tells every flag that is wrong, sets it right in `fixed` if that is given, and returns how many
/// there were.
pub(super) fn walk_copied_flags(
    file: &dyn ImageFile,
    roots: &Roots,
    counted: &Counted,
    refcounts: &mut RefcountFile<'_>,
    fixed: Option<&dyn ImageFile>,
    tell: &mut dyn FnMut(String),
) -> Result<u64> {
    let bits = roots.cluster_bits;
    let mut wrong = 0;
    let is_fixing = fixed.is_some();
    let is_table = |host: u64| {
        counted
            .l2_tables
            .binary_search_by_key(&host, |(at, _)| *at)
            .is_ok()
    };
    walk_table(file, roots.l1.region(), fixed, &mut |index, entry| {
        let host = entry & OFFSET_MASK;
        if host == 0 || !is_table(host) {
            return Ok(None);
        }
        let refcount = refcounts.get(host >> bits)?;
        Ok(flagged(entry, refcount).inspect(|_| {
            wrong += 1;
            tell(format!(
                "OFLAG_COPIED L2 cluster: l1_index={index} l1_entry={entry:x} refcount={refcount}"
            ));
        }))
    })?;
    let is_second_half = |index: u64| roots.is_extended && index % 2 == 1;
    for (host, _) in counted.l2_tables.iter().filter(|(_, used)| used.active > 0) {
        let region = Region {
            at: *host,
            len_bytes: roots.cluster_bytes(),
        };
        walk_table(file, region, fixed, &mut |index, entry| {
            if is_second_half(index) {
                return Ok(None);
            }
            if entry & COMPRESSED != 0 {
                // Counted as corrupt already.
                return Ok((is_fixing && entry & COPIED != 0).then_some(entry & !COPIED));
            }
            let host = entry & OFFSET_MASK;
            if host == 0 || !host.is_multiple_of(roots.cluster_bytes()) {
                return Ok(None);
            }
            let refcount = if roots.has_data_file {
                1
            } else {
                refcounts.get(host >> bits)?
            };
            Ok(flagged(entry, refcount).inspect(|_| {
                wrong += 1;
                tell(format!(
                    "OFLAG_COPIED data cluster: l2_entry={entry:x} refcount={refcount}"
                ));
            }))
        })?;
    }
    Ok(wrong)
}

/// The entry with the flag that it should have, if it has the other.
fn flagged(entry: u64, refcount: u64) -> Option<u64> {
    ((refcount == 1) != (entry & COPIED != 0)).then_some(entry ^ COPIED)
}

/// Calls `each` with index and value of the entries that are not zero, and stores what it returns.
fn walk_table(
    file: &dyn ImageFile,
    region: Region,
    fixed: Option<&dyn ImageFile>,
    each: &mut dyn FnMut(u64, u64) -> Result<Option<u64>>,
) -> Result<()> {
    let mut bytes = vec![0; region.len_bytes.min(PIECE_BYTES) as usize];
    let mut done = 0;
    while done < region.len_bytes {
        let count = (region.len_bytes - done).min(PIECE_BYTES) as usize;
        file.read_or_zeros(
            &mut [IoSliceMut::new(&mut bytes[..count])],
            region.at + done,
        )?;
        let mut changes = Vec::new();
        for (index, entry) in numbers(&bytes[..count])
            .enumerate()
            .filter(|(_, entry)| *entry != 0)
        {
            if let Some(new) = each(done / 8 + index as u64, entry)? {
                changes.push((index * 8, new));
            }
        }
        if let (Some(file), Some((first, _)), Some((last, _))) =
            (fixed, changes.first(), changes.last())
        {
            for (at, new) in &changes {
                bytes[*at..at + 8].copy_from_slice(&new.to_be_bytes());
            }
            let dirty = *first..last + 8;
            file.write(
                &[IoSlice::new(&bytes[dirty.clone()])],
                region.at + done + dirty.start as u64,
            )?;
        }
        done += count as u64;
    }
    Ok(())
}
