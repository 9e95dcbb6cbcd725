//! Header extensions as they are, known or not: what follows the header in its cluster.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Header extensions").

use super::super::image_file::ImageFile;
use super::header::RawHeader;
use crate::base::{Error, Result};
use std::io::IoSliceMut;

/// The name of the backing file's format.
pub(super) const BACKING_FORMAT: u32 = 0xe279_2aca;
/// Where the directory of persistent bitmaps lies.
pub(super) const BITMAPS: u32 = 0x2385_2875;
/// Where the LUKS header lies.
pub(super) const CRYPTO_HEADER: u32 = 0x0537_be77;
const END: u32 = 0;
const COUNT_MAX: usize = 64;

/// One extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extension {
    pub(super) kind: u32,
    pub(super) bytes: Vec<u8>,
}

/// All extensions up to the end mark; they fit in the header's cluster, or the image is corrupt.
pub(super) fn read(file: &dyn ImageFile, raw: &RawHeader) -> Result<Vec<Extension>> {
    // The bits were checked by whoever asks: a cluster has at most 2 MiB.
    let cluster_bytes = 1u64 << raw.cluster_bits.get();
    let mut at = u64::from(header_len(raw)).next_multiple_of(8);
    let end = match raw.backing_name_offset.get() {
        name if name >= at && name <= cluster_bytes => name,
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

/// The extensions and their end mark as the file has them.
pub(super) fn bytes(extensions: &[Extension]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for extension in extensions {
        bytes.extend(extension.kind.to_be_bytes());
        // Read from a cluster, or a short name.
        bytes.extend((extension.bytes.len() as u32).to_be_bytes());
        bytes.extend(&extension.bytes);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes.extend([0; 8]);
    bytes
}

/// Bytes of the header itself.
pub(super) fn header_len(raw: &RawHeader) -> u32 {
    if raw.version.get() == 2 {
        72
    } else {
        raw.header_len.get()
    }
}

/// The big-endian number at `at` of an extension.
pub(super) fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}
