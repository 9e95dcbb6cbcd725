//! Writes a repair: the pages that differ, then those of the superblocks.

use crate::base::{Errno, Error, PAGE_SIZE, Result};
use crate::block::{Device, OverlayDevice};
use crate::fs::ext4::check::{CheckFinding, CheckReport, journal_blocks};
use crate::fs::ext4::layout::disk::SUPERBLOCK_OFFSET;
use crate::fs::ext4::layout::superblock::Superblock;
use std::ops::Range;
use std::sync::Arc;

/// The changes that repair a file system, not written yet.
pub struct RepairPlan {
    pub(super) device: Arc<dyn Device>,
    pub(super) overlay: Arc<OverlayDevice>,
    pub(super) pages: Vec<ChangedPage>,
    /// The state before the repair, after a replay of the journal in memory.
    pub before: CheckReport,
    /// The state after the repair.
    pub after: CheckReport,
    /// Number of repaired errors that `e2fsck -p` would leave to `e2fsck -y`.
    pub beyond_preen: u64,
    /// Errors that remain, at most as many as findings are reported. Nothing is written then.
    pub remaining: Vec<CheckFinding>,
}

impl RepairPlan {
    /// Returns whether the repaired file system has no error.
    pub fn is_clean(&self) -> bool {
        self.after.is_clean()
    }

    /// Returns the number of bytes to write.
    pub fn changed_bytes(&self) -> u64 {
        self.pages.iter().map(|page| page.len as u64).sum()
    }
}

/// A part of the device that the repair changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChangedPage {
    pub(super) offset: u64,
    pub(super) len: usize,
    /// Whether it holds the superblock of the file system or of the journal.
    is_last: bool,
}

/// Returns the pages of `overlay` that differ from `device`, in order. The log of a journal, which
/// is empty after the repair, is left as it is: until the superblocks are written, a mount or
/// e2fsck may still replay it.
pub(super) fn changed_pages(
    overlay: &Arc<OverlayDevice>,
    device: &Arc<dyn Device>,
) -> Result<Vec<ChangedPage>> {
    let upper: Arc<dyn Device> = overlay.clone();
    let (log, journal_head) = log_ranges(&upper)?;
    let superblock = SUPERBLOCK_OFFSET / PAGE_SIZE as u64 * PAGE_SIZE as u64;
    let mut pages = Vec::new();
    let (mut new, mut old) = (vec![0; PAGE_SIZE], vec![0; PAGE_SIZE]);
    for offset in overlay.written_offsets() {
        let len = (device.len_bytes() - offset).min(PAGE_SIZE as u64) as usize;
        let is_journal_head = journal_head == Some(offset);
        if !is_journal_head && log.iter().any(|range| range.contains(&offset)) {
            continue;
        }
        overlay.read_at(&mut new[..len], offset)?;
        device.read_at(&mut old[..len], offset)?;
        if new[..len] != old[..len] {
            pages.push(ChangedPage {
                offset,
                len,
                is_last: offset == superblock || is_journal_head,
            });
        }
    }
    Ok(pages)
}

/// Returns the byte ranges of whole pages that hold only the journal, and the offset of the page
/// with its superblock.
fn log_ranges(device: &Arc<dyn Device>) -> Result<(Vec<Range<u64>>, Option<u64>)> {
    let Ok(superblock) = Superblock::load(&**device) else {
        return Ok((Vec::new(), None));
    };
    let Some(blocks) = journal_blocks(device, &superblock)? else {
        return Ok((Vec::new(), None));
    };
    let (page, size) = (PAGE_SIZE as u64, superblock.block_size as u64);
    let whole_pages = |(start, len): &(u64, u32)| {
        let (start, end) = (start * size, (start + u64::from(*len)) * size);
        start.next_multiple_of(page)..end / page * page
    };
    let head = blocks
        .runs
        .first()
        .map(|(start, _)| start * size / page * page);
    Ok((blocks.runs.iter().map(whole_pages).collect(), head))
}

impl RepairPlan {
    /// Returns the parts of the device that the repair changes, in the order of the device, and
    /// their present bytes.
    pub(super) fn read_page(
        &self,
        page: &ChangedPage,
        is_new: bool,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        bytes.resize(page.len, 0);
        if is_new {
            self.overlay.read_at(bytes, page.offset)
        } else {
            self.device.read_at(bytes, page.offset)
        }
    }

    /// Writes the repair to the device; durable when this returns.
    ///
    /// # Errors
    /// - EROFS for a read-only device.
    /// - EUCLEAN if errors remain: nothing is written.
    /// - The device's errors. The undo file has the old bytes.
    pub fn write(&self) -> Result<()> {
        if !self.is_clean() {
            return Err(Error::new(
                Errno::UCLEAN,
                "errors without a single repair remain",
            ));
        }
        if self.device.is_read_only() {
            return Err(Error::new(Errno::ROFS, "the image is read-only"));
        }
        let mut bytes = Vec::new();
        // The superblock says that the file system is clean: all the rest is durable before it.
        for is_last in [false, true] {
            for page in self.pages.iter().filter(|page| page.is_last == is_last) {
                self.read_page(page, true, &mut bytes)?;
                self.device.write_at(&bytes, page.offset)?;
            }
            self.device.flush()?;
        }
        Ok(())
    }
}
