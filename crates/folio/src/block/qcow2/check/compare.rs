//! Compares the counted references with the file's refcounts and COPIED flags.

use super::count::CountedReferences;
use super::finding::{Finding, FindingSink, ImageCheck};
use super::refcount_file::RefcountFile;
use super::repair::walk_copied_flags;
use crate::base::Result;
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::roots::Roots;

/// What happens to wrong COPIED flags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flags {
    /// They are counted and reported.
    Report,
    /// They are counted.
    Count,
}

/// Reports every difference in refcounts, and adds it to the sums. Returns the number of wrong
/// COPIED flags.
pub(crate) fn compare(
    file: &dyn ImageFile,
    roots: &Roots,
    counted: &CountedReferences,
    flags: Flags,
    report: &mut ImageCheck,
    findings: &mut FindingSink<'_>,
) -> Result<u64> {
    let mut refcounts = RefcountFile::read(file, roots)?;
    let clusters = counted.counts.clusters();
    let mut last = 0;
    let mut cluster = 0;
    // The next cluster that may have references; kept, because the search may be long.
    let mut used = 0;
    while cluster < clusters {
        if !refcounts.has_block(cluster) {
            if used < cluster {
                used = counted.counts.next_used(cluster);
            }
            // Neither references nor refcounts up to here.
            let next = used.min(refcounts.block_end(cluster));
            if next > cluster {
                cluster = next;
                continue;
            }
        }
        let references = counted.counts.get(cluster);
        let refcount = refcounts.get(cluster)?;
        if refcount > 0 || references > 0 {
            last = cluster;
        }
        let what = || format!("cluster {cluster} refcount={refcount} reference={references}");
        if refcount > references {
            report.leaks += 1;
            findings.report(Finding::Leak(what()));
        } else if refcount < references {
            report.corruptions += 1;
            findings.report(Finding::Corruption(what()));
        } else if counted.counts.overlaps(cluster) {
            report.corruptions += 1;
            findings.report(Finding::Corruption(format!(
                "cluster {cluster} holds metadata and something else"
            )));
        }
        cluster += 1;
    }
    report.image_end_offset = (last + 1) << roots.cluster_bits;
    walk_copied_flags(file, roots, counted, &mut refcounts, None, &mut |what| {
        if flags == Flags::Report {
            findings.report(Finding::Corruption(what));
        }
    })
}
