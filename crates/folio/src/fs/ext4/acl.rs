//! POSIX access control lists: the kernel's form for programs, ext4's shorter form on disk, and the mode.
//!
//! Both forms list entries of tag, permissions and, for named users and groups, an id; the kernel's has an id in
//! every entry. Linux: fs/posix_acl.c, fs/ext4/acl.c, linux/posix_acl_xattr.h; acl(5) for what entries mean.

use crate::base::{Errno, Error, Result};

const XATTR_VERSION: u32 = 2;
const XATTR_ENTRY_LEN: usize = 8;
const DISK_VERSION: u32 = 1;
const DISK_ENTRY_LEN_SHORT: usize = 4;
const DISK_ENTRY_LEN_LONG: usize = 8;
const VERSION_LEN: usize = 4;
/// The id of an entry that has none.
const ID_NONE: u32 = u32::MAX;

/// Whom an entry is for. In an ACL they come in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tag {
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
    fn number(self) -> u16 {
        match self {
            Self::UserObject => 0x01,
            Self::User(_) => 0x02,
            Self::GroupObject => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    fn new(number: u16, id: u32) -> Option<Self> {
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

    fn id(self) -> Option<u32> {
        match self {
            Self::User(id) | Self::Group(id) => Some(id),
            _ => None,
        }
    }

    /// The place of the tag in an ACL; entries of named users, and of named groups, come in any order.
    fn rank(self) -> u16 {
        self.number()
    }
}

/// What one tag may do: read 4, write 2, execute 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AclEntry {
    /// For whom.
    pub(super) tag: Tag,
    /// What, 0 to 7.
    pub(super) permissions: u16,
}

/// A valid access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Acl(Vec<AclEntry>);

impl Acl {
    /// An ACL from the kernel's form; `None` for one without entries, which stands for no ACL at all.
    /// EOPNOTSUPP for another version, EINVAL for bytes or entries that make no ACL.
    pub(super) fn from_xattr(bytes: &[u8]) -> Result<Option<Self>> {
        let (version, entries) = version_and_entries(bytes).ok_or(Errno::INVAL)?;
        if version != XATTR_VERSION {
            return Err(Errno::OPNOTSUPP.into());
        }
        let (entries, []) = entries.as_chunks::<XATTR_ENTRY_LEN>() else { return Err(Errno::INVAL.into()) };
        if entries.is_empty() {
            return Ok(None);
        }
        let entries = entries.iter().map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| {
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            let tag = Tag::new(u16::from_le_bytes([t0, t1]), id)?;
            Some(AclEntry { tag, permissions: u16::from_le_bytes([p0, p1]) })
        });
        let entries: Option<Vec<_>> = entries.collect();
        entries.and_then(Self::new).map(Some).ok_or(Errno::INVAL.into())
    }

    /// The kernel's form.
    pub(super) fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.number().to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.tag.id().unwrap_or(ID_NONE).to_le_bytes());
        }
        bytes
    }

    /// An ACL from ext4's form on disk.
    pub(super) fn from_disk(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: &'static str| Error::corrupt(what).at("access control list");
        let (version, mut rest) = version_and_entries(bytes).ok_or_else(|| wrong("too short"))?;
        if version != DISK_VERSION {
            return Err(wrong("unknown version"));
        }
        let mut entries = Vec::new();
        while let Some((&[t0, t1, p0, p1], after)) = rest.split_first_chunk::<DISK_ENTRY_LEN_SHORT>() {
            let number = u16::from_le_bytes([t0, t1]);
            rest = after;
            let mut tag = Tag::new(number, ID_NONE).ok_or_else(|| wrong("unknown tag"))?;
            if tag.id().is_some() {
                let (id, after) = rest.split_first_chunk().ok_or_else(|| wrong("cut short"))?;
                tag = Tag::new(number, u32::from_le_bytes(*id)).ok_or_else(|| wrong("unknown tag"))?;
                rest = after;
            }
            entries.push(AclEntry { tag, permissions: u16::from_le_bytes([p0, p1]) });
        }
        if !rest.is_empty() {
            return Err(wrong("cut short"));
        }
        Self::new(entries).ok_or_else(|| wrong("entries make no sense together"))
    }

    /// ext4's form on disk.
    pub(super) fn to_disk(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(VERSION_LEN + self.0.len() * DISK_ENTRY_LEN_LONG);
        bytes.extend(DISK_VERSION.to_le_bytes());
        for entry in &self.0 {
            bytes.extend(entry.tag.number().to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.tag.id().map(u32::to_le_bytes).iter().flatten());
        }
        bytes
    }

    /// Entries that make an ACL: owner, owning group and other once each, a mask at most once and always if users
    /// or groups are named, in the order of [`Tag`]. Linux: `posix_acl_valid`.
    fn new(entries: Vec<AclEntry>) -> Option<Self> {
        let count = |tag: Tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let names_someone = entries.iter().any(|entry| entry.tag.id().is_some());
        let is_valid = entries.is_sorted_by_key(|entry| entry.tag.rank())
            && entries.iter().all(|entry| entry.permissions <= 7 && entry.tag.id() != Some(ID_NONE))
            && [Tag::UserObject, Tag::GroupObject, Tag::Other].into_iter().all(|tag| count(tag) == 1)
            && (count(Tag::Mask) == 1 || (count(Tag::Mask) == 0 && !names_someone));
        is_valid.then_some(Self(entries))
    }

    fn permissions(&self, tag: Tag) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions)
    }

    /// The nine permission bits that this ACL, as an access ACL, gives a mode: the group's are the mask's, where
    /// there is one. Linux: `posix_acl_equiv_mode`.
    fn mode_bits(&self) -> u16 {
        let of = |tag| self.permissions(tag).unwrap_or(0);
        let group = self.permissions(Tag::Mask).unwrap_or_else(|| of(Tag::GroupObject));
        of(Tag::UserObject) << 6 | group << 3 | of(Tag::Other)
    }

    /// Whether the mode says it all, so that nothing need be stored.
    fn is_minimal(&self) -> bool {
        self.0.iter().all(|entry| !matches!(entry.tag, Tag::User(_) | Tag::Group(_) | Tag::Mask))
    }

    /// The ACL after chmod(2) to `mode`. Linux: `posix_acl_chmod`.
    pub(super) fn with_mode(mut self, mode: u16) -> Self {
        let group_tag = if self.permissions(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObject };
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

/// What setting `acl` as access ACL of a file with `mode` comes to: the new mode, and the ACL to store, if any.
/// Linux: `posix_acl_update_mode`, without its check of who may keep the setgid bit.
pub(super) fn set_access(acl: Acl, mode: u16) -> (u16, Option<Acl>) {
    let mode = mode & !0o777 | acl.mode_bits();
    (mode, (!acl.is_minimal()).then_some(acl))
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
    const NAMED: [(u16, u16, u32); 6] =
        [(1, 6, NONE), (2, 6, 1000), (4, 4, NONE), (8, 4, 50), (0x10, 6, NONE), (0x20, 4, NONE)];

    #[test]
    fn both_forms_hold_the_same() {
        let acl = Acl::from_xattr(&xattr(&NAMED)).unwrap().unwrap();
        assert_eq!(acl.to_xattr(), xattr(&NAMED));
        let disk = acl.to_disk();
        assert_eq!(disk.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(disk[..16], [1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 6, 0, 0xe8, 3, 0, 0]);
        assert_eq!(Acl::from_disk(&disk).unwrap(), acl);
    }

    #[test]
    fn the_mask_is_the_modes_group() {
        let acl = Acl::from_xattr(&xattr(&NAMED)).unwrap().unwrap();
        let (mode, stored) = set_access(acl.clone(), 0o4700);
        assert_eq!((mode, stored), (0o4664, Some(acl.clone())));
        let changed = acl.with_mode(0o751);
        assert_eq!(changed.permissions(Tag::Mask), Some(5));
        assert_eq!(changed.permissions(Tag::GroupObject), Some(4), "only the mask follows the mode");
        assert_eq!(changed.permissions(Tag::UserObject), Some(7));
        assert_eq!(changed.permissions(Tag::Other), Some(1));
    }

    #[test]
    fn a_minimal_list_is_only_a_mode() {
        let acl = Acl::from_xattr(&xattr(&[(1, 7, NONE), (4, 5, NONE), (0x20, 1, NONE)])).unwrap().unwrap();
        assert_eq!(set_access(acl.clone(), 0o1600), (0o1751, None));
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
        assert_eq!(with(0, (1, 8, NONE)), Err(Errno::INVAL), "permission bits over 7");
        assert_eq!(with(0, (3, 7, NONE)), Err(Errno::INVAL), "unknown tag");
        assert_eq!(with(0, (4, 7, NONE)), Err(Errno::INVAL), "no owner");
        assert_eq!(with(1, (2, 7, NONE)), Err(Errno::INVAL), "a user without id");
        assert_eq!(with(3, (2, 7, 5)), Err(Errno::INVAL), "out of order");
        assert_eq!(with(4, (8, 7, 5)), Err(Errno::INVAL), "no mask");
        assert_eq!(Acl::from_xattr(&xattr(&NAMED)[..11]).unwrap_err().errno(), Errno::INVAL);
        assert_eq!(Acl::from_xattr(&[1, 0, 0, 0]).unwrap_err().errno(), Errno::OPNOTSUPP);
        assert_eq!(Acl::from_xattr(&[2]).unwrap_err().errno(), Errno::INVAL);
    }

    #[test]
    fn bad_bytes_on_disk_are_corrupt() {
        let disk = Acl::from_xattr(&xattr(&NAMED)).unwrap().unwrap().to_disk();
        for len in 0..disk.len() {
            assert_eq!(Acl::from_disk(&disk[..len]).unwrap_err().errno(), Errno::UCLEAN, "{len} bytes");
        }
        let mut forged = disk.clone();
        forged[0] = 2;
        assert_eq!(Acl::from_disk(&forged).unwrap_err().to_string(), "access control list: unknown version");
    }
}
