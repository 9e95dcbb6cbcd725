//! A sparse disk in memory, for tests and scratch file systems. Linux: brd.

use super::{Allocation, Device};
use crate::base::sync::RwLock;
use crate::base::{Errno, Error, Result};
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// Size of a piece of storage in bytes: a piece exists once a byte of it was written.
const PIECE_BYTES: usize = 64 << 10;

/// A sparse disk in memory. Its content lasts as long as the value; `flush` does nothing.
pub struct MemoryDevice {
    len_bytes: u64,
    /// Snapshots share them.
    pieces: RwLock<BTreeMap<u64, Arc<[u8]>>>,
}

impl MemoryDevice {
    /// Returns a disk of `len_bytes` zero bytes.
    pub fn new(len_bytes: u64) -> Self {
        Self {
            len_bytes,
            pieces: RwLock::new(BTreeMap::new()),
        }
    }

    /// Returns a disk with the same content. Both share the memory of what neither of them writes
    /// later.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self {
            len_bytes: self.len_bytes,
            pieces: RwLock::new(self.pieces.read().clone()),
        }
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len_bytes => Ok(()),
            _ => Err(Error::new(
                Errno::IO,
                format!("bytes {offset}+{len} are beyond the end"),
            )
            .at("memory device")),
        }
    }

    /// Calls `visit(piece, offset in piece, range in the request)` for each piece a request
    /// touches.
    fn split(offset: u64, len: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let start = (at % PIECE_BYTES as u64) as usize;
            let count = (PIECE_BYTES - start).min(len - done);
            visit(at / PIECE_BYTES as u64, start, done..done + count);
            done += count;
        }
    }
}

impl Device for MemoryDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], mut offset: u64) -> Result<()> {
        self.check(offset, bufs.iter().map(|b| b.len() as u64).sum())?;
        let pieces = self.pieces.read();
        for buf in bufs {
            Self::split(offset, buf.len(), |piece, start, range| {
                match pieces.get(&piece) {
                    Some(bytes) => {
                        buf[range.clone()].copy_from_slice(&bytes[start..start + range.len()])
                    }
                    None => buf[range].fill(0),
                }
            });
            offset += buf.len() as u64;
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], mut offset: u64) -> Result<()> {
        self.check(offset, bufs.iter().map(|b| b.len() as u64).sum())?;
        let mut pieces = self.pieces.write();
        for buf in bufs {
            Self::split(offset, buf.len(), |piece, start, range| {
                let bytes = pieces
                    .entry(piece)
                    .or_insert_with(|| vec![0; PIECE_BYTES].into());
                Arc::make_mut(bytes)[start..start + range.len()].copy_from_slice(&buf[range]);
            });
            offset += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.write_zeroes(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check(offset, len_bytes)?;
        let end = offset + len_bytes;
        let mut pieces = self.pieces.write();
        let touched: Vec<u64> = pieces
            .range(offset / PIECE_BYTES as u64..end.div_ceil(PIECE_BYTES as u64))
            .map(|(piece, _)| *piece)
            .collect();
        for piece in touched {
            let base = piece * PIECE_BYTES as u64;
            let from = offset.saturating_sub(base).min(PIECE_BYTES as u64) as usize;
            let to = (end - base).min(PIECE_BYTES as u64) as usize;
            if from == 0 && to == PIECE_BYTES {
                pieces.remove(&piece);
            } else if let Some(bytes) = pieces.get_mut(&piece) {
                Arc::make_mut(bytes)[from..to].fill(0);
            }
        }
        Ok(())
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.check(offset, len_bytes)?;
        let pieces = self.pieces.read();
        let kind = |piece: u64| {
            if pieces.contains_key(&piece) {
                Allocation::Data
            } else {
                Allocation::Hole
            }
        };
        let first = kind(offset / PIECE_BYTES as u64);
        let mut end = offset;
        while end < offset + len_bytes && kind(end / PIECE_BYTES as u64) == first {
            end = (end / PIECE_BYTES as u64 + 1) * PIECE_BYTES as u64;
        }
        Ok((first, end.min(offset + len_bytes) - offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_read_zero_and_writes_cross_pieces() {
        let device = MemoryDevice::new(1 << 20);
        let data: Vec<u8> = (0..PIECE_BYTES + 10).map(|i| i as u8).collect();
        device.write_at(&data, PIECE_BYTES as u64 - 5).unwrap();
        let mut back = vec![1; data.len() + 10];
        device.read_at(&mut back, PIECE_BYTES as u64 - 10).unwrap();
        assert_eq!(&back[..5], &[0; 5]);
        assert_eq!(&back[5..data.len() + 5], &data[..]);
        device.write_zeroes(0, 1 << 20).unwrap();
        assert_eq!(
            device.allocation(0, 1 << 20).unwrap(),
            (Allocation::Hole, 1 << 20)
        );
    }

    #[test]
    fn snapshot_keeps_its_content() {
        let device = MemoryDevice::new(1 << 20);
        device.write_at(&[1; 10], 0).unwrap();
        let snapshot = device.snapshot();
        device.write_at(&[2; 5], 0).unwrap();
        snapshot.write_at(&[3; 5], 5).unwrap();
        device.write_zeroes(0, 2).unwrap();
        let read = |from: &MemoryDevice| {
            let mut bytes = [0; 10];
            from.read_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert_eq!(read(&device), [0, 0, 2, 2, 2, 1, 1, 1, 1, 1]);
        assert_eq!(read(&snapshot), [1, 1, 1, 1, 1, 3, 3, 3, 3, 3]);
    }

    #[test]
    fn access_beyond_end_is_rejected() {
        let device = MemoryDevice::new(4096);
        assert_eq!(
            device.write_at(&[0; 2], 4095).unwrap_err().errno(),
            Errno::IO
        );
        assert_eq!(
            device.read_at(&mut [0; 2], u64::MAX).unwrap_err().errno(),
            Errno::IO
        );
    }
}
