//! Copies between open files through the page cache: sendfile(2), copy_file_range(2).

use super::credentials::Credentials;
use super::file::{OpenFile, Seek, Start};
use super::open_flags::OpenFlags;
use crate::base::{Errno, Result};
use std::sync::Arc;

/// Copies like [`copy`], with the checks of copy_file_range(2).
pub(crate) fn copy_range(
    caller: &Credentials,
    (input, from): (&OpenFile, Start),
    (out, to): (&OpenFile, Start),
    count: usize,
) -> Result<usize> {
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
    let offset_of = |file: &OpenFile, start: Start| match start {
        Start::Offset(offset) => Ok(offset),
        Start::Position => file.seek(Seek::By(0)),
    };
    let (from_offset, to_offset) = (offset_of(input, from)?, offset_of(out, to)?);
    let end = |start: u64| start.checked_add(count as u64).ok_or(Errno::OVERFLOW);
    let overlaps = from_offset < end(to_offset)? && to_offset < end(from_offset)?;
    if Arc::ptr_eq(input.inode(), out.inode()) && overlaps && count > 0 {
        return Err(Errno::INVAL.into());
    }
    copy(caller, (input, from), (out, to), count)
}

/// Copies up to `count` bytes through the cache, writing as `caller`; returns the number of bytes
/// copied. Linux: `splice_direct_to_actor`.
pub(crate) fn copy(
    caller: &Credentials,
    (input, input_start): (&OpenFile, Start),
    (out, out_start): (&OpenFile, Start),
    count: usize,
) -> Result<usize> {
    let mut copied = 0;
    while copied < count {
        match copy_some(
            caller,
            (input, input_start.plus(copied)?),
            (out, out_start.plus(copied)?),
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
    (input, input_start): (&OpenFile, Start),
    (out, out_start): (&OpenFile, Start),
    count: usize,
) -> Result<usize> {
    let offset = match input_start {
        Start::Offset(offset) => offset,
        Start::Position => input.seek(Seek::By(0))?,
    };
    let borrowed = input.borrow(offset, count)?;
    if borrowed.is_empty() {
        return Ok(0);
    }
    let written = out.write(caller, out_start, &borrowed.source())?;
    if matches!(input_start, Start::Position) {
        input.seek(Seek::By(written as i64))?;
    }
    Ok(written)
}

impl Start {
    fn plus(self, count: usize) -> Result<Self> {
        Ok(match self {
            Self::Position => Self::Position,
            Self::Offset(offset) => {
                Self::Offset(offset.checked_add(count as u64).ok_or(Errno::INVAL)?)
            }
        })
    }
}
