//! POSIX access control lists: the kernel's form for programs, what they allow, what new inodes
//! inherit.
//!
//! Linux: fs/posix_acl.c, linux/posix_acl_xattr.h; acl(5) for what entries mean. The order of
//! entries, and who is asked first, is POSIX.1e draft 17's.
//!
//! ```text
//!   check_access --- owner? the mode --- else ---> AclCache: known to have none? the mode
//!                                                     | else: Inode::xattr once, kept until it is set anew
//!                                                     v
//!                                                  Acl::permits
//! ```

use super::permission::{Access, Credentials};
use crate::base::{Errno, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The extended attribute that says who may do what.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The one that says what new inodes in a directory inherit.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

const XATTR_VERSION: u32 = 2;
const XATTR_ENTRY_LEN: usize = 8;
const VERSION_LEN: usize = 4;
/// The id of an entry that has none.
const ID_NONE: u32 = u32::MAX;

/// Whom an entry is for. In an ACL they come in this order.
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
    /// The most that named users and all groups can get.
    Mask,
    /// Everybody else.
    Other,
}

impl Tag {
    /// The number that stands for it in both forms (`ACL_USER_OBJ` and so on).
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

    /// The tag of this number; `id` for those that have one.
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

    /// The user or group that is named.
    pub fn id(self) -> Option<u32> {
        match self {
            Self::User(id) | Self::Group(id) => Some(id),
            _ => None,
        }
    }

    /// The place of the tag in an ACL; entries of named users, and of named groups, come in any
    /// order.
    fn rank(self) -> u16 {
        self.number()
    }
}

/// What one tag may do: read 4, write 2, execute 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// For whom.
    pub tag: Tag,
    /// What, 0 to 7.
    pub permissions: u16,
}

/// A valid access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// An ACL from the kernel's form; `None` for one without entries, which stands for no ACL at
    /// all. EOPNOTSUPP for another version, EINVAL for bytes or entries that make no ACL.
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

    /// The kernel's form.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.number().to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.tag.id().unwrap_or(ID_NONE).to_le_bytes());
        }
        bytes
    }

    /// Entries that make an ACL: owner, owning group and other once each, a mask at most once and
    /// always if users or groups are named, in the order of [`Tag`]. Linux: `posix_acl_valid`.
    pub fn new(entries: Vec<AclEntry>) -> Option<Self> {
        let count = |tag: Tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let names_someone = entries.iter().any(|entry| entry.tag.id().is_some());
        let is_valid = entries.is_sorted_by_key(|entry| entry.tag.rank())
            && entries
                .iter()
                .all(|entry| entry.permissions <= 7 && entry.tag.id() != Some(ID_NONE))
            && [Tag::UserObject, Tag::GroupObject, Tag::Other]
                .into_iter()
                .all(|tag| count(tag) == 1)
            && (count(Tag::Mask) == 1 || (count(Tag::Mask) == 0 && !names_someone));
        is_valid.then_some(Self(entries))
    }

    /// The entries, in the order of [`Tag`].
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    fn permissions(&self, tag: Tag) -> Option<u16> {
        self.0
            .iter()
            .find(|entry| entry.tag == tag)
            .map(|entry| entry.permissions)
    }

    /// The nine permission bits that this ACL, as an access ACL, gives a mode: the group's are the
    /// mask's, where there is one. Linux: `posix_acl_equiv_mode`.
    fn mode_bits(&self) -> u16 {
        let of = |tag| self.permissions(tag).unwrap_or(0);
        let group = self
            .permissions(Tag::Mask)
            .unwrap_or_else(|| of(Tag::GroupObject));
        of(Tag::UserObject) << 6 | group << 3 | of(Tag::Other)
    }

    /// Whether the mode says it all, so that nothing need be stored.
    pub fn is_minimal(&self) -> bool {
        self.0
            .iter()
            .all(|entry| !matches!(entry.tag, Tag::User(_) | Tag::Group(_) | Tag::Mask))
    }

    /// Whether somebody who is not the owner may do what he wants to a file of group `gid`. Linux:
    /// `posix_acl_permission`.
    pub(super) fn permits(&self, who: &Credentials, gid: u32, want: Access) -> bool {
        let mask = self.permissions(Tag::Mask).unwrap_or(7);
        let grants = |permissions: u16| Access::from_bits_truncate(permissions).contains(want);
        if let Some(permissions) = self.permissions(Tag::User(who.uid)) {
            return grants(permissions & mask);
        }
        let mut groups = self.0.iter().filter(|entry| match entry.tag {
            Tag::GroupObject => who.is_member(gid),
            Tag::Group(id) => who.is_member(id),
            _ => false,
        });
        let mut is_in_some = false;
        // Any group that grants all of it will do; one that is named keeps its members from what
        // others may.
        groups.any(|entry| {
            is_in_some = true;
            grants(entry.permissions & mask)
        }) || (!is_in_some && grants(self.permissions(Tag::Other).unwrap_or(0)))
    }

    /// The access ACL of a new inode in a directory with this default ACL, and the nine permission
    /// bits of its mode, of which `mode` asks for the most. Linux: `posix_acl_create_masq`.
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

    /// What the owning group may do, whatever named users and groups may.
    pub(super) fn owning_group(&self) -> u16 {
        self.permissions(Tag::GroupObject).unwrap_or(0) & self.permissions(Tag::Mask).unwrap_or(7)
    }

    /// The ACL after chmod(2) to `mode`. Linux: `posix_acl_chmod`.
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

