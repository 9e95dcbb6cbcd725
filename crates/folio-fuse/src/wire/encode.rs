//! Attributes and entries as replies have them.

use super::abi::{Attr, AttrOut, EntryOut, StatxOut, StatxTime};
use super::{Server, abi};
use crate::adapter::Entry;
use folio::Timespec;
use folio::vfs::{Attributes, FileType};
use std::time::Duration;

/// File type as the bits of a mode (`S_IFMT`).
pub(super) fn type_bits(file_type: FileType) -> u32 {
    kind(file_type) << 12
}

/// File type as a directory entry has it (`DT_*`).
pub(super) fn kind(file_type: FileType) -> u32 {
    match file_type {
        FileType::Fifo => 1,
        FileType::CharacterDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::Regular => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
    }
}

/// The kernel's 32 bits of a device number. Linux: `new_encode_dev`.
pub(super) fn device_bits((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Major and minor of a device number.
pub(super) fn device(bits: u32) -> (u32, u32) {
    ((bits & 0xf_ff00) >> 8, bits & 0xff | bits >> 12 & 0xf_ff00)
}

/// Attributes of the node `id`.
pub(super) fn attr(id: u64, attributes: &Attributes) -> Attr {
    Attr {
        number: id,
        size: attributes.size_bytes,
        blocks_512: attributes.blocks_512,
        atime: attributes.accessed.secs,
        mtime: attributes.modified.secs,
        ctime: attributes.changed.secs,
        atime_nanos: attributes.accessed.nanos,
        mtime_nanos: attributes.modified.nanos,
        ctime_nanos: attributes.changed.nanos,
        mode: type_bits(attributes.file_type) | u32::from(attributes.mode),
        links: attributes.link_count,
        uid: attributes.uid,
        gid: attributes.gid,
        device: device_bits(attributes.device),
        block_size: attributes.block_size,
        flags: 0,
    }
}

impl Server {
    /// For how long the kernel may believe what the adapter believes for `ttl`.
    fn ttl(&self, ttl: Duration) -> Duration {
        let ttl = ttl.min(self.options.ttl_max);
        self.local.as_ref().map_or(ttl, |local| local.ttl(ttl))
    }

    /// The reply that tells attributes, which may be believed for `ttl`.
    pub(super) fn attr_out(&self, attributes: &Attributes, ttl: Duration) -> AttrOut {
        let ttl = self.ttl(ttl);
        AttrOut {
            valid: ttl.as_secs(),
            valid_nanos: ttl.subsec_nanos(),
            unused: 0,
            attr: attr(attributes.number.0, attributes),
        }
    }

    /// The reply that tells an entry.
    pub(super) fn entry_out(&self, entry: &Entry) -> EntryOut {
        let (name_ttl, ttl) = (self.ttl(entry.name_ttl), self.ttl(entry.attributes_ttl));
        EntryOut {
            node: entry.id,
            // The kernel keeps 32 bits of it.
            generation: self
                .options
                .generation
                .wrapping_add(entry.generation as u32)
                .into(),
            entry_valid: name_ttl.as_secs(),
            entry_valid_nanos: name_ttl.subsec_nanos(),
            attr_valid: ttl.as_secs(),
            attr_valid_nanos: ttl.subsec_nanos(),
            attr: attr(entry.id, &entry.attributes),
        }
    }

    /// The reply that tells that there is no such name, if that may be believed at all.
    pub(super) fn missing_out(&self, ttl: Duration) -> Option<EntryOut> {
        let ttl = self
            .local
            .as_ref()
            .map_or(ttl, |local| local.missing_ttl(ttl));
        let ttl = self.ttl(ttl);
        let (entry_valid, entry_valid_nanos) = (ttl.as_secs(), ttl.subsec_nanos());
        (!ttl.is_zero()).then(|| EntryOut {
            entry_valid,
            entry_valid_nanos,
            ..EntryOut::default()
        })
    }

    /// The reply of statx(2).
    pub(super) fn statx_out(&self, attributes: &Attributes, ttl: Duration) -> StatxOut {
        let ttl = self.ttl(ttl);
        let time = |time: Timespec| StatxTime {
            secs: time.secs,
            nanos: time.nanos,
            reserved: 0,
        };
        let without_birth = abi::STATX_BASIC_AND_BTIME & !abi::STATX_BTIME;
        StatxOut {
            valid: ttl.as_secs(),
            valid_nanos: ttl.subsec_nanos(),
            mask: attributes
                .created
                .map_or(without_birth, |_| abi::STATX_BASIC_AND_BTIME),
            block_size: attributes.block_size,
            links: attributes.link_count,
            uid: attributes.uid,
            gid: attributes.gid,
            mode: (type_bits(attributes.file_type) | u32::from(attributes.mode)) as u16,
            number: attributes.number.0,
            size: attributes.size_bytes,
            blocks_512: attributes.blocks_512,
            atime: time(attributes.accessed),
            btime: time(attributes.created.unwrap_or_default()),
            ctime: time(attributes.changed),
            mtime: time(attributes.modified),
            device_major: attributes.device.0,
            device_minor: attributes.device.1,
            ..StatxOut::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for number in [(0, 0), (8, 1), (259, 70_000), (4095, 0xf_ffff)] {
            assert_eq!(device(device_bits(number)), number);
        }
    }
}
