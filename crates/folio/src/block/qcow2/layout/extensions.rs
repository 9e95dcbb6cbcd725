//! Header extensions, known or unknown: they follow the header in its cluster.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Header extensions").

use super::raw_header::RawHeader;
use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use std::io::IoSliceMut;

/// The name of the backing file's format.
pub(crate) const BACKING_FORMAT: u32 = 0xe279_2aca;
/// The name of the external data file.
pub(crate) const DATA_FILE: u32 = 0x4441_5441;
/// The feature name table.
pub(crate) const FEATURE_NAMES: u32 = 0x6803_f857;
/// The offset of the directory of persistent bitmaps.
pub(crate) const BITMAPS: u32 = 0x2385_2875;
/// The version of the backing file for which the image was written, as its device names it. Folio's
/// own: other programs keep it and do not read it.
pub(crate) const BACKING_VERSION: u32 = 0x464f_4c56;
/// The offset of the LUKS header.
pub(crate) const CRYPTO_HEADER: u32 = 0x0537_be77;
const END: u32 = 0;
const COUNT_MAX: usize = 64;

/// One extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extension {
    pub(crate) kind: u32,
    pub(crate) bytes: Vec<u8>,
}

/// Reads all extensions up to the end mark. The caller has checked `cluster_bits`.
///
/// # Errors
///
/// EUCLEAN if they do not fit in the header's cluster, or are more than 64.
pub(crate) fn read(file: &dyn ImageFile, raw: &RawHeader) -> Result<Vec<Extension>> {
    // At most 2 MiB, because the caller checked the bits.
    let cluster_bytes = 1u64 << raw.cluster_bits.get();
    let mut at = raw.header_bytes().next_multiple_of(8);
    let end = match raw.backing_name_offset.get() {
        name if name >= raw.header_bytes() && name <= cluster_bytes => name,
        _ => cluster_bytes,
    };
    let mut found = Vec::new();
    while at + 8 <= end && found.len() < COUNT_MAX {
        let mut head = [0; 8];
        file.read_or_zeros(&mut [IoSliceMut::new(&mut head)], at)?;
        let [k0, k1, k2, k3, l0, l1, l2, l3] = head;
        let (kind, len) = (
            u32::from_be_bytes([k0, k1, k2, k3]),
            u32::from_be_bytes([l0, l1, l2, l3]),
        );
        if kind == END {
            return Ok(found);
        }
        at += 8;
        if u64::from(len) > end - at {
            let what = format!("extension {kind:#x} of {len} bytes leaves the header's cluster");
            return Err(Error::corrupt(what).at("header"));
        }
        let mut bytes = vec![0; len as usize];
        file.read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], at)?;
        found.push(Extension { kind, bytes });
        at = (at + u64::from(len)).next_multiple_of(8);
    }
    if found.len() == COUNT_MAX {
        return Err(Error::corrupt("too many extensions").at("header"));
    }
    Ok(found)
}

/// Encodes the extensions and their end mark.
pub(crate) fn encode(extensions: &[Extension]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for extension in extensions {
        push(&mut bytes, extension.kind, &extension.bytes);
    }
    bytes.extend([0; 8]);
    bytes
}

/// Appends one extension, padded to a multiple of 8 bytes.
pub(crate) fn push(to: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    to.extend(kind.to_be_bytes());
    // Shorter than a cluster: read from one, or a name or table that is rejected with it.
    to.extend((bytes.len() as u32).to_be_bytes());
    to.extend(bytes);
    to.resize(to.len().next_multiple_of(8), 0);
}

/// Returns the big-endian number at `at` of an extension, or none beyond its end.
pub(crate) fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}
