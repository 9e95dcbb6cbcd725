//! Is an image what it should be: counts the references in the file, compares them with the
//! refcounts, and mends.
//!
//! ```text
//!   roots.rs  ->  count.rs          every table once       counts.rs         references by cluster
//!                   |
//!                   v
//!                 compare.rs        against               refcount_file.rs   refcounts by cluster
//!                   |
//!                   v
//!                 repair.rs         in place, or a new refcount tree behind the end
//! ```
//!
//! Nothing here is recursive, nothing is believed: see `count.rs` for what bounds the work.
//! Neighbours: snapshots and resize count with the same code and change refcounts by what the count
//! differs before and after.

mod compare;
mod count;
mod counts;
mod refcount_file;
mod repair;

pub(super) use count::{Counted, count};
pub(super) use refcount_file::RefcountFile;
pub(super) use repair::{align_copied_flags, rebuild};

use super::super::image_file::ImageFile;
use super::roots::{CORRUPT, DIRTY, Roots};
use crate::base::{Error, Result};
use std::fmt;

/// What a check mends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Repair {
    /// Nothing; the image is not written.
    #[default]
    Nothing,
    /// Clusters that count as used and are not.
    Leaks,
    /// All that can be mended without a guess.
    All,
}

/// Something that a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Space that is lost, no harm to data.
    Leak(String),
    /// Data is in danger, or lost.
    Corruption(String),
    /// A part of the check could not be made.
    Failure(String),
    /// A leak or a corruption that was mended.
    Repaired(String),
}

impl fmt::Display for Finding {
    /// In qemu-img's words: "Leaked", "ERROR", "Repairing".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leak(what) => write!(f, "Leaked {what}"),
            Self::Corruption(what) | Self::Failure(what) => write!(f, "ERROR {what}"),
            Self::Repaired(what) => write!(f, "Repairing {what}"),
        }
    }
}

/// What a check found in all; the names are those of qemu-img's JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImageCheck {
    /// End of the last cluster in use.
    pub image_end_offset: u64,
    /// Clusters of the disk.
    pub total_clusters: u64,
    /// Of these, how many are stored.
    pub allocated_clusters: u64,
    /// Of these, how many do not follow the one before.
    pub fragmented_clusters: u64,
    /// Of these, how many are compressed.
    pub compressed_clusters: u64,
    /// Clusters that count as used and are not, and are still so.
    pub leaks: u64,
    /// Contradictions, those that are still there.
    pub corruptions: u64,
    /// What could not be checked.
    pub check_errors: u64,
    /// Leaks that were mended.
    pub leaks_fixed: u64,
    /// Contradictions that were mended.
    pub corruptions_fixed: u64,
}

/// Where findings go.
pub(super) struct Told<'a> {
    tell: &'a mut dyn FnMut(&Finding),
}

impl<'a> Told<'a> {
    /// Tells `tell` of each finding.
    pub(super) fn new(tell: &'a mut dyn FnMut(&Finding)) -> Self {
        Self { tell }
    }

    fn tell(&mut self, finding: Finding) {
        (self.tell)(&finding);
    }
}

/// Checks the image in `file`, which no device has open, and mends what `repair` says. After a
/// repair the image is looked at again: what stays in the report is still there.
///
/// Errors: EUCLEAN for a header or snapshot table that leads nowhere, EOPNOTSUPP for unknown
/// features, EFBIG for more clusters than can be counted.
pub(in crate::block) fn check(
    file: &dyn ImageFile,
    repair: Repair,
    tell: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    let roots = Roots::read(file)?;
    let mut told = Told::new(tell);
    let found = look(file, &roots, &mut told)?;
    let is_clean =
        |report: &ImageCheck| report.leaks + report.corruptions + report.check_errors == 0;
    let has_mark = roots.incompatible & (DIRTY | CORRUPT) != 0;
    if repair == Repair::Nothing || (is_clean(&found) && !(repair == Repair::All && has_mark)) {
        return Ok(found);
    }
    repair::repair(file, repair, &mut told)?;
    let mut left = look(file, &Roots::read(file)?, &mut Told::new(&mut |_| {}))?;
    if repair == Repair::All && left.corruptions + left.check_errors == 0 {
        repair::clear_marks(file)?;
    }
    left.leaks_fixed = found.leaks.saturating_sub(left.leaks);
    left.corruptions_fixed = found.corruptions.saturating_sub(left.corruptions);
    Ok(left)
}

/// Makes the refcounts of a dirty image what the tables say, and clears the mark: before it is
/// written.
///
/// Errors: EUCLEAN if something is wrong that cannot be mended.
pub(super) fn mend_stale_refcounts(file: &dyn ImageFile) -> Result<()> {
    let left = check(file, Repair::All, &mut |_| {})?;
    match left.corruptions + left.check_errors {
        0 => Ok(()),
        _ => Err(Error::corrupt(
            "the image was not closed, and its tables contradict each other",
        )),
    }
}

fn look(file: &dyn ImageFile, roots: &Roots, told: &mut Told<'_>) -> Result<ImageCheck> {
    let counted = count(file, roots, told)?;
    let mut report = ImageCheck {
        total_clusters: roots.len_bytes.div_ceil(roots.cluster_bytes()),
        allocated_clusters: counted.allocated_clusters,
        fragmented_clusters: counted.fragmented_clusters,
        compressed_clusters: counted.compressed_clusters,
        corruptions: counted.corruptions,
        check_errors: counted.check_errors,
        ..ImageCheck::default()
    };
    compare::compare(file, roots, &counted, &mut report, told)?;
    Ok(report)
}
