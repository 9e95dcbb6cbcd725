//! Counted references against the file's refcounts and COPIED flags.

use super::super::super::image_file::ImageFile;
use super::super::roots::Roots;
use super::refcount_file::RefcountFile;
use super::repair::walk_copied_flags;
use super::{Counted, Finding, ImageCheck, Told};
use crate::base::Result;

/// Tells every difference, and adds it to the report.
pub(super) fn compare(
    file: &dyn ImageFile,
    roots: &Roots,
    counted: &Counted,
    report: &mut ImageCheck,
    told: &mut Told<'_>,
) -> Result<()> {
    let mut refcounts = RefcountFile::read(file, roots)?;
    let clusters = counted.counts.clusters();
    let mut last = 0;
    let mut cluster = 0;
    // The next cluster that may be counted; looked for once, for the way there may be long.
    let mut used = 0;
    while cluster < clusters {
        if !refcounts.has_block(cluster) {
            if used < cluster {
                used = counted.counts.next_used(cluster);
            }
            // Neither counted nor described: nothing to compare up to here.
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
            told.tell(Finding::Leak(what()));
        } else if refcount < references {
            report.corruptions += 1;
            told.tell(Finding::Corruption(what()));
        } else if counted.counts.overlaps(cluster) {
            report.corruptions += 1;
            told.tell(Finding::Corruption(format!(
                "cluster {cluster} holds metadata and something else"
            )));
        }
        cluster += 1;
    }
    report.image_end_offset = (last + 1) << roots.cluster_bits;
    let wrong = walk_copied_flags(file, roots, counted, &mut refcounts, None, &mut |what| {
        told.tell(Finding::Corruption(what));
    })?;
    report.corruptions += wrong;
    Ok(())
}
