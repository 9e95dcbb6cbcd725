//! A device whose writes stay in memory, over a device that is never written.

use super::{Allocation, Device, LowerDevice, iov};
use crate::base::lock::RwLock;
use crate::base::{Errno, PAGE_SIZE, Result};
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// A layer of memory over a lower device: reads return the lower device's bytes, or those written
/// here. A read-only mount replays its journal into one. Memory grows with the bytes written;
/// `flush` makes nothing durable.
///
/// Lock order: the lock of the pages is held over reads of the lower device, which fill pages
/// written in part.
pub struct OverlayDevice {
    lower: Arc<dyn Device>,
    /// Pages written so far; `None` reads as zeros.
    pages: RwLock<BTreeMap<u64, Option<Box<[u8]>>>>,
    is_read_only: bool,
}

/// Returns `lower` with a layer of memory over it that takes all writes. A file system uses it to
/// change the content that it reads without changing the image.
pub fn overlay(lower: Arc<dyn Device>) -> Arc<dyn Device> {
    Arc::new(OverlayDevice::new(lower))
}

impl OverlayDevice {
    /// Returns an overlay on `lower` without any writes.
    pub fn new(lower: Arc<dyn Device>) -> Self {
        Self {
            lower,
            pages: RwLock::default(),
            is_read_only: false,
        }
    }

    /// Returns the overlay with the same content; later writes fail with EROFS.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Returns the offsets of the pages written so far, in order. The last page may reach beyond
    /// the device's end.
    pub fn written_offsets(&self) -> Vec<u64> {
        let pages = self.pages.read();
        pages.keys().map(|page| page * PAGE_BYTES).collect()
    }

    fn check(&self, offset: u64, len_bytes: u64) -> Result<()> {
        iov::check_range(self.lower.len_bytes(), offset, len_bytes)
            .map_err(|error| error.at("overlay"))
    }

    fn check_write(&self, offset: u64, len_bytes: u64) -> Result<()> {
        if self.is_read_only {
            Err(Errno::ROFS.into())
        } else {
            self.check(offset, len_bytes)
        }
    }

    /// Reads a page of the lower device; beyond the device's end are zeros.
    fn lower_page(&self, page: u64) -> Result<Box<[u8]>> {
        let mut bytes = vec![0; PAGE_SIZE].into_boxed_slice();
        let start = page * PAGE_BYTES;
        let count = PAGE_BYTES.min(self.lower.len_bytes() - start) as usize;
        self.lower.read_at(&mut bytes[..count], start)?;
        Ok(bytes)
    }

    /// Changes part of a page, in memory.
    fn change(
        &self,
        pages: &mut BTreeMap<u64, Option<Box<[u8]>>>,
        page: u64,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let bytes = match pages.get_mut(&page) {
            Some(Some(bytes)) => bytes,
            Some(zeros @ None) => zeros.insert(vec![0; PAGE_SIZE].into()),
            None => {
                let lower = self.lower_page(page)?;
                pages.entry(page).or_default().insert(lower)
            }
        };
        change(bytes);
        Ok(())
    }
}

/// Returns the page, and the range in it, of the first piece of `offset..end`.
fn piece(offset: u64, end: u64) -> (u64, Range<usize>) {
    let start = offset % PAGE_BYTES;
    let count = (PAGE_BYTES - start).min(end - offset);
    (
        offset / PAGE_BYTES,
        start as usize..(start + count) as usize,
    )
}

