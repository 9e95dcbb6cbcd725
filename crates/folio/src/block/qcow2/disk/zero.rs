//! Zeros and discards: whole units by their L2 entries, the rest by writing zeros.

use super::device::Qcow2Device;
use crate::base::Result;
use crate::block::iov::ZEROS;
use crate::block::qcow2::metadata::{ClearResult, NewClusters};
use std::io::IoSlice;
use std::ops::Range;

impl Qcow2Device {
    /// Writes zeros to a part of a cluster, unless it reads as zeros already.
    fn zero_part(&self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (mapping, count) = self.metadata.lock().map(&*self.file, at, range.end - at)?;
            let is_zero = self.is_zero(mapping, at);
            let count = if is_zero {
                count
            } else {
                count.min(ZEROS.len() as u64)
            };
            if !is_zero {
                self.write(&[IoSlice::new(&ZEROS[..count as usize])], at)?;
            }
            at += count;
        }
        Ok(())
    }

    /// Makes whole units read as zeros by their L2 entries, or discards them.
    pub(super) fn clear_units(&self, range: Range<u64>, is_discard: bool) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            self.make_room()?;
            let io = self.io.read();
            let mut metadata = self.metadata.lock();
            match metadata.clear(&*self.file, at..range.end)? {
                ClearResult::Upto(end) => {
                    if let Some(data) = &self.data_file {
                        // Still under the metadata lock: no write plans new clusters in this range.
                        // One in place may go on; it and this call are in any order.
                        data.clear(at..end.min(self.geometry.len_bytes))?;
                    }
                    at = end;
                }
                ClearResult::Wait => self.write_done.wait(&mut metadata),
                ClearResult::Compressed(end) => {
                    // `zero_part` takes both locks itself.
                    drop((metadata, io));
                    if !is_discard {
                        self.zero_part(at..end.min(self.geometry.len_bytes))?;
                    }
                    at = end;
                }
            }
        }
        Ok(())
    }

    /// Makes a range of guest bytes read as zeros, or discards it: whole units by their L2 entries,
    /// and the parts before and after by writing zeros.
    pub(in crate::block::qcow2) fn zero(
        &self,
        offset: u64,
        len_bytes: u64,
        is_discard: bool,
    ) -> Result<()> {
        self.begin_write(offset, len_bytes)?;
        let unit = self.geometry.unit_bytes();
        let end = offset + len_bytes;
        // The end of the disk may cut the last cluster, which then still counts as whole.
        let is_last = end == self.geometry.len_bytes;
        let whole_end = if is_last {
            end.next_multiple_of(self.geometry.cluster_bytes())
        } else {
            end & !(unit - 1)
        };
        let whole = offset.next_multiple_of(unit)..whole_end;
        let has_zero_clusters = self.geometry.version >= 3 || self.backing.is_none();
        if whole.is_empty() || !has_zero_clusters {
            return if is_discard {
                Ok(())
            } else {
                self.zero_part(offset..end)
            };
        }
        self.clear_units(whole.clone(), is_discard)?;
        if is_discard {
            return Ok(());
        }
        // The end of the disk may be inside the unit.
        self.zero_part(offset..whole.start.min(end))?;
        self.zero_part(whole.end.min(end)..end)
    }

    /// Makes a range of guest bytes read as zeros, with space of the host for them: whole clusters
    /// without writing where the host can, the parts before and after by writing zeros.
    pub(super) fn zero_allocated(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.begin_write(offset, len_bytes)?;
        let (end, cluster_bytes) = (offset + len_bytes, self.geometry.cluster_bytes());
        let whole_start = offset.next_multiple_of(cluster_bytes).min(end);
        let whole_end = whole_start.max(end / cluster_bytes * cluster_bytes);
        self.write_zeros(offset..whole_start)?;
        let mut at = whole_start;
        while at < whole_end {
            at += self.change_piece(
                at..whole_end,
                |host, count| self.data().write_allocated_zeroes(host, count),
                |new| self.zero_clusters(new, at..whole_end),
            )?;
        }
        self.write_zeros(whole_end..end)
    }

    /// Makes new clusters zeros, which the range covers as far as they are in it.
    fn zero_clusters(&self, new: &NewClusters, range: Range<u64>) -> Result<u64> {
        let bits = self.geometry.cluster_bits;
        if self.data_file.is_none() {
            let end = new.clusters.host + (new.clusters.count << bits);
            self.reserve.extend_to(&*self.file, end)?;
        }
        let count = new.range.end.min(range.end) - range.start;
        let host = new.clusters.host + range.start - (new.first << bits);
        self.data().write_allocated_zeroes(host, count)?;
        Ok(count)
    }

    fn write_zeros(&self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let count = (range.end - at).min(ZEROS.len() as u64);
            self.write(&[IoSlice::new(&ZEROS[..count as usize])], at)?;
            at += count;
        }
        Ok(())
    }

    /// Makes the guest bytes from `old_bytes` on zeros that would otherwise show old content: the
    /// rest of a cluster, and the bytes of a longer backing file.
    pub(in crate::block::qcow2) fn zero_grown_part(&self, old_bytes: u64) -> Result<()> {
        let backing_bytes = self
            .backing
            .as_ref()
            .map_or(0, |backing| backing.len_bytes());
        let cluster_end = old_bytes.next_multiple_of(self.geometry.cluster_bytes());
        let end = cluster_end.max(backing_bytes).min(self.geometry.len_bytes);
        match end.checked_sub(old_bytes) {
            None | Some(0) => Ok(()),
            Some(len_bytes) => self.zero(old_bytes, len_bytes, false),
        }
    }
}
