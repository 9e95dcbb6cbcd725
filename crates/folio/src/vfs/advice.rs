//! Advice on the use of an open file's data, and writeback of a range without a sync.

use super::attributes::FileType;
use super::file::{OFFSET_MAX, OpenFile};
use crate::base::{Errno, PAGE_SIZE, Result};
use crate::cache::{Counters, ReadPattern};
use bitflags::bitflags;
use std::ops::Range;

/// The advice of posix_fadvise(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// No special access pattern (`POSIX_FADV_NORMAL`): readahead adapts to the reads.
    Normal,
    /// Sequential reads (`POSIX_FADV_SEQUENTIAL`): the readahead window doubles.
    Sequential,
    /// Random reads (`POSIX_FADV_RANDOM`): no readahead.
    Random,
    /// The range will be read soon (`POSIX_FADV_WILLNEED`): it is read into the cache, in the
    /// background if there is a thread for it.
    WillNeed,
    /// The range will not be used soon (`POSIX_FADV_DONTNEED`): its dirty pages are written back,
    /// then the pages wholly inside it are dropped, except those in use.
    DontNeed,
    /// The data will be read once (`POSIX_FADV_NOREUSE`): reads do not mark pages as referenced.
    NoReuse,
}

bitflags! {
    /// The steps of sync_file_range(2), in this order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SyncFileRange: u32 {
        /// Wait for writeback in progress.
        const WAIT_BEFORE = 1;
        /// Write back the dirty pages.
        const WRITE = 2;
        /// Wait for writeback in progress by then.
        const WAIT_AFTER = 4;
    }
}

impl OpenFile {
    /// Applies advice: posix_fadvise(2). The next sync reports errors of the writes it starts.
    pub(crate) fn advise(&self, offset: u64, len_bytes: u64, advice: Advice) -> Result<()> {
        self.check_not_path()?;
        if self.file_type() == FileType::Fifo {
            return Err(Errno::SPIPE.into());
        }
        let range = range(offset, len_bytes)?;
        // Directories and device nodes accept any advice, and have no cached pages.
        let Ok(mapping) = self.mapping() else {
            return Ok(());
        };
        match advice {
            Advice::Normal => mapping.set_read_pattern(ReadPattern::Normal),
            Advice::Sequential => mapping.set_read_pattern(ReadPattern::Sequential),
            Advice::Random => mapping.set_read_pattern(ReadPattern::Random),
            Advice::NoReuse => mapping.set_no_reuse(),
            Advice::WillNeed => {
                let page = PAGE_SIZE as u64;
                let first = range.start / page;
                mapping.read_ahead(first, range.end.div_ceil(page) - first);
            }
            Advice::DontNeed => {
                // The mapping remembers a failure, and the next sync reports it.
                let _ = mapping.write_back(range.clone());
                // The rest of the last page is past the end of the file, so it can be dropped, too.
                let reaches_end = range.end >= mapping.size_bytes();
                mapping.invalidate(range.start..if reaches_end { u64::MAX } else { range.end });
            }
        }
        Ok(())
    }

    /// Writes back a range: sync_file_range(2). Data only, and not durable across a power cut.
    pub(crate) fn sync_range(
        &self,
        offset: u64,
        len_bytes: u64,
        flags: SyncFileRange,
    ) -> Result<()> {
        self.check_not_path()?;
        if !SyncFileRange::all().contains(flags) {
            return Err(Errno::INVAL.into());
        }
        let range = range(offset, len_bytes)?;
        // Unlike advice, this call rejects a range that ends too far.
        if offset + len_bytes > OFFSET_MAX {
            return Err(Errno::INVAL.into());
        }
        if !matches!(
            self.file_type(),
            FileType::Regular | FileType::Directory | FileType::Symlink | FileType::BlockDevice
        ) {
            return Err(Errno::SPIPE.into());
        }
        let Ok(mapping) = self.mapping() else {
            return Ok(());
        };
        if flags.contains(SyncFileRange::WAIT_BEFORE) {
            mapping.wait_written();
        }
        let written = if flags.contains(SyncFileRange::WRITE) {
            mapping.write_dirty(range)
        } else {
            Ok(())
        };
        if flags.contains(SyncFileRange::WAIT_AFTER) {
            mapping.wait_written();
        }
        if flags.intersects(SyncFileRange::WAIT_BEFORE | SyncFileRange::WAIT_AFTER) {
            self.report_error(mapping, written)
        } else {
            // Linux has only started the writes here; the next call that waits reports a failure.
            Ok(())
        }
    }

    /// Returns the cache counters of this file; all zeros for a file without cached pages.
    pub(crate) fn counters(&self) -> Result<Counters> {
        self.check_not_path()?;
        Ok(self
            .mapping()
            .map_or_else(|_| Counters::default(), |mapping| mapping.counters()))
    }

    fn file_type(&self) -> FileType {
        self.inode().common().file_type
    }
}

/// Returns a byte range of a file; length 0 extends to the end.
fn range(offset: u64, len_bytes: u64) -> Result<Range<u64>> {
    if offset > OFFSET_MAX || len_bytes > OFFSET_MAX {
        return Err(Errno::INVAL.into());
    }
    let end = match len_bytes {
        0 => OFFSET_MAX,
        _ => (offset + len_bytes).min(OFFSET_MAX),
    };
    Ok(offset..end)
}
