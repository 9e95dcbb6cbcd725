//! File data: reads and writes the pages of a mapping, and changes a file's size.

use crate::base::{Detail, Errno, Error, LogicalBlock, PAGE_SIZE, Result};
use crate::cache::Store;
use crate::fs::ext4::inode::state::{ContentLayout, InodeState};
use crate::fs::ext4::inode::{Ext4, Ext4Inode, FileStore};
use crate::fs::ext4::journal::Journal;
use crate::fs::ext4::layout::disk::inode_flags;
use crate::fs::ext4::map::extent_map::{ExtentMap, MappedRange};
use crate::fs::ext4::options::DataMode;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use crate::fs::ext4::volume::Volume;
use smallvec::SmallVec;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

/// Few: a run of dirty folios seldom crosses extents.
type Pieces = SmallVec<[Piece; 4]>;

/// One stretch of a request, in bytes from its start, and its place on the device; `None` for a
/// hole.
struct Piece {
    range: Range<usize>,
    device_offset: Option<u64>,
}

impl Store for FileStore {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let Some(inode) = self.inode.upgrade() else {
            return Err(Errno::STALE.into());
        };
        let result = inode
            .read_data(offset, bufs)
            .map_err(|e| e.at(format!("inode {}", inode.number)));
        Ext4::retire(inode);
        result
    }

    fn write_pages(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let Some(inode) = self.inode.upgrade() else {
            return Ok(());
        };
        let result = inode
            .write_data(offset, bufs)
            .map_err(|e| e.at(format!("inode {}", inode.number)));
        Ext4::retire(inode);
        result
    }
}

impl Ext4Inode {
    /// Reads pages from byte `offset` on. Bytes past the end of the file are zero.
    fn read_data(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.fs.volume.check_alive()?;
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let size = self.common.mapping.as_ref().map_or(0, |m| m.size_bytes());
        let pieces = {
            let state = self.state.read();
            if state.raw.flags.get() & inode_flags::ENCRYPT != 0 {
                return Err(Error::new(Errno::NOKEY, "contents are encrypted"));
            }
            if state.layout == ContentLayout::Inline {
                let bytes = self.inline_bytes(&state)?;
                drop(state);
                fill_from(&bytes, offset, bufs);
                return Ok(());
            }
            self.pieces_to_read(&state.map, offset, total)
        };
        let mut cursor = Cursor::new(bufs);
        for piece in pieces {
            let mut parts = cursor.take(piece.range.len());
            match piece.device_offset {
                Some(at) => self.fs.volume.read_blocks(&mut parts, at)?,
                None => parts.iter_mut().for_each(|part| part.fill(0)),
            }
        }
        // Bytes that another system left past the end of the file must never be seen.
        let valid = size.saturating_sub(offset).min(total as u64) as usize;
        if valid < total {
            zero_from(bufs, valid);
        }
        Ok(())
    }

    fn pieces_to_read(&self, map: &ExtentMap, offset: u64, total: usize) -> Pieces {
        let block_size = self.fs.volume.block_size;
        let mut pieces = Pieces::new();
        let mut at = 0;
        while at < total {
            let block = (offset + at as u64) / block_size as u64;
            // Nonzero only with blocks larger than a page.
            let skipped = ((offset + at as u64) % block_size as u64) as usize;
            let (place, len) = match u32::try_from(block).map(LogicalBlock) {
                Ok(block) => match map.lookup(block) {
                    MappedRange::Data { physical, len } => {
                        let start = physical.0 * block_size as u64;
                        (Some(start + skipped as u64), len)
                    }
                    MappedRange::Unwritten { len, .. } | MappedRange::Hole { len } => {
                        (None, len.max(1))
                    }
                },
                Err(_) => (None, u32::MAX),
            };
            let len = (len as usize).saturating_mul(block_size) - skipped;
            let len = len.min(total - at);
            push_piece(&mut pieces, at..at + len, place);
            at += len;
        }
        pieces
    }

