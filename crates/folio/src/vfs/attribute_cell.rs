//! The attributes of one inode, read without a lock.

use super::acl::{AclCache, AclKind};
use super::attributes::{Attributes, FileType};
use crate::base::seq::SeqWords;
use crate::base::{DeviceNumber, InodeNumber, Timespec};
use std::sync::atomic::{AtomicI64, Ordering};

const WORDS: usize = 10;
/// With relatime, an access time older than this is updated.
const ACCESSED_AGE_MAX_SECS: i64 = 24 * 60 * 60;
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
    /// With relatime, the access time is updated by the first access from this second on. One word
    /// instead of three times: each cached read looks at it.
    accessed_until_secs: AtomicI64,
    block_size: u32,
    device: DeviceNumber,
    /// The VFS's cache of the inode's ACLs.
    pub(super) acls: AclCache,
}

impl AttributeCell {
    /// Creates a cell with `attributes`. Block size and device number never change.
    pub fn new(attributes: &Attributes) -> Self {
        Self {
            words: SeqWords::new(encode(attributes)),
            accessed_until_secs: AtomicI64::new(accessed_until_secs(attributes)),
            block_size: attributes.block_size,
            device: attributes.device,
            acls: AclCache::default(),
        }
    }

    /// Publishes changed attributes. The caller holds off other writers.
    pub fn store(&self, attributes: &Attributes) {
        self.words.write(encode(attributes));
        self.accessed_until_secs
            .store(accessed_until_secs(attributes), Ordering::Relaxed);
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

    /// Returns whether relatime leaves the access time as it is. Linux: `relatime_need_update`.
    #[inline]
    pub(crate) fn is_accessed_current(&self, now_secs: i64) -> bool {
        now_secs < self.accessed_until_secs.load(Ordering::Relaxed)
    }

    /// Returns mode, owner and group.
    #[inline]
    pub(crate) fn permission(&self) -> (u16, u32, u32) {
        let [kind, owners] = self.words.read::<0, 2>();
        (kind as u16, owners as u32, high(owners))
    }
}

/// Returns the second from which on relatime updates the access time.
fn accessed_until_secs(attributes: &Attributes) -> i64 {
    let accessed = attributes.accessed;
    if accessed > attributes.modified && accessed > attributes.changed {
        accessed.secs.saturating_add(ACCESSED_AGE_MAX_SECS)
    } else {
        i64::MIN
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
            device: DeviceNumber::new(7, u32::MAX),
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
        assert_eq!(cell.permission(), (0, u32::MAX, 5));
    }

    #[test]
    fn relatime_updates_after_change_and_after_a_day() {
        let time = |secs, nanos| Timespec::new(secs, nanos);
        let mut attributes = Attributes {
            accessed: time(1000, 1),
            modified: time(1000, 0),
            changed: time(1000, 0),
            ..Attributes::new(InodeNumber(1), FileType::Regular, 0)
        };
        let cell = AttributeCell::new(&attributes);
        assert!(cell.is_accessed_current(1000));
        assert!(cell.is_accessed_current(999 + ACCESSED_AGE_MAX_SECS));
        assert!(!cell.is_accessed_current(1000 + ACCESSED_AGE_MAX_SECS));
        attributes.changed = attributes.accessed;
        cell.store(&attributes);
        assert!(!cell.is_accessed_current(1000), "not later than the change");
    }
}
