//! A device that records every write and flush, for tests that cut the power at any of them. Linux:
//! dm-log-writes.

use crate::base::Result;
use crate::base::sync::Mutex;
use crate::block::{Allocation, Device, LowerDevice};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

/// One recorded call: a change of the device, or a barrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// Bytes written at an offset.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// The bytes, shared between copies of the record.
        bytes: Arc<[u8]>,
    },
    /// A range made zero.
    WriteZeroes {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len_bytes: u64,
    },
    /// A range discarded.
    Discard {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len_bytes: u64,
    },
    /// A barrier: entries before it survive, entries after it may be lost or reordered.
    Flush,
}

impl Recorded {
    /// Returns the bytes that the call changes; `None` for a barrier.
    pub fn range(&self) -> Option<Range<u64>> {
        let (offset, len_bytes) = match self {
            Self::Write { offset, bytes } => (*offset, bytes.len() as u64),
            Self::WriteZeroes { offset, len_bytes } | Self::Discard { offset, len_bytes } => {
                (*offset, *len_bytes)
            }
            Self::Flush => return None,
        };
        Some(offset..offset + len_bytes)
    }

    /// Repeats the call on another device.
    ///
    /// # Errors
    ///
    /// The errors of that device.
    pub fn replay(&self, onto: &dyn Device) -> Result<()> {
        match self {
            Self::Write { offset, bytes } => onto.write_at(bytes, *offset),
            Self::WriteZeroes { offset, len_bytes } => onto.write_zeroes(*offset, *len_bytes),
            Self::Discard { offset, len_bytes } => onto.discard(*offset, *len_bytes),
            Self::Flush => onto.flush(),
        }
    }
}

/// Passes all calls to the lower device and records the successful changes in order.
///
/// To get the state after a power cut, replay a prefix of [`RecordDevice::recorded`] onto a copy of
/// the lower device's first state. Entries after the prefix's last [`Recorded::Flush`] may be left
/// out in any combination. Writes run one at a time, so that the order of the record is the
/// device's.
pub struct RecordDevice {
    lower: Arc<dyn Device>,
    recorded: Mutex<Vec<Recorded>>,
}

impl RecordDevice {
    /// Returns a device over `lower` with an empty record.
    pub fn new(lower: Arc<dyn Device>) -> Self {
        Self {
            lower,
            recorded: Mutex::default(),
        }
    }

    /// Returns the record so far; the bytes are shared, not copied.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.recorded.lock().clone()
    }

    /// Returns the number of entries, which marks a moment in the record.
    pub fn recorded_len(&self) -> usize {
        self.recorded.lock().len()
    }

    /// Returns a part of the record: the entries of `range`, of those that exist.
    pub fn recorded_in(&self, range: Range<usize>) -> Vec<Recorded> {
        let recorded = self.recorded.lock();
        let end = range.end.min(recorded.len());
        recorded[range.start.min(end)..end].to_vec()
    }

    /// Returns the length of the record up to and with the last flush among the first `end`
    /// entries; 0 without one.
    pub fn flushed_len(&self, end: usize) -> usize {
        let recorded = self.recorded.lock();
        let before = &recorded[..end.min(recorded.len())];
        let flush = before.iter().rposition(|entry| *entry == Recorded::Flush);
        flush.map_or(0, |at| at + 1)
    }

    fn record(
        &self,
        call: impl FnOnce() -> Result<()>,
        entry: impl FnOnce() -> Recorded,
    ) -> Result<()> {
        let mut recorded = self.recorded.lock();
        call()?;
        recorded.push(entry());
        Ok(())
    }
}

impl Device for RecordDevice {
    fn len_bytes(&self) -> u64 {
        self.lower.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.lower.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.lower.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.record(
            || self.lower.write_vectored_at(bufs, offset),
            || Recorded::Write {
                offset,
                bytes: bufs.iter().flat_map(|buf| buf.iter().copied()).collect(),
            },
        )
    }

    fn lower_devices(&self) -> Vec<LowerDevice> {
        vec![LowerDevice {
            device: self.lower.clone(),
            range: 0..self.lower.len_bytes(),
            is_written: true,
        }]
    }

    fn flush(&self) -> Result<()> {
        self.record(|| self.lower.flush(), || Recorded::Flush)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.record(
            || self.lower.discard(offset, len_bytes),
            || Recorded::Discard { offset, len_bytes },
        )
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.record(
            || self.lower.write_zeroes(offset, len_bytes),
            || Recorded::WriteZeroes { offset, len_bytes },
        )
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.lower.allocation(offset, len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;

    #[test]
    fn prefix_replays_to_content_at_that_time() {
        let device = RecordDevice::new(Arc::new(MemoryDevice::new(1 << 16)));
        device
            .write_vectored_at(&[IoSlice::new(b"one "), IoSlice::new(b"two")], 10)
            .unwrap();
        device.flush().unwrap();
        let cut = device.recorded_len();
        device.write_zeroes(10, 3).unwrap();
        device.write_at(b"beyond", 1 << 16).unwrap_err();
        assert_eq!(device.recorded_len(), 3, "a failed call is not recorded");
        let text_after = |count: usize| {
            let copy = MemoryDevice::new(1 << 16);
            device.recorded()[..count]
                .iter()
                .try_for_each(|entry| entry.replay(&copy))
                .unwrap();
            let mut text = [0; 7];
            copy.read_at(&mut text, 10).unwrap();
            text
        };
        assert_eq!(&text_after(cut), b"one two");
        assert_eq!(&text_after(3), b"\0\0\0 two");
        assert_eq!(device.recorded()[1], Recorded::Flush);
    }
}