    /// Writes pages from byte `offset` on, and allocates their delayed blocks.
    fn write_data(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let block_size = self.fs.volume.block_size as u64;
        self.fs.volume.check_failure()?;
        if self.state.read().layout == ContentLayout::Inline {
            // The inode has them already.
            return Ok(());
        }
        // No transaction may map these blocks before they hold the bytes.
        let _store = self
            .fs
            .volume
            .journal
            .get()
            .map(|journal| journal.gate.start_store());
        // Pages and blocks are multiples of one another, so both ends are block bounds.
        let first = offset / block_size;
        let end = ((offset + total as u64) / block_size).min(u64::from(u32::MAX));
        let mut fresh = Vec::new();
        let planned = self.pieces_to_write(first..end, offset, &mut fresh);
        // Without the inode's lock: the pages are locked, and the store keeps a commit from
        // mapping.
        let written = planned.and_then(|(pieces, unwritten)| {
            for piece in pieces {
                if let Some(at) = piece.device_offset {
                    self.fs
                        .volume
                        .write_blocks(&parts_of(bufs, piece.range), at)?;
                }
            }
            Ok(unwritten)
        });
        let mut state = self.state_mut();
        let size = self.common.mapping.as_ref().map_or(0, |m| m.size_bytes());
        let disk_size = size.min(offset + total as u64);
        let unwritten = match written {
            Ok(unwritten) => unwritten,
            Err(error) => {
                // The blocks have the bytes of an earlier file, or none: they must read as zeros
                // until the pages are written.
                for range in fresh {
                    state.map.mark_unwritten(range);
                    state.map_is_dirty = true;
                }
                if error.detail() == Some(&Detail::WriteLost) {
                    self.finish_lost_write(&mut state, first..end, disk_size)?;
                }
                return Err(error);
            }
        };
        if self.fs.volume.data_journal().is_some() {
            self.mark_dirty(&mut state);
        }
        if !unwritten.is_empty() {
            for range in unwritten {
                state.map.mark_written(range);
            }
            state.map_is_dirty = true;
            self.mark_dirty(&mut state);
        }
        // The size last: the table shows bytes only when they are on the device.
        self.raise_disk_size(&mut state, disk_size);
        if state.map_is_dirty && state.layout == ContentLayout::BlockMap {
            // Pointer blocks are many: the transaction must count them as they change.
            self.flush_map(&mut state)?;
        }
        Ok(())
    }

    /// Records the state after a lost write of the file blocks in `blocks`, as no later write does.
    fn finish_lost_write(
        &self,
        state: &mut InodeState,
        blocks: Range<u64>,
        disk_size: u64,
    ) -> Result<()> {
        self.mark_dirty(state);
        self.raise_disk_size(state, disk_size);
        if state.layout != ContentLayout::BlockMap {
            return Ok(());
        }
        // Stored as holes: without a pointer the blocks would stay in use after an unmount.
        let extents = state.map.extents().iter().filter(|e| e.is_unwritten);
        let unwritten: Vec<Range<u64>> = extents
            .map(|e| u64::from(e.logical).max(blocks.start)..e.end().min(blocks.end))
            .filter(|range| !range.is_empty())
            .collect();
        for range in unwritten {
            let removed = state.map.remove(range);
            state.map_is_dirty = true;
            for freed in self.uncharge_removed(state, &removed) {
                self.fs.volume.free_data(freed)?;
            }
        }
        self.trim_tree_reservation(state);
        Ok(())
    }

    /// Raises the size that the table shows to `size_bytes`. Delayed blocks before that are written
    /// first.
    pub(crate) fn raise_disk_size(&self, state: &mut InodeState, size_bytes: u64) {
        if size_bytes <= state.disk_size {
            return;
        }
        state.disk_size = size_bytes;
        self.mark_dirty(state);
        let end = size_bytes
            .div_ceil(self.fs.volume.block_size as u64)
            .min(u64::from(u32::MAX)) as u32;
        if state.delayed.first_in(0..end).is_some() {
            self.order();
        }
    }

    /// Allocates the delayed blocks in `blocks`, and adds them to `fresh`; returns the place of
    /// each mapped stretch, and the stretches that were unwritten. Holes are skipped: they read as
    /// zeros already.
    fn pieces_to_write(
        &self,
        blocks: Range<u64>,
        offset: u64,
        fresh: &mut Vec<Range<u64>>,
    ) -> Result<(Pieces, Vec<Range<u64>>)> {
        let block_size = self.fs.volume.block_size as u64;
        let size = self.common.mapping.as_ref().map_or(0, |m| m.size_bytes());
        let mut pieces = Pieces::new();
        let mut unwritten = Vec::new();
        let mut state = self.state_mut();
        // Blocks past the end of the file stay as they are: zeros need not be stored, and space
        // that was allocated there ahead must stay unwritten.
        let blocks = blocks.start..blocks.end.min(size.div_ceil(block_size));
        let mut block = blocks.start;
        while block < blocks.end {
            // Below `blocks.end`, which has 32 bits.
            let logical = block as u32;
            let (place, len, is_unwritten) = match state.map.lookup(LogicalBlock(logical)) {
                MappedRange::Data { physical, len } => (physical, len, false),
                MappedRange::Unwritten { physical, len } => (physical, len, true),
                MappedRange::Hole { len } => {
                    let hole_end = (block + u64::from(len.max(1))).min(blocks.end);
                    match state.delayed.first_in(logical..hole_end as u32) {
                        Some(run) => {
                            block = run.start.into();
                            let len = self.allocate_delayed(&mut state, run, size, false)?;
                            fresh.push(block..block + u64::from(len));
                        }
                        None => block = hole_end,
                    }
                    continue;
                }
            };
            let next = (block + u64::from(len)).min(blocks.end);
            if is_unwritten {
                unwritten.push(block..next);
            }
            let start = (block * block_size - offset) as usize;
            let bytes = start..start + ((next - block) * block_size) as usize;
            push_piece(&mut pieces, bytes, Some(place.0 * block_size));
            block = next;
        }
        self.trim_tree_reservation(&mut state);
        if state.map_is_dirty {
            self.mark_dirty(&mut state);
        }
        Ok((pieces, unwritten))
    }

