//! The check of an EROFS, with a report in the form of ext4's.

use super::findings::{FindingPrinter, FindingRecord};
use folio::Result;
use folio::block::Device;
use folio::ext4;
use folio_erofs::check::{CheckFinding, CheckListener, check};
use std::ops::ControlFlow;
use std::sync::Arc;

impl CheckListener for FindingPrinter<'_> {
    fn finding(&mut self, finding: &CheckFinding) {
        let record = FindingRecord {
            severity: finding.severity.name(),
            structure: finding.structure.name(),
            group: None,
            inode: finding.inode,
            block: finding.block,
            message: finding.what.clone(),
        };
        self.add(finding.severity, record, finding);
    }

    fn progress(&mut self, done: u64, total: u64) -> ControlFlow<()> {
        self.show("inodes", done, total)
    }
}

/// Checks the EROFS on a device.
pub(super) fn report(
    device: &Arc<dyn Device>,
    findings_max: usize,
    printer: &mut FindingPrinter<'_>,
) -> Result<ext4::CheckReport> {
    let found = check(device, findings_max, printer)?;
    Ok(ext4::CheckReport {
        errors: found.errors,
        warnings: found.warnings,
        unreported: found.unreported,
        is_complete: found.is_complete,
        replayed_transactions: None,
        inodes_used: found.inodes_used,
        inode_count: found.inode_count,
        directories: found.directories,
        // It has no free space.
        blocks_used: found.block_count,
        block_count: found.block_count,
        block_size: found.block_size,
    })
}
