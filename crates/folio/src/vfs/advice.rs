//! Open files: what a program says about how it will use the data, and writing it without syncing.

use super::file::{OFFSET_MAX, OpenFile};
use super::{Counters, FileType};
use crate::base::{Errno, PAGE_SIZE, Result};
use crate::cache::ReadPattern;
use bitflags::bitflags;
use std::ops::Range;

/// What posix_fadvise(2) can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Nothing special (`POSIX_FADV_NORMAL`): readahead watches how the file is read.
    Normal,
    /// It will be read from front to end (`POSIX_FADV_SEQUENTIAL`): readahead goes twice as far.
    Sequential,
    /// It will be read here and there (`POSIX_FADV_RANDOM`): nothing is read ahead.
    Random,
    /// The range will be read soon (`POSIX_FADV_WILLNEED`): it is brought in, in the background
    /// where there is a thread for it.
    WillNeed,
    /// The range will not be used soon (`POSIX_FADV_DONTNEED`): its dirty pages are written, then
    /// those that lie wholly inside it leave memory, unless somebody is using them.
    DontNeed,
    /// It will be read once (`POSIX_FADV_NOREUSE`): reads do not count as a reason to keep pages.
    NoReuse,
}

bitflags! {
    /// What sync_file_range(2) shall do, in this order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SyncFileRange: u32 {
        /// Wait for writeback that is under way.
        const WAIT_BEFORE = 1;
        /// Write the dirty pages.
        const WRITE = 2;
        /// Wait for writeback that is under way by then.
        const WAIT_AFTER = 4;
    }
}

impl OpenFile {
    /// posix_fadvise(2). Errors of the writes it starts are told by the next sync.
    pub(crate) fn advise(&self, offset: u64, len_bytes: u64, advice: Advice) -> Result<()> {
        self.check_not_path()?;
        if self.file_type() == FileType::Fifo {
            return Err(Errno::SPIPE.into());
        }
        let range = range(offset, len_bytes)?;
        // Directories and device nodes take any advice, and have no pages that it could be about.
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
                // Who wrote the data is told of a failure, which the mapping remembers.
                let _ = mapping.write_back(range.clone());
                // Nobody will want the rest of the last page, which is past the end of the file.
                let reaches_end = range.end >= mapping.size_bytes();
                mapping.invalidate(range.start..if reaches_end { u64::MAX } else { range.end });
            }
        }
        Ok(())
    }

    /// sync_file_range(2): data alone, and no promise that it survives a power cut.
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
        // Here, and not for advice, a range that reaches too far is refused.
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
        let written = match flags.contains(SyncFileRange::WRITE) {
            true => mapping.write_dirty(range),
            false => Ok(()),
        };
        if flags.contains(SyncFileRange::WAIT_AFTER) {
            mapping.wait_written();
        }
        match flags.intersects(SyncFileRange::WAIT_BEFORE | SyncFileRange::WAIT_AFTER) {
            true => self.tell_error(mapping, written),
            // Linux has only started the writes here; a failure is told by the next call that
            // waits.
            false => Ok(()),
        }
    }

    /// What happened to the pages of this file; all zeros for what has none.
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

/// Bytes of a file; length 0 is all to the end.
fn range(offset: u64, len_bytes: u64) -> Result<Range<u64>> {
    if offset > OFFSET_MAX || len_bytes > OFFSET_MAX {
        return Err(Errno::INVAL.into());
    }
    match len_bytes {
        0 => Ok(offset..OFFSET_MAX),
        _ => Ok(offset..(offset + len_bytes).min(OFFSET_MAX)),
    }
}