    /// Sets the size of a regular file. The caller holds the inode lock exclusively.
    pub(crate) fn set_size(&self, size_bytes: u64, reserved: ReservedBlocks) -> Result<()> {
        let Some(mapping) = &self.common.mapping else {
            return Err(Errno::INVAL.into());
        };
        let old = mapping.size_bytes();
        if self.keep_inline(size_bytes, reserved)? {
            if size_bytes < old {
                // The rest of the page must read as zeros if the file grows again.
                mapping.zero_range(size_bytes..old)?;
                mapping.truncate(size_bytes);
            } else {
                mapping.set_size_bytes(size_bytes);
            }
            return self.store_inline();
        }
        if size_bytes < old {
            self.zero_partial_block(size_bytes)?;
            // Pages before blocks: writeback must find no page whose blocks are freed.
            mapping.truncate(size_bytes);
            let is_held = size_bytes == 0 && {
                let mut state = self.state_mut();
                state.was_truncated = true;
                self.hold(&mut state)?
            };
            if is_held {
                // Readers may have loaded old pages in the meantime.
                mapping.punch(0..old.next_multiple_of(PAGE_SIZE as u64));
            }
            let keep = size_bytes.div_ceil(self.fs.volume.block_size as u64);
            self.remove_blocks(keep..1 << 32, reserved)?;
            let mut state = self.state_mut();
            state.disk_size = state.disk_size.min(size_bytes);
            // Delayed blocks whose writeback would have raised the size may have been removed.
            self.raise_disk_size(&mut state, size_bytes);
        } else {
            if size_bytes == old {
                self.remove_beyond_end(reserved)?;
            }
            mapping.set_size_bytes(size_bytes);
            self.raise_disk_size(&mut self.state_mut(), size_bytes);
        }
        self.mark_dirty(&mut self.state_mut());
        Ok(())
    }

    /// Frees the blocks that were preallocated beyond the end. The caller holds the inode lock
    /// exclusively.
    pub(crate) fn remove_beyond_end(&self, reserved: ReservedBlocks) -> Result<()> {
        let size_bytes = match &self.common.mapping {
            Some(mapping) if self.state.read().layout != ContentLayout::Inline => {
                mapping.size_bytes()
            }
            _ => return Ok(()),
        };
        let end = size_bytes.div_ceil(self.fs.volume.block_size as u64);
        if self.state.read().map.end() <= end {
            return Ok(());
        }
        self.remove_blocks(end..1 << 32, reserved)
    }

    /// Zeroes the bytes after `end` in its block, so that a later extension finds zeros there.
    fn zero_partial_block(&self, end: u64) -> Result<()> {
        let block_size = self.fs.volume.block_size as u64;
        let Some(mapping) = self
            .common
            .mapping
            .as_ref()
            .filter(|_| !end.is_multiple_of(block_size))
        else {
            return Ok(());
        };
        let block = LogicalBlock((end / block_size) as u32);
        let holds_data = {
            let state = self.state.read();
            matches!(state.map.lookup(block), MappedRange::Data { .. })
                || state.delayed.first_in(block.0..block.0 + 1).is_some()
        };
        let block_end = (end / block_size + 1) * block_size;
        let stop = block_end.min(mapping.size_bytes());
        if !holds_data || end >= stop {
            return Ok(());
        }
        // Otherwise the old bytes would come back after a crash, if the file grows again.
        self.order();
        mapping.zero_range(end..stop)
    }

