//! Copies content of the backing file into the image, beside writes and discards of the guest.
//!
//! A step is a write without bytes of the guest: it is in flight while it copies, so a write or
//! discard of the same clusters comes before it, and is skipped, or after it. QEMU: `block-stream`.

use super::device::Qcow2Device;
use super::read::HostCopy;
use crate::base::Result;
use crate::block::qcow2::layout::l2_entry::Mapping;
use crate::block::qcow2::metadata::{ClearResult, Metadata};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

impl Qcow2Device {
    /// Copies a first part of a range of guest bytes from the backing file, except where the image
    /// has an entry; returns its size in bytes.
    pub(in crate::block) fn pull(&self, range: Range<u64>) -> Result<u64> {
        let pull = || {
            self.begin_write(range.start, range.end - range.start)?;
            self.fill_planned(
                &Metadata::plan_pull,
                range.clone(),
                // Unreachable: no plan of a pull is in place.
                |_, _| Ok(()),
                |new| {
                    let count = new.range.end.min(range.end) - range.start;
                    let mut bytes = vec![0; count as usize];
                    let bufs = &mut [IoSliceMut::new(&mut bytes)];
                    self.read_run(Mapping::Unallocated, bufs, range.start, HostCopy::Kept)?;
                    let bufs = [IoSlice::new(&bytes)];
                    self.fill_clusters(new, &bufs, 0, range.start, count)
                },
            )
        };
        pull().map_err(|error| self.at_image(error))
    }

    /// Makes guest bytes zeros by their L2 entries, except where the image has an entry. Only whole
    /// units; the end of the disk may cut the last one. Returns false, and changes nothing, for
    /// another range and in version 2.
    pub(in crate::block) fn pull_zeros(&self, range: Range<u64>) -> Result<bool> {
        let (unit, disk_end) = (self.geometry.unit_bytes(), self.geometry.len_bytes);
        let is_whole = range.start.is_multiple_of(unit)
            && (range.end.is_multiple_of(unit) || range.end == disk_end);
        if !is_whole || self.geometry.version < 3 {
            return Ok(false);
        }
        let clear = || {
            self.begin_write(range.start, range.end - range.start)?;
            let (mut at, end) = (range.start, range.end.next_multiple_of(unit));
            while at < end {
                self.make_room()?;
                let _io = self.io.read();
                let mut metadata = self.metadata.lock();
                match metadata.clear_inherited(&*self.file, at..end)? {
                    ClearResult::Upto(next) | ClearResult::Compressed(next) => at = next,
                    ClearResult::Wait => self.write_done.wait(&mut metadata),
                }
            }
            Ok(true)
        };
        clear().map_err(|error| self.at_image(error))
    }
}
