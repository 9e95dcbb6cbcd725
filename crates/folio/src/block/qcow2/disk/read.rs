//! Reads: lookup under the metadata lock, data without it.

use super::device::Qcow2Device;
use crate::base::Result;
use crate::block::qcow2::layout::l2_entry::Mapping;
use crate::block::{HostPlace, PlaceReader, iov};
use smallvec::SmallVec;
use std::io::IoSliceMut;

/// Whether the host's page cache gains a copy of the bytes that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostCopy {
    Kept,
    /// The caller caches them itself.
    Skipped,
}

impl Qcow2Device {
    /// Fills `bufs` with the guest bytes at `offset`.
    pub(super) fn read(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
        copy: HostCopy,
    ) -> Result<()> {
        let len_bytes = iov::len_mut(bufs);
        self.check(offset, len_bytes)?;
        // Before `io` is held: a write-back waits for all transfers.
        self.make_room()?;
        // Held until the bytes are read: clusters of this lookup are not reused before.
        let _io = self.io.read();
        if let Some(host) = self.known_place(offset, len_bytes) {
            return self.read_host(bufs, host, copy);
        }
        let mut runs: SmallVec<[(Mapping, u64); 8]> = SmallVec::new();
        {
            let mut metadata = self.metadata.lock();
            let mut done = 0;
            while done < len_bytes {
                let (mapping, count) =
                    metadata.map(&*self.file, offset + done, len_bytes - done)?;
                runs.push((mapping, count));
                done += count;
            }
        }
        if let [(mapping, _)] = runs[..] {
            return self.read_run(mapping, bufs, offset, copy);
        }
        let mut done = 0;
        for (mapping, count) in runs {
            self.read_run(
                mapping,
                &mut iov::window_mut(bufs, done, count),
                offset + done,
                copy,
            )?;
            done += count;
        }
        Ok(())
    }

    /// Calls `read` with the place of a range in a file of the host, if it is in one piece; returns
    /// whether it has read it.
    pub(super) fn read_at_place(
        &self,
        offset: u64,
        len_bytes: u64,
        read: PlaceReader<'_>,
    ) -> Result<bool> {
        self.check(offset, len_bytes)?;
        let Some(file) = self.data().host_file() else {
            return Ok(false);
        };
        self.make_room()?;
        // Held until the bytes are read, as in `read`.
        let _io = self.io.read();
        let known = match self.known_place(offset, len_bytes) {
            None => self.metadata.lock().place(&*self.file, offset, len_bytes)?,
            known => known,
        };
        Ok(known.is_some_and(|offset| read(HostPlace { file, offset })))
    }

    /// Returns where a range is stored, if it is known without the metadata lock: there it may be
    /// read, and written in place, while `io` is held.
    pub(in crate::block::qcow2) fn known_place(&self, offset: u64, len_bytes: u64) -> Option<u64> {
        let in_cluster = offset & (self.geometry.cluster_bytes() - 1);
        if in_cluster + len_bytes > self.geometry.cluster_bytes() {
            return None;
        }
        let bits = self.geometry.cluster_bits;
        let host = self.published.in_place.get(offset >> bits)?;
        Some((host << bits) + in_cluster)
    }

    /// Fills `bufs` with bytes of the file that stores the data. It may end before: the rest is
    /// zeros.
    fn read_host(&self, bufs: &mut [IoSliceMut<'_>], host: u64, copy: HostCopy) -> Result<()> {
        let done = match copy {
            HostCopy::Kept => self.data().read_some(bufs, host)?,
            HostCopy::Skipped => self.data().read_some_uncached(bufs, host)?,
        };
        iov::fill_zeros_from(bufs, done);
        Ok(())
    }

    /// Fills `bufs` with guest bytes of one run that `mapping` describes.
    pub(super) fn read_run(
        &self,
        mapping: Mapping,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
        copy: HostCopy,
    ) -> Result<()> {
        match mapping {
            Mapping::Data { host, .. } => {
                let in_unit = offset & (self.geometry.unit_bytes() - 1);
                self.read_host(bufs, host + in_unit, copy)
            }
            Mapping::Zero | Mapping::ZeroAllocated { .. } => {
                iov::fill_zeros(bufs);
                Ok(())
            }
            Mapping::Compressed { host, len_bytes } => {
                let in_cluster = offset & (self.geometry.cluster_bytes() - 1);
                self.decompressor
                    .read(&*self.file, host, len_bytes, bufs, in_cluster as usize)
            }
            Mapping::Unallocated | Mapping::Reserved { .. } => {
                let len_bytes = iov::len_mut(bufs);
                let available = match &self.backing {
                    Some(backing) => {
                        let available = backing.len_bytes().saturating_sub(offset).min(len_bytes);
                        if available > 0 {
                            let mut window = iov::window_mut(bufs, 0, available);
                            match copy {
                                HostCopy::Kept => backing.read_vectored_at(&mut window, offset)?,
                                HostCopy::Skipped => {
                                    backing.read_uncached_at(&mut window, offset)?
                                }
                            }
                        }
                        available
                    }
                    None => 0,
                };
                iov::fill_zeros(&mut iov::window_mut(bufs, available, len_bytes - available));
                Ok(())
            }
        }
    }

    /// Whether a run that starts at `offset` reads as zeros, without a lookup in backing files.
    pub(super) fn is_zero(&self, mapping: Mapping, offset: u64) -> bool {
        match mapping {
            Mapping::Zero | Mapping::ZeroAllocated { .. } => true,
            Mapping::Unallocated | Mapping::Reserved { .. } => self
                .backing
                .as_ref()
                .is_none_or(|backing| backing.len_bytes() <= offset),
            Mapping::Data { .. } | Mapping::Compressed { .. } => false,
        }
    }
}