    /// Makes the file blocks in `blocks` holes. The caller has dropped their pages once.
    pub(crate) fn remove_blocks(&self, blocks: Range<u64>, reserved: ReservedBlocks) -> Result<()> {
        let block_size = self.fs.volume.block_size as u64;
        let bytes = blocks.start * block_size..blocks.end * block_size;
        let mut state = self.state_mut();
        let map_end = state.map.end();
        if blocks.start > 0 && blocks.end < map_end {
            // An extent may be split; the commit must find room for the tree.
            self.reserve_tree(&mut state, 1, reserved)?;
        }
        self.fs.volume.release_delayed(&mut state, blocks.clone());
        let removed = state.map.remove(blocks);
        let freed = self.uncharge_removed(&mut state, &removed);
        if !removed.is_empty() {
            state.map_is_dirty = true;
            self.mark_dirty(&mut state);
        }
        self.trim_tree_reservation(&mut state);
        // The locks of pages come before that of the state.
        drop(state);
        if let Some(mapping) = self.common.mapping.as_ref().filter(|_| !removed.is_empty()) {
            // Readers may have loaded pages of these blocks in the meantime, or be loading them:
            // such pages are dropped before another file gets the blocks.
            mapping.punch(bytes);
        }
        for range in freed {
            self.fs.volume.free_data(range)?;
        }
        Ok(())
    }

    /// Prepares [`Ext4Inode::set_size`], which is not refused afterwards. The contents stay.
    ///
    /// # Errors
    /// EFBIG; ENOSPC.
    pub(crate) fn prepare_size(&self, size_bytes: u64, reserved: ReservedBlocks) -> Result<()> {
        self.check_size(size_bytes)?;
        self.check_reach(&self.state.read(), size_bytes)?;
        self.keep_inline(size_bytes, reserved)?;
        Ok(())
    }

    /// Checks that a block map, if the inode has one, reaches `size_bytes`.
    ///
    /// # Errors
    /// EFBIG; EOPNOTSUPP if its pointers do not reach all blocks of the device.
    pub(crate) fn check_reach(&self, state: &InodeState, size_bytes: u64) -> Result<()> {
        if state.layout != ContentLayout::BlockMap {
            return Ok(());
        }
        if self.fs.volume.geometry.block_count > 1 << 32 {
            return Err(Error::unsupported(
                "writing a file that has a block map (ext3) on more than 2^32 blocks",
            ));
        }
        if size_bytes > self.fs.volume.block_map_bytes_max() {
            Err(Errno::FBIG.into())
        } else {
            Ok(())
        }
    }

    /// Checks that 32-bit block numbers reach `size_bytes`.
    ///
    /// # Errors
    /// EFBIG.
    pub(crate) fn check_size(&self, size_bytes: u64) -> Result<()> {
        let max = u64::from(u32::MAX - 1) * self.fs.volume.block_size as u64;
        if size_bytes > max {
            Err(Errno::FBIG.into())
        } else {
            Ok(())
        }
    }

    /// Prepares a write of `len_bytes` at byte `offset`: reserves or allocates its blocks.
    ///
    /// # Errors
    /// EFBIG, ENOSPC.
    pub(crate) fn begin_write(
        &self,
        offset: u64,
        len_bytes: u64,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let end = offset.checked_add(len_bytes).ok_or(Errno::FBIG)?;
        self.check_size(end)?;
        let block_size = self.fs.volume.block_size as u64;
        if self.keep_inline(end, reserved)? {
            return Ok(());
        }
        let mut state = self.state_mut();
        self.check_reach(&state, end)?;
        if let Some(held) = &mut state.held {
            held.written_in = self.fs.changes.tick();
        }
        // Both have 32 bits: `check_size` checked the end.
        let blocks = (offset / block_size) as u32..end.div_ceil(block_size) as u32;
        if self.reserve(&mut state, blocks.clone(), reserved)? {
            self.mark_dirty(&mut state);
        }
        let is_mapped_by_pointers = state.layout == ContentLayout::BlockMap;
        drop(state);
        if self.fs.volume.options.delalloc {
            Ok(())
        } else if is_mapped_by_pointers {
            // A pointer cannot say that its block reads as zeros: the space stays reserved until
            // the bytes are written with the transaction.
            self.order();
            Ok(())
        } else {
            // The space reads as zeros until the bytes are written.
            self.allocate_at_write(blocks)
        }
    }
}

/// Adds a stretch, joined to the one before if it continues it on the device too.
fn push_piece(pieces: &mut Pieces, range: Range<usize>, device_offset: Option<u64>) {
    if let Some(last) = pieces.last_mut()
        && last.range.end == range.start
    {
        let continues = match (last.device_offset, device_offset) {
            (Some(before), Some(now)) => before + last.range.len() as u64 == now,
            (None, None) => true,
            _ => false,
        };
        if continues {
            last.range.end = range.end;
            return;
        }
    }
    pieces.push(Piece {
        range,
        device_offset,
    });
}

