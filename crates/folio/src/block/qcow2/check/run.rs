//! A check of tables and refcounts: count, compare, repair, and count again.

use super::compare;
use super::count::count;
use super::finding::{Finding, FindingSink, ImageCheck, Repair};
use super::repair;
use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::features::{CORRUPT, DIRTY};
use crate::block::qcow2::layout::roots::Roots;

/// Checks the numbers that no table is needed for; returns the number of corruptions, which cannot
/// be repaired.
pub(crate) fn check_entries(roots: &Roots, report: &mut dyn FnMut(&Finding)) -> u64 {
    let mut corruptions = 0;
    let mut corruption = |what: String| {
        corruptions += 1;
        report(&Finding::Corruption(what));
    };
    let needed = roots.len_bytes.div_ceil(roots.l2_covers_bytes());
    if needed > roots.l1.entries {
        let (size, entries) = (roots.len_bytes, roots.l1.entries);
        corruption(format!(
            "header: {entries} L1 entries, the size of {size} bytes needs {needed}"
        ));
    }
    for (index, snapshot) in roots.snapshots.iter().enumerate() {
        if roots.version >= 3 && snapshot.is_incomplete() {
            corruption(format!("snapshot table entry {index} is incomplete"));
        }
    }
    corruptions
}

/// Checks the tables and refcounts, and makes the repairs that `repair` selects. After a repair the
/// image is checked again, so the result holds the errors that remain.
///
/// # Errors
///
/// EUCLEAN for a corrupt header or snapshot table, EOPNOTSUPP for unknown features, EFBIG for more
/// clusters than can be counted.
pub(crate) fn check_tables(
    file: &dyn ImageFile,
    repair: Repair,
    report: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    let roots = Roots::read(file)?;
    let mut findings = FindingSink::new(report);
    // Which flags are wrong depends on the refcounts, which are repaired first.
    let flags = match repair {
        Repair::All => compare::Flags::Count,
        Repair::Nothing | Repair::Leaks => compare::Flags::Report,
    };
    let (found, wrong_flags) = look(file, &roots, flags, &mut findings)?;
    let all = found.leaks + found.corruptions + found.check_errors + wrong_flags;
    let is_marked = roots.incompatible & (DIRTY | CORRUPT) != 0;
    // A repair changes tables, of which an unknown feature may state something.
    if repair != Repair::Nothing {
        repair::clear_unknown_autoclear(file, roots.autoclear)?;
    }
    if repair == Repair::Nothing || (all == 0 && !(repair == Repair::All && is_marked)) {
        return Ok(with_flags(found, wrong_flags));
    }
    let aligned = repair::repair(file, repair, &mut findings)?;
    let roots = Roots::read(file)?;
    let silent = &mut |_: &Finding| {};
    let (mut left, wrong_left) = look(file, &roots, flags, &mut FindingSink::new(silent))?;
    left.leaks_fixed = found.leaks.saturating_sub(left.leaks);
    left.corruptions_fixed = found.corruptions.saturating_sub(left.corruptions) + aligned;
    left = with_flags(left, wrong_left);
    // Not with errors left: the next writer must repair or reject the image.
    if repair == Repair::All && left.corruptions + left.check_errors == 0 {
        repair::clear_marks(file)?;
    }
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

/// Adds the wrong COPIED flags to the corruptions.
fn with_flags(report: ImageCheck, wrong_flags: u64) -> ImageCheck {
    ImageCheck {
        corruptions: report.corruptions + wrong_flags,
        ..report
    }
}

/// Counts and compares, without repairs. Returns the sums, and the number of wrong COPIED flags,
/// which the sums do not contain.
fn look(
    file: &dyn ImageFile,
    roots: &Roots,
    flags: compare::Flags,
    findings: &mut FindingSink<'_>,
) -> Result<(ImageCheck, u64)> {
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
    let wrong = compare::compare(file, roots, &counted, flags, &mut report, findings)?;
    Ok((report, wrong))
}
