//! The facts of the header, for `folio image info`.

use crate::base::Result;
use crate::block::file::ImageFile;
use crate::block::image::{Compat, Qcow2Info};
use crate::block::qcow2::layout::features::{CORRUPT, DIRTY, EXTENDED_L2, LAZY_REFCOUNTS};
use crate::block::qcow2::layout::header::Header;
use crate::block::qcow2::layout::raw_header::read_raw;

/// Returns the disk's size in bytes; reads the header alone, unchecked.
pub(crate) fn disk_bytes(file: &dyn ImageFile) -> Result<u64> {
    Ok(read_raw(file)?.len_bytes.get())
}

/// Returns the facts of the header, also that of an encrypted image; reads nothing else.
pub(crate) fn inspect(file: &dyn ImageFile) -> Result<Qcow2Info> {
    let header = Header::read_encrypted(file)?;
    let raw = read_raw(file)?;
    let (incompatible, compatible) = (raw.incompatible.get(), raw.compatible.get());
    Ok(Qcow2Info {
        len_bytes: header.len_bytes,
        encryption: match header.encryption {
            0 => None,
            1 => Some("aes"),
            _ => Some("luks"),
        },
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
