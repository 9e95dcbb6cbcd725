//! The map of an image and its backing files, for `folio image map`.

use super::device::Qcow2Device;
use crate::base::Result;
use crate::block::qcow2::layout::l2_entry::Mapping;
use crate::block::{Allocation, MapEntry};

impl Qcow2Device {
    /// Returns which image of the chain provides the bytes at `offset`, and for how many bytes.
    pub(super) fn map_entry_at(&self, offset: u64, len_bytes: u64) -> Result<(MapEntry, u64)> {
        self.check(offset, len_bytes)?;
        self.make_room()?;
        let _io = self.io.read();
        let (mapping, count) = self.metadata.lock().map(&*self.file, offset, len_bytes)?;
        let in_unit = offset & (self.geometry.unit_bytes() - 1);
        let here = |kind, is_present, is_compressed, host_offset| MapEntry {
            depth: 0,
            is_present,
            kind,
            is_compressed,
            host_offset,
        };
        let entry = match (mapping, &self.backing) {
            (Mapping::Data { host, .. }, _) => {
                here(Allocation::Data, true, false, Some(host + in_unit))
            }
            (Mapping::Compressed { .. }, _) => here(Allocation::Data, true, true, None),
            (Mapping::ZeroAllocated { host, .. }, _) => {
                here(Allocation::Zero, true, false, Some(host + in_unit))
            }
            (Mapping::Zero, _) => here(Allocation::Zero, true, false, None),
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
            (Mapping::Unallocated | Mapping::Reserved { .. }, _) => {
                here(Allocation::Hole, false, false, None)
            }
        };
        Ok((entry, count))
    }
}
