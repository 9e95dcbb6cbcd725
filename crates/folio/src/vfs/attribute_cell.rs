//! The attributes of one inode, read without a lock.

use super::acl::{AclCache, AclKind};
use super::attributes::{Attributes, FileType};
use crate::base::seq::SeqWords;
use crate::base::{InodeNumber, Timespec};

const WORDS: usize = 10;
/// Set in the first word if the creation time is known.
const HAS_CREATED: u64 = 1 << 16;

/// The attributes of an inode that can change. The file system publishes them after each change;
/// readers take no lock and write no shared memory.
///
/// The size of a file with a mapping is the mapping's; the reader fills it in.
pub struct AttributeCell {
    /// Mode and link count, owners, size, blocks; then the seconds of the four times, then their
    /// nanoseconds.
    words: SeqWords<WORDS>,
    block_size: u32,
    device: (u32, u32),
    /// The VFS's cache of the inode's ACLs.
    pub(super) acls: AclCache,
}

/// The three times that decide whether an access time is updated.
pub(crate) struct Times {
    pub(crate) accessed: Timespec,
    pub(crate) modified: Timespec,
    pub(crate) changed: Timespec,
}

impl AttributeCell {
    /// Creates a cell with `attributes`. Block size and device number never change.
    pub fn new(attributes: &Attributes) -> Self {
        Self {
            words: SeqWords::new(encode(attributes)),
            block_size: attributes.block_size,
            device: attributes.device,
            acls: AclCache::default(),
        }
    }

    /// Publishes changed attributes. The caller holds off other writers.
    pub fn store(&self, attributes: &Attributes) {
        self.words.write(encode(attributes));
    }

    /// Drops cached ACLs, which may have changed; the next reader reads them again.
    pub fn invalidate_acls(&self) {
        self.acls.invalidate(AclKind::Access);
        self.acls.invalidate(AclKind::Default);
    }

    /// Returns the attributes published last.
    #[inline]
    pub fn load(&self, number: InodeNumber, file_type: FileType) -> Attributes {
        let [
            kind,
            owners,
            size_bytes,
            blocks_512,
            accessed,
            modified,
            changed,
            created,
            nanos,
            more_nanos,
        ] = self.words.read::<0, WORDS>();
        let created = Timespec::new(created as i64, high(more_nanos));
        Attributes {
            number,
            file_type,
            mode: kind as u16,
            uid: owners as u32,
            gid: high(owners),
            link_count: high(kind),
            size_bytes,
            blocks_512,
            block_size: self.block_size,
            device: self.device,
            accessed: Timespec::new(accessed as i64, nanos as u32),
            modified: Timespec::new(modified as i64, high(nanos)),
            changed: Timespec::new(changed as i64, more_nanos as u32),
            created: (kind & HAS_CREATED != 0).then_some(created),
        }
    }

    #[inline]
    pub(crate) fn times(&self) -> Times {
        let [accessed, modified, changed, _, nanos, more_nanos] = self.words.read::<4, 6>();
        Times {
            accessed: Timespec::new(accessed as i64, nanos as u32),
            modified: Timespec::new(modified as i64, high(nanos)),
            changed: Timespec::new(changed as i64, more_nanos as u32),
        }
    }

    /// Returns mode, owner and group.
    #[inline]
    pub(crate) fn permission(&self) -> (u16, u32, u32) {
        let [kind, owners] = self.words.read::<0, 2>();
        (kind as u16, owners as u32, high(owners))
    }
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn encode(attributes: &Attributes) -> [u64; WORDS] {
    let Attributes {
        accessed,
        modified,
        changed,
        created,
        ..
    } = *attributes;
    let has_created = if created.is_some() { HAS_CREATED } else { 0 };
    let created = created.unwrap_or_default();
    [
        u64::from(attributes.mode) | has_created | pair(0, attributes.link_count),
        pair(attributes.uid, attributes.gid),
        attributes.size_bytes,
        attributes.blocks_512,
        accessed.secs as u64,
        modified.secs as u64,
        changed.secs as u64,
        created.secs as u64,
        pair(accessed.nanos, modified.nanos),
        pair(changed.nanos, created.nanos),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_attributes_load_unchanged() {
        let time = |secs, nanos| Timespec::new(secs, nanos);
        let mut attributes = Attributes {
            number: InodeNumber(u64::MAX),
            file_type: FileType::CharacterDevice,
            mode: 0o7777,
            uid: u32::MAX,
            gid: 5,
            link_count: u32::MAX - 1,
            size_bytes: u64::MAX,
            blocks_512: 1 << 60,
            block_size: 4096,
            device: (7, u32::MAX),
            accessed: time(-5, 1),
            modified: time(i64::MAX, 2),
            changed: time(i64::MIN, 999_999_999),
            created: Some(time(4, 3)),
        };
        let cell = AttributeCell::new(&attributes);
        let load = || cell.load(InodeNumber(u64::MAX), FileType::CharacterDevice);
        assert_eq!(load(), attributes);
        attributes.created = None;
        attributes.mode = 0;
        cell.store(&attributes);
        assert_eq!(load(), attributes);
        let times = cell.times();
        assert_eq!(
            (times.accessed, times.modified, times.changed),
            (time(-5, 1), attributes.modified, attributes.changed)
        );
        assert_eq!(cell.permission(), (0, u32::MAX, 5));
    }
}
