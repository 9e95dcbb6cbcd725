//! A block device of one's own under ext4: `cargo run --example own_device`.
//!
//! The device keeps its bytes in a vector and counts what the file system asks for. Any storage
//! does as well: a network protocol, an encrypted file, a flash translation layer.

use folio::block::{Allocation, Device};
use folio::{Errno, Image, Result};
use std::error::Error;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

struct CountingDevice {
    bytes: RwLock<Vec<u8>>,
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
}

impl CountingDevice {
    fn new(len_bytes: usize) -> Self {
        Self {
            bytes: RwLock::new(vec![0; len_bytes]),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        }
    }

    /// Returns where a range begins. A range outside the device fails with EIO before any byte
    /// moves.
    fn start(&self, offset: u64, len_bytes: u64) -> Result<usize> {
        let end = offset.checked_add(len_bytes);
        if end.is_none_or(|end| end > self.len_bytes()) {
            return Err(Errno::IO.into());
        }
        Ok(offset as usize)
    }
}

impl Device for CountingDevice {
    fn len_bytes(&self) -> u64 {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        bytes.len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let mut start = self.start(offset, len_bytes)?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        for buf in bufs {
            let end = start + buf.len();
            buf.copy_from_slice(&bytes[start..end]);
            start = end;
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let mut start = self.start(offset, len_bytes)?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        for buf in bufs {
            bytes[start..start + buf.len()].copy_from_slice(buf);
            start += buf.len();
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.write_zeroes(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let start = self.start(offset, len_bytes)?;
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        bytes[start..start + len_bytes as usize].fill(0);
        Ok(())
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.start(offset, len_bytes)?;
        Ok((Allocation::Data, len_bytes))
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let device = Arc::new(CountingDevice::new(32 << 20));
    let fs = Image::create_on(device.clone()).mount()?;
    let before = device.writes.load(Ordering::Relaxed);
    for number in 0..1000 {
        fs.write(format!("/{number}"), [0; 4096])?;
    }
    fs.close()?;

    // One write for each file's content; directory, inodes and bitmaps go through the journal once.
    println!(
        "1000 files of 4 KiB: {} reads, {} writes, {} flushes",
        device.reads.load(Ordering::Relaxed),
        device.writes.load(Ordering::Relaxed) - before,
        device.flushes.load(Ordering::Relaxed),
    );
    let fs = Image::device(device).read_only().mount()?;
    assert_eq!(fs.read("/999")?, [0; 4096]);
    Ok(())
}
