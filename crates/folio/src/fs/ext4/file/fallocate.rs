//! Space without data, and holes: fallocate(2), SEEK_DATA and SEEK_HOLE, FIEMAP.

use crate::base::{Errno, Error, LogicalBlock, PAGE_SIZE, Result};
use crate::cache::Mapping;
use crate::fs::ext4::inode::Ext4Inode;
use crate::fs::ext4::inode::state::{ContentLayout, InodeState};
use crate::fs::ext4::map::extent_map::MappedRange;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use crate::fs::ext4::space::{BlockSource, Purpose};
use crate::vfs::{ExtentPlace, FallocateMode, FileExtent, SeekKind};
use std::ops::Range;

impl Ext4Inode {
    /// Implements `fallocate` of the VFS, which holds the inode lock exclusively.
    pub(crate) fn change_allocation(
        &self,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let Some(mapping) = &self.common.mapping else {
            return Err(Errno::NODEV.into());
        };
        let end = offset.checked_add(len_bytes).ok_or(Errno::FBIG)?;
        self.check_size(end)?;
        self.convert_inline(reserved)?;
        let layout = self.state.read().layout;
        if layout == ContentLayout::BlockMap && mode != FallocateMode::PunchHole {
            // As in Linux: a pointer cannot say that its block reads as zeros.
            let why = "fallocate on a file that has a block map (ext3)";
            return Err(Error::unsupported(why));
        }
        let range = offset..end;
        match mode {
            FallocateMode::CollapseRange => self.collapse_range(mapping, range, reserved)?,
            FallocateMode::InsertRange => self.insert_range(mapping, range, reserved)?,
            _ => self.fill_or_clear(mapping, mode, range, reserved)?,
        }
        let mut state = self.state_mut();
        let now = self.fs.volume.now();
        if mode != FallocateMode::AllocateKeepSize {
            state.set_modified(now);
        }
        state.set_changed(now);
        self.mark_dirty(&mut state);
        Ok(())
    }

