//! Repairs the findings of a check: refcounts in place, the COPIED flags, or a new refcount tree
//! behind the end of the file.
//!
//! Order: refcounts are raised before a table relies on them, and lowered when none does. Clusters
//! that the count could not reach may still be in use, so after an incomplete count no refcount is
//! lowered.

use super::count::{CountedReferences, count};
use super::finding::{Finding, FindingSink, Repair};
use super::refcount_file::RefcountFile;
use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::features::{AUTOCLEAR_KEPT, CORRUPT, DIRTY};
use crate::block::qcow2::layout::raw_header::{
    AUTOCLEAR_FIELD, INCOMPATIBLE_FIELD, REFCOUNT_TABLE_BYTES_MAX, REFCOUNT_TABLE_FIELD, read_raw,
};
use crate::block::qcow2::layout::refcount_block;
use crate::block::qcow2::layout::roots::{Region, Roots};
use crate::block::qcow2::layout::table::{COMPRESSED, COPIED, OFFSET_MASK, numbers};
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};

/// Tables are read in pieces of this many bytes at most.
const PIECE_BYTES: u64 = 1 << 20;

/// Makes the repairs that `repair` selects, and reports each. Returns the number of corrected
/// COPIED flags.
pub(crate) fn repair(
    file: &dyn ImageFile,
    repair: Repair,
    findings: &mut FindingSink<'_>,
) -> Result<u64> {
    let silent = &mut |_: &Finding| {};
    let mut roots = Roots::read(file)?;
    let mut counted = count(file, &roots, &mut FindingSink::new(silent))?;
    if repair == Repair::All && needs_rebuild(file, &roots, &counted)? {
        findings.report(Finding::Repaired(
            "refcount structure: a new one at the end of the file".to_owned(),
        ));
        roots = rebuild(file, &roots, 0, 0)?;
        counted = count(file, &roots, &mut FindingSink::new(silent))?;
    }
    let mut refcounts = RefcountFile::read(file, &roots)?;
    let raised = repair == Repair::All;
    // Raised first: a cluster whose refcount is too low may be given away by the next write.
    if raised {
        correct_refcounts(
            &roots,
            &counted,
            &mut refcounts,
            findings,
            &|refcount, references| refcount < references,
        )?;
        refcounts.sync()?;
    }
    if counted.is_complete() {
        correct_refcounts(
            &roots,
            &counted,
            &mut refcounts,
            findings,
            &|refcount, references| refcount > references,
        )?;
        refcounts.sync()?;
    } else {
        let why = "some tables could not be followed: clusters that seem leaked may be theirs, and are kept";
        findings.report(Finding::Failure(why.to_owned()));
    }
    // A flag states that the refcount is one, so it follows the refcounts.
    if raised || is_correct(&counted, &mut refcounts)? {
        return align_copied_flags(file, &roots, &counted, &mut refcounts, &mut |what| {
            findings.report(Finding::Repaired(what));
        });
    }
    Ok(0)
}

/// Clears autoclear features that Folio does not know, which later changes make untrue.
pub(crate) fn clear_unknown_autoclear(file: &dyn ImageFile, autoclear: u64) -> Result<()> {
    if autoclear & !AUTOCLEAR_KEPT == 0 {
        return Ok(());
    }
    let kept = (autoclear & AUTOCLEAR_KEPT).to_be_bytes();
    file.write(&[IoSlice::new(&kept)], AUTOCLEAR_FIELD)?;
    file.sync_data()
}

/// Clears the dirty and the corrupt bit.
pub(crate) fn clear_marks(file: &dyn ImageFile) -> Result<()> {
    let raw = read_raw(file)?;
    let marks = raw.incompatible.get();
    if raw.version.get() < 3 || marks & (DIRTY | CORRUPT) == 0 {
        return Ok(());
    }
    // All repairs are durable before the image counts as clean.
    file.sync_data()?;
    file.write(
        &[IoSlice::new(&(marks & !(DIRTY | CORRUPT)).to_be_bytes())],
        INCOMPATIBLE_FIELD,
    )?;
    file.sync_data()
}

/// Whether the refcounts cannot be corrected in place.
fn needs_rebuild(file: &dyn ImageFile, roots: &Roots, counted: &CountedReferences) -> Result<bool> {
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

/// Sets the refcounts for which `is_wrong(refcount, references)` holds to the counted references.
fn correct_refcounts(
    roots: &Roots,
    counted: &CountedReferences,
    refcounts: &mut RefcountFile<'_>,
    findings: &mut FindingSink<'_>,
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
                Ok(()) if references <= roots.refcount_max() => {
                    findings.report(Finding::Repaired(what))
                }
                Ok(()) => {
                    findings.report(Finding::Failure(format!("{what}: too many for its bits")))
                }
                Err(error) => return Err(error.at(what)),
            }
        }
        cluster += 1;
    }
    Ok(())
}

