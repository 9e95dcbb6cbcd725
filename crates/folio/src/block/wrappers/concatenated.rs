//! Several devices one after the other, for reading.

use crate::base::{Errno, Result};
use crate::block::{Allocation, Device, LowerDevice, MapEntry, iov};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// The size of each part is rounded up to a multiple of this many bytes.
const SECTOR_BYTES: u64 = 512;

/// Several devices one after the other, each rounded up to whole sectors (`qemu-img convert` of
/// several images). Read-only.
pub struct ConcatenatedDevice {
    /// The parts, with the offsets at which they start.
    parts: Vec<(u64, Arc<dyn Device>)>,
    len_bytes: u64,
}

/// The place of an offset.
enum Place<'a> {
    /// In a part: its device, the offset in it, and the bytes left in it.
    Part(&'a Arc<dyn Device>, u64, u64),
    /// Behind the end of a part: the number of zeros left.
    Padding(u64),
}

impl ConcatenatedDevice {
    /// Puts devices one after the other.
    ///
    /// # Errors
    ///
    /// EFBIG if their sum is too large.
    pub fn new(devices: Vec<Arc<dyn Device>>) -> Result<Self> {
        let mut parts = Vec::new();
        let mut end = 0u64;
        for device in devices {
            let len_bytes = device.len_bytes().checked_next_multiple_of(SECTOR_BYTES);
            let next = len_bytes.and_then(|len_bytes| end.checked_add(len_bytes));
            parts.push((end, device));
            end = next.ok_or(Errno::FBIG)?;
        }
        Ok(Self {
            parts,
            len_bytes: end,
        })
    }

    fn place(&self, offset: u64) -> Option<Place<'_>> {
        let index = self.parts.partition_point(|(start, _)| *start <= offset);
        let (start, device) = self.parts.get(index.checked_sub(1)?)?;
        let end = self
            .parts
            .get(index)
            .map_or(self.len_bytes, |(start, _)| *start);
        let at = offset - start;
        Some(match device.len_bytes().checked_sub(at) {
            Some(left @ 1..) => Place::Part(device, at, left),
            _ => Place::Padding(end - offset),
        })
    }
}

impl Device for ConcatenatedDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let len_bytes = iov::len_mut(bufs);
        iov::check_range(self.len_bytes, offset, len_bytes)?;
        let mut done = 0;
        while done < len_bytes {
            let left = len_bytes - done;
            match self.place(offset + done) {
                Some(Place::Part(device, at, more)) => {
                    let count = left.min(more);
                    device.read_vectored_at(&mut iov::window_mut(bufs, done, count), at)?;
                    done += count;
                }
                Some(Place::Padding(more)) => {
                    let count = left.min(more);
                    iov::fill_zeros(&mut iov::window_mut(bufs, done, count));
                    done += count;
                }
                None => return Err(Errno::IO.into()),
            }
        }
        Ok(())
    }

    fn write_vectored_at(&self, _bufs: &[IoSlice<'_>], _offset: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn write_zeroes(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        iov::check_range(self.len_bytes, offset, len_bytes)?;
        match self.place(offset) {
            Some(Place::Part(device, at, left)) => device.allocation(at, len_bytes.min(left)),
            Some(Place::Padding(left)) => Ok((Allocation::Hole, len_bytes.min(left))),
            None => Err(Errno::IO.into()),
        }
    }

    fn map_entry(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        iov::check_range(self.len_bytes, offset, len_bytes)?;
        if let Some(Place::Part(device, at, left)) = self.place(offset) {
            return device.map_entry(at, len_bytes.min(left));
        }
        let (kind, count) = self.allocation(offset, len_bytes)?;
        let entry = MapEntry {
            depth: 0,
            is_present: false,
            kind,
            is_zero: true,
            is_compressed: false,
            host_offset: None,
        };
        Ok((entry, count))
    }

    fn lower_devices(&self) -> Vec<LowerDevice> {
        let lower = |(_, device): &(u64, Arc<dyn Device>)| LowerDevice {
            device: device.clone(),
            range: 0..device.len_bytes(),
            is_written: false,
        };
        self.parts.iter().map(lower).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;

    #[test]
    fn parts_follow_each_other_in_whole_sectors() {
        let part = |byte: u8, len: usize| -> Arc<dyn Device> {
            let device = MemoryDevice::new(len as u64);
            device.write_at(&vec![byte; len], 0).unwrap();
            Arc::new(device)
        };
        let parts = vec![part(1, 1000), part(2, 0), part(3, 512), part(4, 1)];
        let whole = ConcatenatedDevice::new(parts).unwrap();
        assert_eq!(whole.len_bytes(), 1024 + 512 + 512);
        let mut bytes = vec![9; 2048];
        whole.read_at(&mut bytes, 0).unwrap();
        let mut want = [vec![1; 1000], vec![0; 24], vec![3; 512], vec![4]].concat();
        want.resize(2048, 0);
        assert_eq!(bytes, want);
        assert_eq!(
            whole.allocation(1000, 1048).unwrap(),
            (Allocation::Hole, 24)
        );
        assert_eq!(whole.allocation(1024, 1024).unwrap().1, 512);
        assert!(whole.read_at(&mut bytes, 1).is_err());
        assert!(whole.write_at(&[1], 0).is_err());
    }
}