/// The bytes `range` of the buffers' concatenation.
fn parts_of<'a>(bufs: &'a [IoSlice<'_>], range: Range<usize>) -> SmallVec<[IoSlice<'a>; 16]> {
    let mut parts = SmallVec::new();
    let mut start = 0;
    for buf in bufs {
        let end = start + buf.len();
        if end > range.start && start < range.end {
            parts.push(IoSlice::new(
                &buf[range.start.max(start) - start..range.end.min(end) - start],
            ));
        }
        start = end;
    }
    parts
}

/// Hands out the buffers' bytes from front to back.
struct Cursor<'a, 'b> {
    bufs: std::slice::IterMut<'a, IoSliceMut<'b>>,
    current: &'a mut [u8],
}

impl<'a, 'b> Cursor<'a, 'b> {
    fn new(bufs: &'a mut [IoSliceMut<'b>]) -> Self {
        Self {
            bufs: bufs.iter_mut(),
            current: &mut [],
        }
    }

    fn take(&mut self, mut count: usize) -> SmallVec<[IoSliceMut<'a>; 16]> {
        let mut parts = SmallVec::new();
        while count > 0 {
            if self.current.is_empty() {
                match self.bufs.next() {
                    Some(buf) => self.current = buf,
                    None => break,
                }
            }
            let len = count.min(self.current.len());
            let (part, rest) = std::mem::take(&mut self.current).split_at_mut(len);
            self.current = rest;
            count -= len;
            parts.push(IoSliceMut::new(part));
        }
        parts
    }
}

/// Fills the buffers with `bytes` as the file's beginning, and zeros after them.
fn fill_from(bytes: &[u8], offset: u64, bufs: &mut [IoSliceMut<'_>]) {
    let mut rest = bytes
        .get(usize::try_from(offset).unwrap_or(usize::MAX)..)
        .unwrap_or(&[]);
    for buf in bufs {
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        buf[count..].fill(0);
        rest = &rest[count..];
    }
}

/// Zeroes the buffers' bytes from `valid` on.
fn zero_from(bufs: &mut [IoSliceMut<'_>], valid: usize) {
    let mut start = 0;
    for buf in bufs {
        let from = valid.saturating_sub(start).min(buf.len());
        start += buf.len();
        buf[from..].fill(0);
    }
}

impl Volume {
    /// Returns the journal if file data goes there (`data=journal`).
    fn data_journal(&self) -> Option<&Journal> {
        self.journal
            .get()
            .filter(|_| self.options.data == DataMode::Journal)
    }

    /// Reads file blocks from byte `at` of the device on, with the changes in the journal.
    fn read_blocks(&self, bufs: &mut [IoSliceMut<'_>], at: u64) -> Result<()> {
        let Some(journal) = self.data_journal() else {
            return self.device.read_uncached_at(bufs, at);
        };
        let first = at / self.block_size as u64;
        let count = (bufs.iter().map(|buf| buf.len()).sum::<usize>() / self.block_size) as u64;
        // Before the device is read: blocks that are checkpointed in the meantime are the same.
        let newer = journal.snapshots.newest(first..first + count);
        self.device.read_uncached_at(bufs, at)?;
        let mut blocks = bufs
            .iter_mut()
            .flat_map(|buf| buf.chunks_mut(self.block_size))
            .zip(first..);
        for (number, bytes) in newer {
            if let Some((block, _)) = blocks.find(|(_, at)| *at == number) {
                block.copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    /// Writes file blocks from byte `at` of the device on, through the journal if data goes there.
    /// Blocks for which a transaction has no room go to their place, as with `data=ordered`.
    fn write_blocks(&self, bufs: &[IoSlice<'_>], at: u64) -> Result<()> {
        let Some(journal) = self.data_journal() else {
            return self.device.write_vectored_at(bufs, at);
        };
        let first = at / self.block_size as u64;
        let blocks = bufs
            .iter()
            .flat_map(|buf| buf.chunks(self.block_size))
            .zip(first..);
        for (bytes, number) in blocks {
            if !journal
                .snapshots
                .insert_data(number, bytes, journal.transaction_max())
            {
                self.device
                    .write_at(bytes, number * self.block_size as u64)?;
            }
        }
        Ok(())
    }
}

const _: () = assert!(PAGE_SIZE.is_multiple_of(1024));
