//! A device behind the traits of `std::io`, for crates that read and write partition tables.

use crate::block::Device;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// A position on a device.
pub(super) struct DeviceCursor<'a> {
    disk: &'a dyn Device,
    at: u64,
}

impl<'a> DeviceCursor<'a> {
    pub(super) fn new(disk: &'a dyn Device) -> Self {
        Self { disk, at: 0 }
    }

    fn count(&self, len: usize) -> usize {
        (len as u64).min(self.disk.len_bytes().saturating_sub(self.at)) as usize
    }
}

impl Read for DeviceCursor<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.count(buf.len());
        let read = self.disk.read_at(&mut buf[..count], self.at);
        read.map_err(io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Write for DeviceCursor<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let count = self.count(buf.len());
        let written = self.disk.write_at(&buf[..count], self.at);
        written.map_err(io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.disk.flush().map_err(io::Error::other)
    }
}

impl Seek for DeviceCursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.disk.len_bytes().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