/// Whether all refcounts equal the counted references.
fn is_correct(counted: &CountedReferences, refcounts: &mut RefcountFile<'_>) -> Result<bool> {
    for cluster in counted.counts.used() {
        if refcounts.get(cluster)? != counted.counts.get(cluster) {
            return Ok(false);
        }
    }
    let mut cluster = 0;
    while let Some(in_use) = refcounts.next_in_use(cluster)? {
        if counted.counts.get(in_use) == 0 {
            return Ok(false);
        }
        cluster = in_use + 1;
    }
    Ok(counted.is_complete())
}

/// Writes a new refcount table and its blocks behind all clusters in use, at cluster `first` or
/// later, with room to describe `spare` more clusters, and makes the header point to them. Each
/// refcount is the larger of the counted references and the old refcount, so no cluster becomes
/// free here; the old tree itself becomes a leak.
pub(crate) fn rebuild(
    file: &dyn ImageFile,
    roots: &Roots,
    first: u64,
    spare: u64,
) -> Result<Roots> {
    let without = Roots {
        refcount_table: Region {
            at: 0,
            len_bytes: 0,
        },
        ..roots.clone()
    };
    // Without the old tree, which is replaced, and may be damaged.
    let counted = count(file, &without, &mut FindingSink::new(&mut |_| {}))?;
    let mut old = RefcountFile::read(file, roots)?;
    let plan = TreePlan::make(roots, &counted, &mut old, first, spare)?;
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
    // The tree is durable before the header names it.
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

/// The place of a new refcount tree: its blocks from cluster `start` on, then its table.
struct TreePlan {
    start: u64,
    /// Indices of the new blocks, in order.
    blocks: BTreeSet<u64>,
    table_clusters: u64,
}

impl TreePlan {
    fn make(
        roots: &Roots,
        counted: &CountedReferences,
        old: &mut RefcountFile<'_>,
        first: u64,
        spare: u64,
    ) -> Result<Self> {
        let bits = old.block_bits();
        let start = Self::start(counted, old)?.max(first);
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
            // The blocks describe themselves and the table, so both grow until nothing is added.
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

    /// Returns the first cluster behind all that have references or a refcount. On a device the
    /// image may end long before the file does.
    fn start(counted: &CountedReferences, old: &mut RefcountFile<'_>) -> Result<u64> {
        // The count ran without a refcount table, which is one corruption. With more, unknown
        // tables may be anywhere.
        if counted.corruptions > 1 || counted.check_errors > 0 {
            return Ok(counted.counts.clusters());
        }
        let mut start = counted.counts.used().last().map_or(1, |last| last + 1);
        while let Some(in_use) = old.next_in_use(start)? {
            start = in_use + 1;
        }
        Ok(start)
    }

    /// Encodes block `index`.
    fn block(
        &self,
        roots: &Roots,
        index: u64,
        counted: &CountedReferences,
        old: &mut RefcountFile<'_>,
    ) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 1 << roots.cluster_bits];
        let (bits, order) = (old.block_bits(), roots.refcount_order);
        let own = self.start..self.start + self.blocks.len() as u64 + self.table_clusters;
        for entry in 0..1 << bits {
            let cluster = (index << bits) + entry;
            let value = if own.contains(&cluster) {
                1
            } else {
                counted
                    .counts
                    .get(cluster)
                    .max(old.get(cluster)?)
                    .min(roots.refcount_max())
            };
            if value > 0 {
                refcount_block::put(&mut bytes, order, entry, value);
            }
        }
        Ok(bytes)
    }
}

/// Sets the COPIED flags of the disk's L1 and L2 tables where the refcount is one, clears them
/// elsewhere, and makes that durable. Returns the number of changed flags.
pub(crate) fn align_copied_flags(
    file: &dyn ImageFile,
    roots: &Roots,
    counted: &CountedReferences,
    refcounts: &mut RefcountFile<'_>,
    report: &mut dyn FnMut(String),
) -> Result<u64> {
    let wrong = walk_copied_flags(file, roots, counted, refcounts, Some(file), report)?;
    file.sync_data()?;
    Ok(wrong)
}

/// Reports every wrong flag, corrects it in `fixed` if given, and returns their number.
pub(crate) fn walk_copied_flags(
    file: &dyn ImageFile,
    roots: &Roots,
    counted: &CountedReferences,
    refcounts: &mut RefcountFile<'_>,
    fixed: Option<&dyn ImageFile>,
    report: &mut dyn FnMut(String),
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
            report(format!(
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
                // Reported by the count already.
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
                report(format!(
                    "OFLAG_COPIED data cluster: l2_entry={entry:x} refcount={refcount}"
                ));
            }))
        })?;
    }
    Ok(wrong)
}

/// Returns the entry with the correct flag, if its flag is wrong.
fn flagged(entry: u64, refcount: u64) -> Option<u64> {
    ((refcount == 1) != (entry & COPIED != 0)).then_some(entry ^ COPIED)
}

/// Calls `each` with index and value of the nonzero entries, and stores the values that it returns.
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