impl Device for OverlayDevice {
    fn len_bytes(&self) -> u64 {
        self.lower.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let len_bytes = iov::len_mut(bufs);
        self.check(offset, len_bytes)?;
        let pages = self.pages.read();
        let end = offset + len_bytes;
        if pages
            .range(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES))
            .next()
            .is_none()
        {
            drop(pages);
            return self.lower.read_vectored_at(bufs, offset);
        }
        self.lower.read_vectored_at(bufs, offset)?;
        for (page, bytes) in pages.range(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)) {
            let from = offset.max(page * PAGE_BYTES);
            let (_, range) = piece(from, end);
            let mut window = iov::window_mut(bufs, from - offset, range.len() as u64);
            match bytes {
                Some(bytes) => iov::copy_into(&mut window, &bytes[range]),
                None => iov::fill_zeros(&mut window),
            }
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.check_write(offset, iov::len(bufs))?;
        let mut pages = self.pages.write();
        let mut at = offset;
        for buf in bufs {
            let end = at + buf.len() as u64;
            let mut rest = &buf[..];
            while at < end {
                let (page, range) = piece(at, end);
                let (now, later) = rest.split_at(range.len());
                if now.len() == PAGE_SIZE {
                    pages.insert(page, Some(now.into()));
                } else {
                    self.change(&mut pages, page, |bytes| bytes[range].copy_from_slice(now))?;
                }
                at += now.len() as u64;
                rest = later;
            }
        }
        Ok(())
    }

    fn lower_devices(&self) -> Vec<LowerDevice> {
        vec![LowerDevice {
            device: self.lower.clone(),
            range: 0..self.lower.len_bytes(),
            is_written: false,
        }]
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_write(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_write(offset, len_bytes)?;
        let mut pages = self.pages.write();
        let (mut at, end) = (offset, offset + len_bytes);
        while at < end {
            let (page, range) = piece(at, end);
            let count = range.len();
            if count == PAGE_SIZE {
                pages.insert(page, None);
            } else {
                self.change(&mut pages, page, |bytes| bytes[range].fill(0))?;
            }
            at += count as u64;
        }
        Ok(())
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.check(offset, len_bytes)?;
        let pages = self.pages.read();
        let end = offset + len_bytes;
        match pages
            .range(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES))
            .next()
        {
            Some((page, bytes)) if *page == offset / PAGE_BYTES => {
                let kind = if bytes.is_some() {
                    Allocation::Data
                } else {
                    Allocation::Hole
                };
                Ok((kind, ((page + 1) * PAGE_BYTES).min(end) - offset))
            }
            Some((page, _)) => self.lower.allocation(offset, page * PAGE_BYTES - offset),
            None => self.lower.allocation(offset, len_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;

    #[test]
    fn writes_hide_lower_device_and_never_reach_it() {
        let lower = Arc::new(MemoryDevice::new(3 * PAGE_BYTES - 10));
        lower.write_at(&vec![1; 3 * PAGE_SIZE - 10], 0).unwrap();
        let overlay = OverlayDevice::new(lower.clone());
        overlay.write_at(&[2; PAGE_SIZE], PAGE_BYTES / 2).unwrap();
        overlay.write_at(&[3; 5], 3 * PAGE_BYTES - 15).unwrap();
        overlay.write_zeroes(PAGE_BYTES, 10).unwrap();
        let mut want = vec![1; 3 * PAGE_SIZE - 10];
        want[PAGE_SIZE / 2..PAGE_SIZE / 2 + PAGE_SIZE].fill(2);
        want[3 * PAGE_SIZE - 15..].fill(3);
        want[PAGE_SIZE..PAGE_SIZE + 10].fill(0);
        let mut back = vec![9; want.len()];
        overlay.read_at(&mut back, 0).unwrap();
        assert!(back == want);
        overlay.read_at(&mut back[..100], PAGE_BYTES + 3).unwrap();
        assert!(back[..100] == want[PAGE_SIZE + 3..PAGE_SIZE + 103]);
        lower.read_at(&mut back, 0).unwrap();
        assert!(back.iter().all(|&byte| byte == 1));
        let overlay = overlay.sealed();
        assert_eq!(overlay.write_at(&[1], 0).unwrap_err().errno(), Errno::ROFS);
        assert_eq!(
            overlay.write_zeroes(0, 1 << 40).unwrap_err().errno(),
            Errno::ROFS
        );
    }
}
