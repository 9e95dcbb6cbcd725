//! A check as a whole: count, compare, repair, and count again.

use super::compare;
use super::count::count;
use super::finding::{Finding, FindingSink, ImageCheck, Repair};
use super::repair;
use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::features::{CORRUPT, DIRTY};
use crate::block::qcow2::layout::roots::Roots;
use crate::block::qcow2::layout::snapshot_table::SnapshotEntry;

/// Checks the image in `file`, which no device has open, and makes the repairs that `repair`
/// selects. After a repair the image is checked again, so the result holds the errors that remain.
///
/// # Errors
///
/// EUCLEAN for a corrupt header or snapshot table, EOPNOTSUPP for unknown features, EFBIG for more
/// clusters than can be counted.
pub(crate) fn check(
    file: &dyn ImageFile,
    repair: Repair,
    report: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    let mut found = check_tables(file, repair, report)?;
    found.corruptions += check_entries(&Roots::read(file)?, &mut FindingSink::new(report));
    Ok(found)
}

/// Checks the numbers that no table is needed for; returns the number of corruptions, which cannot
/// be repaired.
fn check_entries(roots: &Roots, findings: &mut FindingSink<'_>) -> u64 {
    let mut corruptions = 0;
    let mut corruption = |what: String| {
        corruptions += 1;
        findings.report(Finding::Corruption(what));
    };
    let needed = roots.len_bytes.div_ceil(roots.l2_covers_bytes());
    if needed > roots.l1.entries {
        let (size, entries) = (roots.len_bytes, roots.l1.entries);
        corruption(format!(
            "header: {entries} L1 entries, the size of {size} bytes needs {needed}"
        ));
    }
    // Version 3 requires the state's size in 64 bits and the disk's size.
    let incomplete = |snapshot: &SnapshotEntry| snapshot.disk_bytes().is_none();
    for (index, snapshot) in roots.snapshots.iter().enumerate() {
        if roots.version >= 3 && incomplete(snapshot) {
            corruption(format!("snapshot table entry {index} is incomplete"));
        }
    }
    corruptions
}

/// Checks the tables and refcounts, and makes the repairs that `repair` selects.
fn check_tables(
    file: &dyn ImageFile,
    repair: Repair,
    report: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    let roots = Roots::read(file)?;
    let mut findings = FindingSink::new(report);
    let found = look(file, &roots, &mut findings)?;
    let is_clean =
        |report: &ImageCheck| report.leaks + report.corruptions + report.check_errors == 0;
    let is_marked = roots.incompatible & (DIRTY | CORRUPT) != 0;
    if repair == Repair::Nothing || (is_clean(&found) && !(repair == Repair::All && is_marked)) {
        return Ok(found);
    }
    repair::repair(file, repair, &mut findings)?;
    let mut left = look(
        file,
        &Roots::read(file)?,
        &mut FindingSink::new(&mut |_| {}),
    )?;
    if repair == Repair::All && left.corruptions + left.check_errors == 0 {
        repair::clear_marks(file)?;
    }
    left.leaks_fixed = found.leaks.saturating_sub(left.leaks);
    left.corruptions_fixed = found.corruptions.saturating_sub(left.corruptions);
    Ok(left)
}

/// Corrects the refcounts of a dirty image before it is written, and clears the dirty bit.
///
/// # Errors
///
/// EUCLEAN for errors that cannot be repaired.
pub(crate) fn repair_stale_refcounts(file: &dyn ImageFile) -> Result<()> {
    let left = check_tables(file, Repair::All, &mut |_| {})?;
    match left.corruptions + left.check_errors {
        0 => Ok(()),
        _ => Err(Error::corrupt(
            "the image was not closed, and its tables contradict each other",
        )),
    }
}

/// Counts and compares, without repairs.
fn look(file: &dyn ImageFile, roots: &Roots, findings: &mut FindingSink<'_>) -> Result<ImageCheck> {
    let counted = count(file, roots, findings)?;
    let mut report = ImageCheck {
        total_clusters: roots.len_bytes.div_ceil(roots.cluster_bytes()),
        allocated_clusters: counted.allocated_clusters,
        fragmented_clusters: counted.fragmented_clusters,
        compressed_clusters: counted.compressed_clusters,
        corruptions: counted.corruptions,
        check_errors: counted.check_errors,
        ..ImageCheck::default()
    };
    compare::compare(file, roots, &counted, &mut report, findings)?;
    Ok(report)
}
