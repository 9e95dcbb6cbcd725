//! Preallocation: a host cluster for every guest cluster of a new image, or of the new part of one
//! that grows.

use super::device::Qcow2Device;
use super::lazy::RefcountWrites;
use crate::base::{Error, Result};
use crate::block::image::{CreateOptions, Preallocation};
use crate::block::qcow2::metadata::{NewClusters, WritePlan};

/// The L2 entries of preallocated clusters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NewEntries {
    /// The clusters store zeros.
    Data,
    /// The clusters are reserved: their subclusters read as the backing file does.
    Reserved,
}

impl Qcow2Device {
    /// Preallocates a new image, which was opened without its backing file.
    pub(in crate::block::qcow2) fn preallocate_new(&self, options: &CreateOptions) -> Result<()> {
        // Clusters that store zeros would hide the backing file. A raw data file has none.
        let entries = match options.backing {
            Some(_) => NewEntries::Reserved,
            None => NewEntries::Data,
        };
        self.preallocate_from(options.preallocation, 0, entries)
    }

    /// Allocates every cluster from guest offset `start` on, where the image reads as zeros, and
    /// the host's space for it.
    pub(in crate::block::qcow2) fn preallocate(
        &self,
        how: Preallocation,
        start: u64,
    ) -> Result<()> {
        self.preallocate_from(how, start, NewEntries::Data)
    }

    fn preallocate_from(&self, how: Preallocation, start: u64, entries: NewEntries) -> Result<()> {
        let how = match how {
            // Other programs write to a raw data file, and QEMU reads what the tables name.
            Preallocation::Off if self.geometry.is_raw => Preallocation::Metadata,
            Preallocation::Off => return Ok(()),
            how => how,
        };
        let mut at = start;
        while at < self.geometry.len_bytes {
            at += self
                .preallocate_piece(how, at, entries)
                .map_err(|error| self.at_image(error))?;
        }
        let end = self.metadata.lock().refcounts.host_end;
        self.file.set_len(end.max(self.file.len_bytes()?))?;
        self.write_back(RefcountWrites::Now)
            .map_err(|error| self.at_image(error))
    }

    fn preallocate_piece(
        &self,
        how: Preallocation,
        offset: u64,
        entries: NewEntries,
    ) -> Result<u64> {
        // Before `io` is held: a write-back waits for all transfers.
        self.make_room()?;
        let _io = self.io.read();
        let mut metadata = self.metadata.lock();
        let left = self.geometry.len_bytes - offset;
        let mut new = match metadata.plan_write(&*self.file, offset, left)? {
            WritePlan::New(new) => new,
            // Written as zeros by `zero_grown_part`.
            WritePlan::InPlace { len_bytes, .. } | WritePlan::Skip { len_bytes } => {
                return Ok(len_bytes);
            }
            // No other thread writes to the image yet.
            WritePlan::Wait => return Err(Error::corrupt("a new image has writes in flight")),
        };
        let count = new.clusters.count << self.geometry.cluster_bits;
        if entries == NewEntries::Reserved {
            new.range = offset..offset;
        }
        // The space before the entries: without it the clusters are freed again.
        match self.take_space(how, &new, left) {
            Ok(()) => metadata.finish(&*self.file, &new)?,
            Err(error) => {
                metadata.abandon(&*self.file, &new)?;
                return Err(error);
            }
        }
        Ok(count.min(left))
    }

    /// Takes the host's space for new clusters, which then hold zeros.
    fn take_space(&self, how: Preallocation, new: &NewClusters, left: u64) -> Result<()> {
        let host = new.clusters.host;
        let mut count = new.clusters.count << self.geometry.cluster_bits;
        if self.data_file.is_some() {
            // The data file ends where the disk does.
            count = count.min(left);
        }
        if how == Preallocation::Full {
            return self.data().fill_with_zeros(host, count);
        }
        if !new.clusters.is_fresh {
            // They were used before.
            self.data().write_zeroes(host, count)?;
        }
        if how == Preallocation::Falloc {
            self.data().preallocate(host, count)?;
        }
        Ok(())
    }
}
