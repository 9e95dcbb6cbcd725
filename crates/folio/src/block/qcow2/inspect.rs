//! What an image says of itself: for `folio image info` and `map`.

use super::super::image_file::ImageFile;
use super::header::{Compression, DataFileName, Header, read_raw};
use super::l2_entry::Mapping;
use super::{Allocation, Compat, Extent, Qcow2Device};
use crate::base::Result;

const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const EXTENDED_L2: u64 = 1 << 4;
const LAZY_REFCOUNTS: u64 = 1 << 0;

/// What is special about a qcow2 image.
#[derive(Debug, Clone)]
pub struct Qcow2Info {
    /// Size of the disk.
    pub len_bytes: u64,
    /// Bytes in a cluster.
    pub cluster_bytes: u64,
    /// Version of the format.
    pub compat: Compat,
    /// How compressed clusters are compressed.
    pub compression: Compression,
    /// Refcounts need not be right while the image is in use.
    pub lazy_refcounts: bool,
    /// Bits in a refcount.
    pub refcount_bits: u32,
    /// Some program found the image corrupt.
    pub is_corrupt: bool,
    /// The image was not closed.
    pub is_dirty: bool,
    /// L2 entries know of the parts of a cluster.
    pub extended_l2: bool,
    /// Where the data lies, if not in the image.
    pub data_file: Option<DataFileName>,
    /// Name of the backing file, as it is written in the image.
    pub backing_name: Option<String>,
    /// Format of the backing file, as it is written in the image.
    pub backing_format: Option<String>,
}

/// Reads the header alone.
pub(in crate::block) fn inspect(file: &dyn ImageFile) -> Result<Qcow2Info> {
    let header = Header::read(file)?;
    let raw = read_raw(file)?;
    let (incompatible, compatible) = (raw.incompatible.get(), raw.compatible.get());
    Ok(Qcow2Info {
        len_bytes: header.len_bytes,
        cluster_bytes: 1 << header.cluster_bits,
        compat: if header.version == 2 {
            Compat::V0_10
        } else {
            Compat::V1_1
        },
        compression: header.compression,
        lazy_refcounts: compatible & LAZY_REFCOUNTS != 0,
        refcount_bits: 1 << header.refcount_order,
        is_corrupt: incompatible & CORRUPT != 0,
        is_dirty: incompatible & DIRTY != 0,
        extended_l2: incompatible & EXTENDED_L2 != 0,
        data_file: header.data_file,
        backing_name: header.backing_name,
        backing_format: header.backing_format,
    })
}

impl Qcow2Device {
    /// Where the bytes at `offset` come from, through the chain.
    pub(super) fn extent_at(&self, offset: u64, len_bytes: u64) -> Result<(Extent, u64)> {
        self.check(offset, len_bytes)?;
        self.make_room()?;
        let _io = self.io.read();
        let (mapping, count) = self.metadata.lock().map(&*self.file, offset, len_bytes)?;
        let in_unit = offset & (self.geometry.unit_bytes() - 1);
        let here = |kind, is_present, is_compressed, host_offset| Extent {
            depth: 0,
            is_present,
            kind,
            is_compressed,
            host_offset,
        };
        let extent = match (mapping, &self.backing) {
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
                let (extent, count) =
                    backing.extent(offset, count.min(backing.len_bytes() - offset))?;
                return Ok((
                    Extent {
                        depth: extent.depth + 1,
                        ..extent
                    },
                    count,
                ));
            }
            (Mapping::Unallocated | Mapping::Reserved { .. }, _) => {
                here(Allocation::Hole, false, false, None)
            }
        };
        Ok((extent, count))
    }
}
