//! POSIX access control lists: the kernel's xattr format, permission checks, inheritance.
//!
//! Linux: fs/posix_acl.c, linux/posix_acl_xattr.h; acl(5) for the meaning of entries. The order of
//! entries and of their evaluation is that of POSIX.1e draft 17.
//!
//! ```text
//!   check_access --- owner? the mode --- else ---> AclCache: known to have none? the mode
//!                                                     | else: Inode::xattr once, cached until it is set
//!                                                     v
//!                                                  Acl::permits
//! ```

use super::credentials::{Access, Credentials};
use crate::base::lock::Mutex;
use crate::base::{Errno, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The extended attribute of the access ACL.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The extended attribute of a directory's default ACL, which new inodes inherit.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

const XATTR_VERSION: u32 = 2;
const XATTR_ENTRY_LEN: usize = 8;
const VERSION_LEN: usize = 4;
/// The id of an entry without user or group.
const ID_NONE: u32 = u32::MAX;

/// The subject of an entry. Entries of an ACL are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    UserObject,
    /// A user, by id.
    User(u32),
    /// The owning group.
    GroupObject,
    /// A group, by id.
    Group(u32),
    /// The upper bound for named users and all groups.
    Mask,
    /// All other users.
    Other,
}

impl Tag {
    /// Returns the number of the tag in both formats (`ACL_USER_OBJ` and so on).
    pub fn number(self) -> u16 {
        match self {
            Self::UserObject => 0x01,
            Self::User(_) => 0x02,
            Self::GroupObject => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    /// Returns the tag with this number; `id` is used by tags of named users and groups.
    pub fn new(number: u16, id: u32) -> Option<Self> {
        match number {
            0x01 => Some(Self::UserObject),
            0x02 => Some(Self::User(id)),
            0x04 => Some(Self::GroupObject),
            0x08 => Some(Self::Group(id)),
            0x10 => Some(Self::Mask),
            0x20 => Some(Self::Other),
            _ => None,
        }
    }

    /// Returns the id of a named user or group.
    pub fn id(self) -> Option<u32> {
        match self {
            Self::User(id) | Self::Group(id) => Some(id),
            _ => None,
        }
    }

    /// Returns the sort key of the tag in an ACL. Entries of named users may be in any order, and
    /// so may entries of named groups.
    fn rank(self) -> u16 {
        self.number()
    }
}

/// The permissions of one tag: read 4, write 2, execute 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// The subject.
    pub tag: Tag,
    /// The permissions, 0 to 7.
    pub permissions: u16,
}

/// A valid access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// Parses the kernel's format. Returns `None` for a list without entries, which means no ACL.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP for another version, EINVAL for an invalid list. Linux: `posix_acl_from_xattr`.
    pub fn from_xattr(bytes: &[u8]) -> Result<Option<Self>> {
        let (version, entries) = version_and_entries(bytes).ok_or(Errno::INVAL)?;
        if version != XATTR_VERSION {
            return Err(Errno::OPNOTSUPP.into());
        }
        let (entries, []) = entries.as_chunks::<XATTR_ENTRY_LEN>() else {
            return Err(Errno::INVAL.into());
        };
        if entries.is_empty() {
            return Ok(None);
        }
        let entries = entries.iter().map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| {
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            let tag = Tag::new(u16::from_le_bytes([t0, t1]), id)?;
            Some(AclEntry {
                tag,
                permissions: u16::from_le_bytes([p0, p1]),
            })
        });
        let entries: Option<Vec<_>> = entries.collect();
        entries
            .and_then(Self::new)
            .map(Some)
            .ok_or(Errno::INVAL.into())
    }

    /// Returns the kernel's format. Linux: `posix_acl_to_xattr`.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.number().to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.tag.id().unwrap_or(ID_NONE).to_le_bytes());
        }
        bytes
    }

    /// Creates an ACL from entries in the order of [`Tag`]; `None` if they are invalid. Valid
    /// entries have owner, owning group and other once each, and a mask at most once; a mask is
    /// required if users or groups are named. Linux: `posix_acl_valid`.
    pub fn new(entries: Vec<AclEntry>) -> Option<Self> {
        let count = |tag: Tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let has_named = entries.iter().any(|entry| entry.tag.id().is_some());
        let is_valid = entries.is_sorted_by_key(|entry| entry.tag.rank())
            && entries
                .iter()
                .all(|entry| entry.permissions <= 7 && entry.tag.id() != Some(ID_NONE))
            && [Tag::UserObject, Tag::GroupObject, Tag::Other]
                .into_iter()
                .all(|tag| count(tag) == 1)
            && (count(Tag::Mask) == 1 || (count(Tag::Mask) == 0 && !has_named));
        is_valid.then_some(Self(entries))
    }

    /// Returns the entries, in the order of [`Tag`].
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    fn permissions(&self, tag: Tag) -> Option<u16> {
        self.0
            .iter()
            .find(|entry| entry.tag == tag)
            .map(|entry| entry.permissions)
    }

    /// Returns the nine permission bits that correspond to this access ACL. The group bits are the
    /// mask, if there is one. Linux: `posix_acl_equiv_mode`.
    fn mode_bits(&self) -> u16 {
        let of = |tag| self.permissions(tag).unwrap_or(0);
        let group = self
            .permissions(Tag::Mask)
            .unwrap_or_else(|| of(Tag::GroupObject));
        of(Tag::UserObject) << 6 | group << 3 | of(Tag::Other)
    }

    /// Returns whether the mode expresses the whole ACL, so that none need be stored.
    pub fn is_minimal(&self) -> bool {
        self.0
            .iter()
            .all(|entry| !matches!(entry.tag, Tag::User(_) | Tag::Group(_) | Tag::Mask))
    }

    /// Returns whether `caller`, not the owner, has the wanted access to a file of group `gid`.
    /// Linux: `posix_acl_permission`.
    pub(super) fn permits(&self, caller: &Credentials, gid: u32, want: Access) -> bool {
        let mask = self.permissions(Tag::Mask).unwrap_or(7);
        let grants = |permissions: u16| Access::from_bits_truncate(permissions).contains(want);
        if let Some(permissions) = self.permissions(Tag::User(caller.uid)) {
            return grants(permissions & mask);
        }
        let mut groups = self.0.iter().filter(|entry| match entry.tag {
            Tag::GroupObject => caller.is_member(gid),
            Tag::Group(id) => caller.is_member(id),
            _ => false,
        });
        let mut is_member = false;
        // One group that grants the whole access suffices. Members of any listed group never get
        // the permissions of `Other`.
        groups.any(|entry| {
            is_member = true;
            grants(entry.permissions & mask)
        }) || (!is_member && grants(self.permissions(Tag::Other).unwrap_or(0)))
    }

    /// Returns the access ACL of a new inode in a directory with this default ACL, and the nine
    /// permission bits of its mode; `mode` is their upper bound. Linux: `posix_acl_create_masq`.
    pub(super) fn inherited(&self, mode: u16) -> (Self, u16) {
        let mut acl = self.clone();
        let group_tag = if self.permissions(Tag::Mask).is_some() {
            Tag::Mask
        } else {
            Tag::GroupObject
        };
        for entry in &mut acl.0 {
            entry.permissions &= match entry.tag {
                Tag::UserObject => mode >> 6 & 7,
                Tag::Other => mode & 7,
                tag if tag == group_tag => mode >> 3 & 7,
                _ => 7,
            };
        }
        let bits = acl.mode_bits();
        (acl, bits)
    }

    /// Returns the effective permissions of the owning group.
    pub(super) fn owning_group(&self) -> u16 {
        self.permissions(Tag::GroupObject).unwrap_or(0) & self.permissions(Tag::Mask).unwrap_or(7)
    }

    /// Returns the ACL after chmod(2) to `mode`. Linux: `posix_acl_chmod`.
    pub fn with_mode(mut self, mode: u16) -> Self {
        let group_tag = if self.permissions(Tag::Mask).is_some() {
            Tag::Mask
        } else {
            Tag::GroupObject
        };
        for entry in &mut self.0 {
            match entry.tag {
                Tag::UserObject => entry.permissions = mode >> 6 & 7,
                Tag::Other => entry.permissions = mode & 7,
                tag if tag == group_tag => entry.permissions = mode >> 3 & 7,
                _ => {}
            }
        }
        self
    }
}