/// What setting `acl` as access ACL of a file with `mode` comes to: the new mode, and the ACL to
/// store, if any. Linux: `posix_acl_update_mode`, without its check of who may keep the setgid bit.
pub fn set_access_acl(acl: Acl, mode: u16) -> (u16, Option<Acl>) {
    let mode = mode & !0o777 | acl.mode_bits();
    (mode, (!acl.is_minimal()).then_some(acl))
}

/// Which of the two ACLs an inode may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AclKind {
    /// Who may do what.
    Access,
    /// What new inodes in a directory inherit.
    Default,
}

impl AclKind {
    /// The extended attribute that holds it.
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

/// What is known of an inode's ACLs: nothing at first. Linux: `i_acl`, `i_default_acl`.
#[derive(Default)]
pub(super) struct AclCache {
    /// A bit for each kind that is known not to be there.
    absent: AtomicU8,
    present: Mutex<Present>,
}

#[derive(Default)]
struct Present {
    /// Those that are there, each in its place.
    acls: Option<Box<[Option<Arc<Acl>>; 2]>>,
    /// How often any was forgotten: what was being read then is not kept.
    forgotten: u32,
}

impl AclCache {
    /// Whether the inode is known to have none, without waiting.
    #[inline]
    pub(super) fn is_absent(&self, kind: AclKind) -> bool {
        self.absent.load(Ordering::Acquire) & kind.bit() != 0
    }

    /// The ACL, which `read` fetches the first time. No lock is held meanwhile.
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
        let before = present.forgotten;
        drop(present);
        let acl = read()?.map(Arc::new);
        let mut present = self.present.lock();
        match &acl {
            _ if present.forgotten != before => {}
            Some(acl) => present.acls.get_or_insert_default()[kind as usize] = Some(acl.clone()),
            None => drop(self.absent.fetch_or(kind.bit(), Ordering::Release)),
        }
        Ok(acl)
    }

    /// It was changed: whoever asks next reads it anew.
    pub(super) fn forget(&self, kind: AclKind) {
        let mut present = self.present.lock();
        self.absent.fetch_and(!kind.bit(), Ordering::Release);
        present.forgotten = present.forgotten.wrapping_add(1);
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
    fn the_mask_is_the_modes_group() {
        let acl = Acl::from_xattr(&xattr(&NAMED)).unwrap().unwrap();
        let (mode, stored) = set_access_acl(acl.clone(), 0o4700);
        assert_eq!((mode, stored), (0o4664, Some(acl.clone())));
        let changed = acl.with_mode(0o751);
        assert_eq!(changed.permissions(Tag::Mask), Some(5));
        assert_eq!(
            changed.permissions(Tag::GroupObject),
            Some(4),
            "only the mask follows the mode"
        );
        assert_eq!(changed.permissions(Tag::UserObject), Some(7));
        assert_eq!(changed.permissions(Tag::Other), Some(1));
    }

    #[test]
    fn a_minimal_list_is_only_a_mode() {
        let acl = Acl::from_xattr(&xattr(&[(1, 7, NONE), (4, 5, NONE), (0x20, 1, NONE)]))
            .unwrap()
            .unwrap();
        assert_eq!(set_access_acl(acl.clone(), 0o1600), (0o1751, None));
        assert_eq!(acl.with_mode(0o640).mode_bits(), 0o640);
        assert_eq!(Acl::from_xattr(&xattr(&[])).unwrap(), None);
    }

    #[test]
    fn senseless_lists_are_refused() {
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
    fn who_is_asked_first_is_posix() {
        let acl = Acl::from_xattr(&xattr(&NAMED)).unwrap().unwrap();
        let who = |uid, groups: &[u32]| Credentials::user(uid, 9, groups.to_vec());
        let may = |who: &Credentials, want| acl.permits(who, 77, want);
        let (read, write) = (Access::READ, Access::WRITE);
        assert!(may(&who(1000, &[]), read | write), "the named user");
        assert!(
            may(&who(5, &[50]), read) && !may(&who(5, &[50]), write),
            "the named group"
        );
        assert!(
            may(&who(5, &[77]), read) && !may(&who(5, &[77]), write),
            "the owning group"
        );
        assert!(
            may(&who(5, &[]), read) && !may(&who(5, &[]), write),
            "others"
        );
        let masked = acl.clone().with_mode(0o600);
        assert!(
            !masked.permits(&who(1000, &[]), 77, read),
            "the mask binds named users"
        );
        let with = |at: usize, entry| {
            let mut entries = NAMED;
            entries[at] = entry;
            Acl::from_xattr(&xattr(&entries)).unwrap().unwrap()
        };
        assert!(
            !with(1, (2, 0, 1000)).permits(&who(1000, &[50]), 77, read),
            "named, so groups do not matter"
        );
        assert!(
            !with(3, (8, 0, 50)).permits(&who(5, &[50]), 77, read),
            "in a group, so others do not matter"
        );
        assert!(
            with(3, (8, 7, 50)).permits(&who(5, &[50, 77]), 77, write),
            "any group that grants it"
        );
    }

    #[test]
    fn what_a_directory_gives_its_entries_is_bound_by_what_they_ask() {
        let default = Acl::from_xattr(&xattr(&NAMED)).unwrap().unwrap();
        let (acl, bits) = default.inherited(0o640);
        assert_eq!(bits, 0o640);
        assert_eq!(acl.permissions(Tag::Mask), Some(4));
        assert_eq!(
            acl.permissions(Tag::User(1000)),
            Some(6),
            "the mask alone follows"
        );
        let plain = Acl::from_xattr(&xattr(&[(1, 7, NONE), (4, 5, NONE), (0x20, 0, NONE)]))
            .unwrap()
            .unwrap();
        let (acl, bits) = plain.inherited(0o666);
        assert!(acl.is_minimal() && bits == 0o640);
    }
}
