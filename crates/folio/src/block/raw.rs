//! Raw images: the bytes of a host file or block device are the bytes of the disk.

use super::{Allocation, Device, HostPlace, MapEntry, PlaceReader, iov};
use crate::base::{Errno, Error, Result};
use crate::block::file::{HostFile, ImageFile};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

/// A host file or block device as a disk. Its size is the file's size at open.
pub struct RawDevice {
    file: Arc<HostFile>,
    len_bytes: u64,
}

impl RawDevice {
    /// Opens the image at `path`.
    ///
    /// # Errors
    ///
    /// EBUSY if the lock of another process, QEMU or Folio, forbids it, else the host's errors.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<Self> {
        Self::from_file(Arc::new(HostFile::open(path.as_ref(), read_only)?))
    }

    /// Creates an image of `len_bytes` bytes, all of it a hole, and opens it for writing.
    ///
    /// # Errors
    ///
    /// EEXIST if the file exists, else the host's errors.
    pub fn create(path: impl AsRef<Path>, len_bytes: u64) -> Result<Self> {
        let path = path.as_ref();
        let file = HostFile::create(path)?;
        if let Err(error) = file.set_len(len_bytes) {
            // This call created the file, so its removal loses nothing.
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        Self::from_file(Arc::new(file))
    }

    /// Returns the disk in an open file.
    pub(crate) fn from_file(file: Arc<HostFile>) -> Result<Self> {
        let len_bytes = file.len_bytes()?;
        Ok(Self { file, len_bytes })
    }

    fn check(&self, offset: u64, len_bytes: u64) -> Result<()> {
        iov::check_range(self.len_bytes, offset, len_bytes)
            .map_err(|error| error.at(self.file.name().to_owned()))
    }

    fn check_write(&self, offset: u64, len_bytes: u64) -> Result<()> {
        if self.file.is_read_only() {
            return Err(Error::from(Errno::ROFS).at(self.file.name().to_owned()));
        }
        self.check(offset, len_bytes)
    }
}

impl Device for RawDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_read_only(&self) -> bool {
        self.file.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.check(offset, iov::len_mut(bufs))?;
        self.file.read(bufs, offset)
    }

    fn read_uncached_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let want = iov::len_mut(bufs);
        self.check(offset, want)?;
        let done = self.file.read_some_uncached(bufs, offset)?;
        self.file.check_read(offset, done, want)
    }

    fn read_in_place(&self, offset: u64, len_bytes: u64, read: PlaceReader<'_>) -> Result<bool> {
        self.check(offset, len_bytes)?;
        let file = self.file.as_file().as_fd();
        Ok(read(HostPlace { file, offset }))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.check_write(offset, iov::len(bufs))?;
        self.file.write(bufs, offset)
    }

    fn flush(&self) -> Result<()> {
        if self.file.is_read_only() {
            Ok(())
        } else {
            self.file.sync_data()
        }
    }

    fn holds_changes(&self) -> bool {
        self.file
            .device()
            .is_some_and(|device| device.holds_changes())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_write(offset, len_bytes)?;
        // A host that cannot release space keeps the bytes, which a discard allows.
        self.file.punch_hole(offset, len_bytes).map(|_| ())
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_write(offset, len_bytes)?;
        self.file.write_zeroes(offset, len_bytes)
    }

    fn write_allocated_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_write(offset, len_bytes)?;
        self.file.write_allocated_zeroes(offset, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.check(offset, len_bytes)?;
        self.file.allocation(offset, len_bytes)
    }

    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        let (kind, count) = self.allocation(offset, len_bytes)?;
        let host_offset = Some(offset);
        Ok((
            MapEntry {
                depth: 0,
                is_present: true,
                kind,
                is_zero: kind != Allocation::Data,
                is_compressed: false,
                host_offset,
            },
            count,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn write_is_read_back_and_holes_stay_holes() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("disk");
        let device = RawDevice::create(&path, 1 << 20).unwrap();
        assert_eq!(
            device.allocation(0, 1 << 20).unwrap(),
            (Allocation::Hole, 1 << 20)
        );
        let parts = vec![[7u8; 10]; 3000];
        let bufs: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        device.write_vectored_at(&bufs, 100).unwrap();
        let mut back = vec![[1u8; 7]; 5000];
        let mut bufs: Vec<_> = back.iter_mut().map(|part| IoSliceMut::new(part)).collect();
        device.read_vectored_at(&mut bufs, 0).unwrap();
        let flat = back.concat();
        assert!(
            flat.iter()
                .enumerate()
                .all(|(i, &b)| b == if (100..30100).contains(&i) { 7 } else { 0 })
        );
        // The second result comes from memory, which a change invalidates.
        for offset in [4096, 8192] {
            let found = device.allocation(offset, 1 << 19).unwrap();
            assert!(
                matches!(found, (Allocation::Data, 4096..=32768)),
                "{found:?}"
            );
        }
        device.discard(8192, 4096).unwrap();
        assert_eq!(
            device.allocation(8192, 4096).unwrap(),
            (Allocation::Hole, 4096)
        );
        device.write_zeroes(0, 1 << 20).unwrap();
        device.flush().unwrap();
        assert_eq!(
            device.allocation(0, 1 << 20).unwrap(),
            (Allocation::Hole, 1 << 20)
        );
        device.discard(0, 4096).unwrap();
    }

    #[test]
    fn invalid_opens_and_accesses_are_rejected() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("disk");
        let device = RawDevice::create(&path, 8192).unwrap();
        assert_eq!(
            RawDevice::create(&path, 1).err().unwrap().errno(),
            Errno::EXIST
        );
        assert_eq!(
            RawDevice::open(&path, true).err().unwrap().errno(),
            Errno::BUSY
        );
        assert_eq!(
            device.write_at(&[0; 2], 8191).unwrap_err().errno(),
            Errno::IO
        );
        drop(device);
        let device = RawDevice::open(&path, true).unwrap();
        assert_eq!(device.write_at(&[0], 0).unwrap_err().errno(), Errno::ROFS);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(4096)
            .unwrap();
        let error = device.read_at(&mut [0; 8], 4092).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("the file ends at 4096, before 4100"),
            "{error}"
        );
        assert_eq!(
            RawDevice::open(folder.path(), true).err().unwrap().errno(),
            Errno::ISDIR
        );
        assert_eq!(
            RawDevice::open(folder.path().join("no"), true)
                .err()
                .unwrap()
                .errno(),
            Errno::NOENT
        );
    }

    use std::fs::File;
}
