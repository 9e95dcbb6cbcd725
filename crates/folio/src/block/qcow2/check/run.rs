//! A check as a whole: count, compare, repair, and count again.

use super::compare;
use super::count::count;
use super::finding::{Finding, FindingSink, ImageCheck, Repair};
use super::repair;
use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::features::{CORRUPT, DIRTY};
use crate::block::qcow2::layout::roots::Roots;

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
    let left = check(file, Repair::All, &mut |_| {})?;
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
