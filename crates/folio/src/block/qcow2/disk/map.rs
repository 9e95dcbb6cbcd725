//! The map of an image and its backing files, for `folio image map`.

use super::device::Qcow2Device;
use crate::base::Result;
use crate::block::qcow2::layout::l2_entry::Mapping;
use crate::block::{Allocation, MapEntry};

impl Qcow2Device {
    /// Returns which image of the chain provides the bytes at `offset`, and for how many bytes.
    pub(super) fn map_entry_at(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        self.check(offset, len_bytes)?;
        // Before `io` is held: a write-back waits for all transfers.
        self.make_room()?;
        let _io = self.io.read();
        let (mapping, count) = self.metadata.lock().map(&*self.file, offset, len_bytes)?;
        let in_unit = offset & (self.geometry.unit_bytes() - 1);
        let here = |kind, is_present, host_offset: Option<u64>| MapEntry {
            depth: 0,
            is_present,
            kind,
            is_zero: kind != Allocation::Data,
            is_compressed: matches!(mapping, Mapping::Compressed { .. }),
            host_offset: host_offset.map(|host| host + in_unit),
        };
        let entry = match (mapping, &self.backing) {
            (Mapping::Data { host, .. }, _) => {
                let (is_zero, count) = self.is_host_hole(host + in_unit, count)?;
                let entry = here(Allocation::Data, true, Some(host));
                return Ok((MapEntry { is_zero, ..entry }, count));
            }
            (Mapping::Compressed { .. }, _) => here(Allocation::Data, true, None),
            (Mapping::ZeroAllocated { host, .. }, _) => here(Allocation::Zero, true, Some(host)),
            (Mapping::Zero, _) => here(Allocation::Zero, true, None),
            (Mapping::Unallocated | Mapping::Reserved { .. }, Some(backing))
                if offset < backing.len_bytes() =>
            {
                let (entry, count) =
                    backing.map_entry(offset, count.min(backing.len_bytes() - offset))?;
                return Ok((
                    MapEntry {
                        depth: entry.depth + 1,
                        ..entry
                    },
                    count,
                ));
            }
            (Mapping::Reserved { host, .. }, _) => here(Allocation::Hole, false, Some(host)),
            (Mapping::Unallocated, _) => here(Allocation::Hole, false, None),
        };
        Ok((entry, count))
    }

    /// Whether data at a host offset is a hole of the host's file, and for how many of `len_bytes`
    /// bytes that holds. Only a preallocated image asks the host: without preallocation no cluster
    /// is a hole.
    fn is_host_hole(&self, host: u64, len_bytes: u64) -> Result<(bool, u64)> {
        if !self.is_preallocated() {
            return Ok((false, len_bytes));
        }
        let (kind, count) = self.data().allocation(host, len_bytes)?;
        Ok((kind != Allocation::Data, count.clamp(1, len_bytes)))
    }

    /// Whether the file has fewer bytes on the host's disk than its clusters in use: a tenth less,
    /// and two clusters. QEMU: `qcow2_detect_metadata_preallocation`.
    fn is_preallocated(&self) -> bool {
        let detect = || -> Result<bool> {
            let Some(allocated) = self.file.allocated_bytes()? else {
                return Ok(false);
            };
            let cluster = self.geometry.cluster_bytes();
            let stored = allocated / cluster;
            let limit = (stored * 10 / 9).max(stored + 2);
            let end = self.file.len_bytes()?.div_ceil(cluster);
            let refcounts = &mut self.metadata.lock().refcounts;
            Ok(refcounts.count_used(&*self.file, end, limit)? >= limit)
        };
        // Without refcounts the map is still right: data is then not known to be zero.
        *self
            .is_preallocated
            .get_or_init(|| detect().unwrap_or(false))
    }
}