/// Returns the new mode of a file whose access ACL becomes `acl`, and the ACL to store, if the mode
/// does not express it. Does not check whether the caller may keep the setgid bit. Linux:
/// `posix_acl_update_mode`.
pub fn set_access_acl(acl: Acl, mode: u16) -> (u16, Option<Acl>) {
    let mode = mode & !0o777 | acl.mode_bits();
    (mode, (!acl.is_minimal()).then_some(acl))
}

/// The two kinds of ACLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AclKind {
    /// The ACL that grants access.
    Access,
    /// The ACL of a directory that new inodes inherit.
    Default,
}

impl AclKind {
    /// Returns the extended attribute that holds the ACL.
    pub(super) fn attribute(self) -> &'static [u8] {
        match self {
            Self::Access => ACL_ACCESS,
            Self::Default => ACL_DEFAULT,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The cached ACLs of an inode; empty at first. Linux: `i_acl`, `i_default_acl`.
#[derive(Default)]
pub(super) struct AclCache {
    /// One bit per kind, set if the inode is known to have no such ACL.
    absent: AtomicU8,
    present: Mutex<Present>,
}

#[derive(Default)]
struct Present {
    /// The ACLs of the inode, by kind.
    acls: Option<Box<[Option<Arc<Acl>>; 2]>>,
    /// Number of invalidations; an ACL that was being read meanwhile is not cached.
    invalidations: u32,
}

impl AclCache {
    /// Returns whether the inode is known to have no such ACL. Does not wait.
    #[inline]
    pub(super) fn is_absent(&self, kind: AclKind) -> bool {
        self.absent.load(Ordering::Acquire) & kind.bit() != 0
    }

    /// Returns the ACL; calls `read` the first time, without a lock.
    pub(super) fn get(
        &self,
        kind: AclKind,
        read: impl FnOnce() -> Result<Option<Acl>>,
    ) -> Result<Option<Arc<Acl>>> {
        if self.is_absent(kind) {
            return Ok(None);
        }
        let present = self.present.lock();
        if let Some(acl) = present
            .acls
            .as_ref()
            .and_then(|acls| acls[kind as usize].clone())
        {
            return Ok(Some(acl));
        }
        let before = present.invalidations;
        drop(present);
        let acl = read()?.map(Arc::new);
        let mut present = self.present.lock();
        match &acl {
            _ if present.invalidations != before => {}
            Some(acl) => present.acls.get_or_insert_default()[kind as usize] = Some(acl.clone()),
            None => drop(self.absent.fetch_or(kind.bit(), Ordering::Release)),
        }
        Ok(acl)
    }

    /// Drops the ACL from the cache after a change; the next reader reads it again.
    pub(super) fn invalidate(&self, kind: AclKind) {
        let mut present = self.present.lock();
        self.absent.fetch_and(!kind.bit(), Ordering::Release);
        present.invalidations = present.invalidations.wrapping_add(1);
        if let Some(acls) = present.acls.as_mut() {
            acls[kind as usize] = None;
        }
    }
}

fn version_and_entries(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (version, entries) = bytes.split_first_chunk::<VERSION_LEN>()?;
    Some((u32::from_le_bytes(*version), entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattr(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    const NONE: u32 = ID_NONE;
    /// `setfacl -m u:1000:rw,g:50:r` on a file of mode 0644.
    const NAMED: [(u16, u16, u32); 6] = [
        (1, 6, NONE),
        (2, 6, 1000),
        (4, 4, NONE),
        (8, 4, 50),
        (0x10, 6, NONE),
        (0x20, 4, NONE),
    ];

    #[test]
    fn mode_group_bits_are_the_mask() {
        let acl = Acl::from_xattr(&xattr(&NAMED)).unwrap().unwrap();
        let (mode, stored) = set_access_acl(acl.clone(), 0o4700);
        assert_eq!((mode, stored), (0o4664, Some(acl.clone())));
        let changed = acl.with_mode(0o751);
        assert_eq!(changed.permissions(Tag::Mask), Some(5));
        assert_eq!(
            changed.permissions(Tag::GroupObject),
            Some(4),
            "only the mask changes with the mode"
        );
        assert_eq!(changed.permissions(Tag::UserObject), Some(7));
        assert_eq!(changed.permissions(Tag::Other), Some(1));
    }

    #[test]
    fn minimal_acl_is_stored_in_the_mode() {
        let acl = Acl::from_xattr(&xattr(&[(1, 7, NONE), (4, 5, NONE), (0x20, 1, NONE)]))
            .unwrap()
            .unwrap();
        assert_eq!(set_access_acl(acl.clone(), 0o1600), (0o1751, None));
        assert_eq!(acl.with_mode(0o640).mode_bits(), 0o640);
        assert_eq!(Acl::from_xattr(&xattr(&[])).unwrap(), None);
    }

    #[test]
    fn invalid_acl_is_rejected() {
        let with = |at: usize, entry| {
            let mut entries = NAMED;
            entries[at] = entry;
            Acl::from_xattr(&xattr(&entries)).map_err(|error| error.errno())
        };
        assert_eq!(
            with(0, (1, 8, NONE)),
            Err(Errno::INVAL),
            "permission bits over 7"
        );
        assert_eq!(with(0, (3, 7, NONE)), Err(Errno::INVAL), "unknown tag");
        assert_eq!(with(0, (4, 7, NONE)), Err(Errno::INVAL), "no owner");
        assert_eq!(
            with(1, (2, 7, NONE)),
            Err(Errno::INVAL),
            "a user without id"
        );
        assert_eq!(with(3, (2, 7, 5)), Err(Errno::INVAL), "out of order");
        assert_eq!(with(4, (8, 7, 5)), Err(Errno::INVAL), "no mask");
        assert_eq!(
            Acl::from_xattr(&xattr(&NAMED)[..11]).unwrap_err().errno(),
            Errno::INVAL
        );
        assert_eq!(
            Acl::from_xattr(&[1, 0, 0, 0]).unwrap_err().errno(),
            Errno::OPNOTSUPP
        );
        assert_eq!(Acl::from_xattr(&[2]).unwrap_err().errno(), Errno::INVAL);
    }

    #[test]
    fn entries_are_evaluated_in_posix_order() {
        let acl = Acl::from_xattr(&xattr(&NAMED)).unwrap().unwrap();
        let caller = |uid, groups: &[u32]| Credentials::user(uid, 9, groups.to_vec());
        let may = |caller: &Credentials, want| acl.permits(caller, 77, want);
        let (read, write) = (Access::READ, Access::WRITE);
        assert!(may(&caller(1000, &[]), read | write), "the named user");
        assert!(
            may(&caller(5, &[50]), read) && !may(&caller(5, &[50]), write),
            "the named group"
        );
        assert!(
            may(&caller(5, &[77]), read) && !may(&caller(5, &[77]), write),
            "the owning group"
        );
        assert!(
            may(&caller(5, &[]), read) && !may(&caller(5, &[]), write),
            "all other users"
        );
        let masked = acl.clone().with_mode(0o600);
        assert!(
            !masked.permits(&caller(1000, &[]), 77, read),
            "the mask binds named users"
        );
        let with = |at: usize, entry| {
            let mut entries = NAMED;
            entries[at] = entry;
            Acl::from_xattr(&xattr(&entries)).unwrap().unwrap()
        };
        assert!(
            !with(1, (2, 0, 1000)).permits(&caller(1000, &[50]), 77, read),
            "a named user, so groups do not count"
        );
        assert!(
            !with(3, (8, 0, 50)).permits(&caller(5, &[50]), 77, read),
            "in a group, so `other` does not count"
        );
        assert!(
            with(3, (8, 7, 50)).permits(&caller(5, &[50, 77]), 77, write),
            "any group grants it"
        );
    }

    #[test]
    fn default_acl_is_limited_by_requested_mode() {
        let default = Acl::from_xattr(&xattr(&NAMED)).unwrap().unwrap();
        let (acl, bits) = default.inherited(0o640);
        assert_eq!(bits, 0o640);
        assert_eq!(acl.permissions(Tag::Mask), Some(4));
        assert_eq!(
            acl.permissions(Tag::User(1000)),
            Some(6),
            "only the mask changes"
        );
        let plain = Acl::from_xattr(&xattr(&[(1, 7, NONE), (4, 5, NONE), (0x20, 0, NONE)]))
            .unwrap()
            .unwrap();
        let (acl, bits) = plain.inherited(0o666);
        assert!(acl.is_minimal() && bits == 0o640);
    }
}
