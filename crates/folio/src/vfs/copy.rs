//! Copies between open files through the page cache: sendfile(2), copy_file_range(2).

use super::credentials::Credentials;
use super::file::{OpenFile, Seek, Start};
use super::open_flags::OpenFlags;
use crate::base::{Errno, Result};
use std::sync::Arc;

/// One side of a copy.
#[derive(Clone, Copy)]
pub(crate) struct CopySide<'a> {
    pub(crate) file: &'a OpenFile,
    pub(crate) start: Start,
}

impl CopySide<'_> {
    /// Returns the byte offset of the start.
    fn offset(&self) -> Result<u64> {
        match self.start {
            Start::Offset(offset) => Ok(offset),
            Start::Position => self.file.seek(Seek::By(0)),
        }
    }

    /// Returns the side after `count` copied bytes. The file position has moved by itself.
    fn after(self, count: usize) -> Result<Self> {
        let start = match self.start {
            Start::Position => Start::Position,
            Start::Offset(offset) => {
                Start::Offset(offset.checked_add(count as u64).ok_or(Errno::INVAL)?)
            }
        };
        Ok(Self { start, ..self })
    }
}

/// Copies like [`copy`], with the checks of copy_file_range(2).
pub(crate) fn copy_range(
    caller: &Credentials,
    from: CopySide<'_>,
    to: CopySide<'_>,
    count: usize,
) -> Result<usize> {
    let (input, out) = (from.file, to.file);
    input.file_operations()?;
    out.file_operations()?;
    input.check_readable()?;
    out.check_writable()?;
    if out.flags().contains(OpenFlags::APPEND) {
        return Err(Errno::BADF.into());
    }
    if !Arc::ptr_eq(input.mount(), out.mount()) {
        return Err(Errno::XDEV.into());
    }
    let (from_offset, to_offset) = (from.offset()?, to.offset()?);
    let end = |start: u64, count: usize| start.checked_add(count as u64).ok_or(Errno::OVERFLOW);
    end(from_offset, count)?;
    end(to_offset, count)?;
    // Up to the end of the file, before the check for overlaps. Linux: `generic_copy_file_checks`.
    let size_bytes = input.common().attributes().size_bytes;
    let left = size_bytes.saturating_sub(from_offset);
    let count = count.min(usize::try_from(left).unwrap_or(usize::MAX));
    let overlaps = from_offset < end(to_offset, count)? && to_offset < end(from_offset, count)?;
    if Arc::ptr_eq(input.inode(), out.inode()) && overlaps && count > 0 {
        return Err(Errno::INVAL.into());
    }
    copy(caller, from, to, count)
}

/// Copies up to `count` bytes through the cache, writing as `caller`; returns the number of bytes
/// copied. Linux: `splice_direct_to_actor`.
pub(crate) fn copy(
    caller: &Credentials,
    from: CopySide<'_>,
    to: CopySide<'_>,
    count: usize,
) -> Result<usize> {
    let mut copied = 0;
    while copied < count {
        match copy_some(
            caller,
            from.after(copied)?,
            to.after(copied)?,
            count - copied,
        ) {
            Ok(0) => break,
            Ok(some) => copied += some,
            Err(_) if copied > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(copied)
}

/// Copies from page to page as much as one borrow holds.
fn copy_some(
    caller: &Credentials,
    from: CopySide<'_>,
    to: CopySide<'_>,
    count: usize,
) -> Result<usize> {
    let borrowed = from.file.borrow(from.offset()?, count)?;
    if borrowed.is_empty() {
        return Ok(0);
    }
    let written = to.file.write(caller, to.start, &borrowed.source())?;
    if matches!(from.start, Start::Position) {
        from.file.seek(Seek::By(written as i64))?;
    }
    Ok(written)
}
