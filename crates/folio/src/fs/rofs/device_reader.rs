//! A device as a stream that seeks.

use crate::block::Device;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

/// Bytes read at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Reads a device from a position on.
pub(crate) struct DeviceReader {
    device: Arc<dyn Device>,
    position: u64,
}

impl DeviceReader {
    pub(crate) fn buffered(device: Arc<dyn Device>) -> BufReader<Self> {
        BufReader::with_capacity(BUFFER_BYTES, Self::at(device, 0))
    }

    /// Creates a reader from `position` on.
    pub(crate) fn at(device: Arc<dyn Device>, position: u64) -> Self {
        Self { device, position }
    }
}

impl Read for DeviceReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.device.len_bytes().saturating_sub(self.position);
        let count = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.device
            .read_at(&mut buf[..count], self.position)
            .map_err(io::Error::other)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for DeviceReader {
    fn seek(&mut self, target: SeekFrom) -> io::Result<u64> {
        let position = match target {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.device.len_bytes().checked_add_signed(distance),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
