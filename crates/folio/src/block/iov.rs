//! Windows on lists of buffers, to split one vectored request into several.

use crate::base::{Errno, Error, Result};
use smallvec::SmallVec;
use std::io::{IoSlice, IoSliceMut};

/// Largest number of buffers in one system call (limits.h, IOV_MAX).
pub(crate) const IOV_MAX: usize = 1024;

/// The pieces of a window. Most requests have few.
pub(crate) type Pieces<T> = SmallVec<[T; 8]>;

/// Zeros to write where a device or file cannot make them itself.
pub(crate) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Returns the number of bytes in all of `bufs`.
pub(crate) fn len(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// Returns the number of bytes in all of `bufs`.
pub(crate) fn len_mut(bufs: &[IoSliceMut<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// Returns the `len` bytes after the first `skip`, or fewer at the end.
pub(crate) fn window<'a>(bufs: &'a [IoSlice<'_>], skip: u64, len: u64) -> Pieces<IoSlice<'a>> {
    let (mut skip, mut left) = (skip, len);
    let mut pieces = Pieces::new();
    for buf in bufs {
        if left == 0 {
            break;
        }
        let size = buf.len() as u64;
        if skip >= size {
            skip -= size;
            continue;
        }
        let count = left.min(size - skip);
        pieces.push(IoSlice::new(&buf[skip as usize..(skip + count) as usize]));
        left -= count;
        skip = 0;
    }
    pieces
}

/// Returns the `len` bytes after the first `skip`, or fewer at the end.
pub(crate) fn window_mut<'a>(
    bufs: &'a mut [IoSliceMut<'_>],
    skip: u64,
    len: u64,
) -> Pieces<IoSliceMut<'a>> {
    let (mut skip, mut left) = (skip, len);
    let mut pieces = Pieces::new();
    for buf in bufs {
        if left == 0 {
            break;
        }
        let size = buf.len() as u64;
        if skip >= size {
            skip -= size;
            continue;
        }
        let count = left.min(size - skip);
        pieces.push(IoSliceMut::new(
            &mut buf[skip as usize..(skip + count) as usize],
        ));
        left -= count;
        skip = 0;
    }
    pieces
}

/// Fills a window with zeros.
pub(crate) fn fill_zeros(bufs: &mut [IoSliceMut<'_>]) {
    for buf in bufs {
        buf.fill(0);
    }
}

/// Fills all after the first `skip` bytes with zeros.
#[cfg(feature = "qcow2")]
pub(crate) fn fill_zeros_from(bufs: &mut [IoSliceMut<'_>], skip: u64) {
    let len_bytes = len_mut(bufs);
    if skip < len_bytes {
        fill_zeros(&mut window_mut(bufs, skip, len_bytes - skip));
    }
}

/// Copies `bytes` into a window of the same length.
pub(crate) fn copy_into(bufs: &mut [IoSliceMut<'_>], mut bytes: &[u8]) {
    for buf in bufs {
        let (now, rest) = bytes.split_at(buf.len().min(bytes.len()));
        buf[..now.len()].copy_from_slice(now);
        bytes = rest;
    }
}

/// Rejects a range that leaves a device of `device_bytes` bytes.
///
/// # Errors
///
/// EIO, as from the kernel's block layer.
pub(crate) fn check_range(device_bytes: u64, offset: u64, len_bytes: u64) -> Result<()> {
    match offset.checked_add(len_bytes) {
        Some(end) if end <= device_bytes => Ok(()),
        _ => Err(Error::new(
            Errno::IO,
            format!(
                "bytes {offset}+{len_bytes} are beyond the end of the device at {device_bytes}"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cross_buffers() {
        let bufs = [
            IoSlice::new(b"abc"),
            IoSlice::new(b""),
            IoSlice::new(b"defg"),
            IoSlice::new(b"h"),
        ];
        let text = |skip, len| {
            window(&bufs, skip, len)
                .iter()
                .flat_map(|piece| piece.to_vec())
                .collect::<Vec<u8>>()
        };
        assert_eq!(text(0, 8), b"abcdefgh");
        assert_eq!(text(2, 3), b"cde");
        assert_eq!(text(3, 5), b"defgh");
        assert_eq!(text(7, 9), b"h");
        assert_eq!(text(8, 1), b"");
    }

    #[test]
    fn range_beyond_end_or_overflow_is_rejected() {
        assert!(check_range(10, 3, 7).is_ok());
        assert_eq!(check_range(10, 3, 8).unwrap_err().errno(), Errno::IO);
        assert_eq!(check_range(10, u64::MAX, 2).unwrap_err().errno(), Errno::IO);
    }
}