    fn fill_or_clear(
        &self,
        mapping: &Mapping,
        mode: FallocateMode,
        range: Range<u64>,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let end = range.end;
        let is_zeroing = matches!(
            mode,
            FallocateMode::PunchHole | FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize
        );
        if is_zeroing {
            self.clear_range(mapping, range.clone(), reserved)?;
        }
        if mode != FallocateMode::PunchHole {
            self.allocate_unwritten(range, reserved)?;
        }
        // Only once the space is there: without space the size stays.
        if matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange)
            && end > mapping.size_bytes()
        {
            mapping.set_size_bytes(end);
            self.raise_disk_size(&mut self.state_mut(), end);
        }
        if is_zeroing {
            // Delayed blocks whose writeback would have raised the size may have been removed.
            self.raise_disk_size(&mut self.state_mut(), mapping.size_bytes());
        }
        Ok(())
    }

    /// Makes `range` read as zeros: whole blocks become holes, the edges are overwritten.
    fn clear_range(
        &self,
        mapping: &Mapping,
        range: Range<u64>,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let block_size = self.fs.volume.block_size as u64;
        let page = PAGE_SIZE as u64;
        let inner = range.start.next_multiple_of(block_size)..range.end / block_size * block_size;
        let whole_pages = range.start.next_multiple_of(page)..range.end / page * page;
        let stop = range.end.min(mapping.size_bytes());
        let edges = if whole_pages.start < whole_pages.end {
            [range.start..whole_pages.start, whole_pages.end..range.end]
        } else {
            [range.clone(), range.end..range.end]
        };
        for edge in edges {
            let edge = edge.start..edge.end.min(stop);
            if edge.start < edge.end && self.has_data(mapping, &edge) {
                mapping.zero_range(edge)?;
            }
        }
        // Pages before blocks: a dirty page would be written into a block that is free.
        if whole_pages.start < whole_pages.end {
            mapping.punch(whole_pages);
        }
        if inner.start < inner.end {
            self.remove_blocks(inner.start / block_size..inner.end / block_size, reserved)
        } else {
            Ok(())
        }
    }

    /// Whether any block that overlaps `bytes` is stored, delayed, or written in the cache.
    fn has_data(&self, mapping: &Mapping, bytes: &Range<u64>) -> bool {
        let state = self.state.read();
        let mut at = bytes.start;
        while at < bytes.end {
            let (is_data, next) = self.span_at(&state, mapping, at);
            if is_data {
                return true;
            }
            at = next;
        }
        false
    }

    /// Allocates space that reads as zeros for every hole in `bytes`. Delayed blocks get theirs at
    /// writeback.
    fn allocate_unwritten(&self, bytes: Range<u64>, reserved: ReservedBlocks) -> Result<()> {
        let fs = &self.fs;
        let block_size = fs.volume.block_size as u64;
        // Both have 32 bits: `check_size` checked the end.
        let blocks = (bytes.start / block_size) as u32..bytes.end.div_ceil(block_size) as u32;
        let mut state = self.state_mut();
        let mut block = blocks.start;
        while block < blocks.end {
            let len = match state.map.lookup(LogicalBlock(block)) {
                MappedRange::Data { len, .. } | MappedRange::Unwritten { len, .. } => {
                    block = block.saturating_add(len);
                    continue;
                }
                MappedRange::Hole { len } => len,
            };
            let hole = block..block.saturating_add(len).min(blocks.end);
            let delayed = state
                .delayed
                .first_in(hole.clone())
                .unwrap_or(hole.end..hole.end);
            if delayed.start == block {
                block = delayed.end;
                continue;
            }
            let (run, purpose) = (block..delayed.start, Purpose::LargeFile);
            let source = BlockSource::Free(reserved);
            let len = self.allocate_run(&mut state, run, purpose, source, true)?;
            self.mark_dirty(&mut state);
            // Extents of scattered space may need tree blocks, which a commit must find.
            self.reserve_tree(&mut state, 0, reserved)?;
            block += len;
        }
        Ok(())
    }

    /// Implements `seek` of the VFS.
    pub(crate) fn seek_from(&self, kind: SeekKind, offset: u64) -> Result<Option<u64>> {
        let Some(mapping) = &self.common.mapping else {
            return Err(Errno::INVAL.into());
        };
        let size = mapping.size_bytes();
        let state = self.state.read();
        let mut at = offset;
        while at < size {
            let (is_data, next) = self.span_at(&state, mapping, at);
            if is_data == (kind == SeekKind::Data) {
                return Ok(Some(at));
            }
            at = next;
        }
        Ok((kind == SeekKind::Hole && offset < size).then_some(size))
    }

    /// Implements `extents` of the VFS.
    pub(crate) fn extents_in(&self, range: Range<u64>) -> Result<Vec<FileExtent>> {
        let block_size = self.fs.volume.block_size as u64;
        let state = self.state.read();
        if state.layout == ContentLayout::Inline {
            let inline = FileExtent {
                len_bytes: state.recorded_size(),
                place: ExtentPlace::Inline,
                offset: 0,
            };
            return Ok(Vec::from([inline]));
        }
        let mut found: Vec<FileExtent> = state
            .map
            .extents()
            .iter()
            .map(|extent| {
                let at = extent.physical * block_size;
                FileExtent {
                    offset: u64::from(extent.logical) * block_size,
                    len_bytes: u64::from(extent.len) * block_size,
                    place: if extent.is_unwritten {
                        ExtentPlace::Unwritten(at)
                    } else {
                        ExtentPlace::Data(at)
                    },
                }
            })
            .collect();
        found.extend(state.delayed.ranges().iter().map(|run| FileExtent {
            offset: u64::from(run.start) * block_size,
            len_bytes: run.len() as u64 * block_size,
            place: ExtentPlace::Delayed,
        }));
        found.sort_unstable_by_key(|extent| extent.offset);
        found.retain(|extent| {
            extent.offset < range.end && extent.offset + extent.len_bytes > range.start
        });
        Ok(found)
    }

    /// Returns whether there is data at byte `at`, and the byte up to which that holds. Space that
    /// reads as zeros counts as data where `mapping` has a page of it, which may have been written.
    fn span_at(&self, state: &InodeState, mapping: &Mapping, at: u64) -> (bool, u64) {
        let block_size = self.fs.volume.block_size as u64;
        if state.layout == ContentLayout::Inline {
            return (true, u64::MAX);
        }
        let Ok(block) = u32::try_from(at / block_size) else {
            return (false, u64::MAX);
        };
        let end_of = |len: u32| (u64::from(block) + u64::from(len.max(1))) * block_size;
        match state.map.lookup(LogicalBlock(block)) {
            MappedRange::Data { len, .. } => (true, end_of(len)),
            MappedRange::Hole { len } => {
                let hole_end = block.saturating_add(len.max(1));
                match state.delayed.first_in(block..hole_end) {
                    Some(run) if run.start == block => (true, u64::from(run.end) * block_size),
                    Some(run) => (false, u64::from(run.start) * block_size),
                    None => (false, end_of(len)),
                }
            }
            MappedRange::Unwritten { len, .. } => {
                let end = end_of(len);
                match mapping.next_cached(at) {
                    Some(cached) if cached <= at => {
                        (true, mapping.next_absent(at).clamp(at + 1, end.max(at + 1)))
                    }
                    Some(cached) if cached < end => (false, cached),
                    _ => (false, end),
                }
            }
        }
    }
}
