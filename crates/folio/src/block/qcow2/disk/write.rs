//! Writes: plan under the metadata lock, data without it, then the new clusters enter the tables.

use super::device::Qcow2Device;
use super::read::HostCopy;
use crate::base::Result;
use crate::block::file::ImageFile;
use crate::block::iov;
use crate::block::qcow2::metadata::{MappingRuns, Metadata, NewClusters, WritePlan};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

impl Qcow2Device {
    /// Plans the change of a first part of a range of guest bytes, and makes it: `change` changes
    /// bytes of the host in place, `fill` fills new clusters. Both return how many bytes.
    pub(super) fn change_piece(
        &self,
        range: Range<u64>,
        change: impl FnOnce(u64, u64) -> Result<()>,
        fill: impl FnOnce(&NewClusters) -> Result<u64>,
    ) -> Result<u64> {
        self.fill_planned(&Metadata::plan_write, range, change, fill)
    }

    /// Makes a change that `plan` plans, as [`Qcow2Device::change_piece`] does.
    pub(super) fn fill_planned(
        &self,
        plan: &dyn Fn(&mut Metadata, &dyn ImageFile, u64, u64) -> Result<WritePlan>,
        range: Range<u64>,
        change: impl FnOnce(u64, u64) -> Result<()>,
        fill: impl FnOnce(&NewClusters) -> Result<u64>,
    ) -> Result<u64> {
        // Before `io` is held: a write-back waits for all transfers.
        self.make_room()?;
        // Held to the end: the old clusters, whose bytes are copied, are not reused before.
        let _io = self.io.read();
        let plan = {
            let mut metadata = self.metadata.lock();
            loop {
                let len_bytes = range.end - range.start;
                match plan(&mut metadata, &*self.file, range.start, len_bytes)? {
                    WritePlan::Wait => self.write_done.wait(&mut metadata),
                    plan => break plan,
                }
            }
        };
        let new = match plan {
            WritePlan::InPlace { host, len_bytes } => {
                change(host, len_bytes)?;
                return Ok(len_bytes);
            }
            WritePlan::New(new) => new,
            WritePlan::Skip { len_bytes } => return Ok(len_bytes),
            // Unreachable: the loop above ends with another plan.
            WritePlan::Wait => return Ok(0),
        };
        // Without the metadata lock: the run is in flight, so no other write plans the same
        // clusters.
        let filled = fill(&new);
        let mut metadata = self.metadata.lock();
        let finished = match &filled {
            Ok(_) => metadata.finish(&*self.file, &new),
            Err(_) => metadata.abandon(&*self.file, &new),
        };
        self.write_done.notify_all();
        let count = filled?;
        finished.map(|()| count)
    }

    /// Fills a run of new units with one host write: the bytes before the guest's, the guest's, the
    /// bytes after.
    pub(super) fn fill_clusters(
        &self,
        new: &NewClusters,
        bufs: &[IoSlice<'_>],
        skip: u64,
        offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let bits = self.geometry.cluster_bits;
        let Range {
            start,
            end: run_end,
        } = new.range;
        let end = run_end.min(offset + len_bytes);
        let is_fresh = match &self.data_file {
            None => {
                let run_end = new.clusters.host + (new.clusters.count << bits);
                // Before the write that grows the file: the host then finds the space in one
                // extent.
                self.reserve.extend_to(&*self.file, run_end)?;
                new.clusters.is_fresh
            }
            Some(data) => (offset == start && end == run_end) || data.is_hole(start..run_end)?,
        };
        let head = self.uncovered(&new.head, start..offset, is_fresh)?;
        let tail = self.uncovered(&new.tail, end..run_end, is_fresh)?;
        let mut pieces = iov::Pieces::new();
        pieces.extend(head.as_deref().map(IoSlice::new));
        pieces.extend(iov::window(bufs, skip, end - offset));
        pieces.extend(tail.as_deref().map(IoSlice::new));
        let written = if head.is_some() { start } else { offset };
        self.data()
            .write(&pieces, new.clusters.host + written - (new.first << bits))?;
        Ok(end - offset)
    }

    /// Returns the old bytes of the part of new units that the write does not cover; none if the
    /// part is empty or reads as zeros already.
    fn uncovered(
        &self,
        old: &MappingRuns,
        range: Range<u64>,
        is_fresh: bool,
    ) -> Result<Option<Vec<u8>>> {
        let is_zero = old
            .iter()
            .all(|(mapping, _)| self.is_zero(*mapping, range.start));
        if range.is_empty() || (is_zero && is_fresh) {
            return Ok(None);
        }
        // At most a cluster: 2 MiB.
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let mut at = range.start;
        let mut rest = &mut bytes[..];
        for (mapping, count) in old {
            let (piece, after) = rest.split_at_mut(*count as usize);
            if !self.is_zero(*mapping, at) {
                self.read_run(*mapping, &mut [IoSliceMut::new(piece)], at, HostCopy::Kept)?;
            }
            at += count;
            rest = after;
        }
        Ok(Some(bytes))
    }

    /// Writes in place, if the place is known without the metadata lock; returns whether it is.
    fn write_known(&self, bufs: &[IoSlice<'_>], offset: u64, len_bytes: u64) -> Result<bool> {
        // Held until the bytes are written: the cluster is not reused before.
        let _io = self.io.read();
        match self.known_place(offset, len_bytes) {
            Some(host) => self.data().write(bufs, host).map(|()| true),
            None => Ok(false),
        }
    }

    /// Writes all of `bufs` at guest offset `offset`.
    pub(super) fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let len_bytes = iov::len(bufs);
        self.begin_write(offset, len_bytes)?;
        if self.write_known(bufs, offset, len_bytes)? {
            return Ok(());
        }
        let mut done = 0;
        while done < len_bytes {
            let (skip, at) = (done, offset + done);
            done += self.change_piece(
                at..offset + len_bytes,
                |host, count| self.data().write(&iov::window(bufs, skip, count), host),
                |new| self.fill_clusters(new, bufs, skip, at, len_bytes - skip),
            )?;
        }
        Ok(())
    }
}
