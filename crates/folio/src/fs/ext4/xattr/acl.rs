//! POSIX access control lists in ext4's format on disk, in which only named users and groups have
//! an id. Linux: fs/ext4/acl.c, fs/ext4/acl.h.

use crate::base::{Error, Result};
use crate::vfs::{Acl, AclEntry, AclTag};

const VERSION: u32 = 1;
const VERSION_LEN: usize = 4;
const ENTRY_LEN_SHORT: usize = 4;
const ENTRY_LEN_LONG: usize = 8;
/// The id of an entry without one.
const ID_NONE: u32 = u32::MAX;

/// Decodes an ACL from its bytes on disk.
///
/// # Errors
/// EUCLEAN for bytes that are not a valid ACL.
pub(crate) fn from_disk(bytes: &[u8]) -> Result<Acl> {
    let damaged = |what: &'static str| Error::corrupt(what).at("access control list");
    let (version, mut rest) = bytes
        .split_first_chunk::<VERSION_LEN>()
        .ok_or_else(|| damaged("too short"))?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(damaged("unknown version"));
    }
    let mut entries = Vec::new();
    while let Some((&[t0, t1, p0, p1], after)) = rest.split_first_chunk::<ENTRY_LEN_SHORT>() {
        let number = u16::from_le_bytes([t0, t1]);
        rest = after;
        let mut tag = AclTag::new(number, ID_NONE).ok_or_else(|| damaged("unknown tag"))?;
        if tag.id().is_some() {
            let (id, after) = rest
                .split_first_chunk()
                .ok_or_else(|| damaged("cut short"))?;
            tag = AclTag::new(number, u32::from_le_bytes(*id))
                .ok_or_else(|| damaged("unknown tag"))?;
            rest = after;
        }
        entries.push(AclEntry {
            tag,
            permissions: u16::from_le_bytes([p0, p1]),
        });
    }
    if !rest.is_empty() {
        return Err(damaged("cut short"));
    }
    Acl::new(entries).ok_or_else(|| damaged("conflicting entries"))
}

/// Encodes an ACL for the disk.
pub(crate) fn to_disk(acl: &Acl) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(VERSION_LEN + acl.entries().len() * ENTRY_LEN_LONG);
    bytes.extend(VERSION.to_le_bytes());
    for entry in acl.entries() {
        bytes.extend(entry.tag.number().to_le_bytes());
        bytes.extend(entry.permissions.to_le_bytes());
        bytes.extend(entry.tag.id().map(u32::to_le_bytes).iter().flatten());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Errno;

    /// `setfacl -m u:1000:rw,g:50:r` on a file of mode 0644.
    fn named() -> Acl {
        let tags = [
            (AclTag::UserObject, 6),
            (AclTag::User(1000), 6),
            (AclTag::GroupObject, 4),
            (AclTag::Group(50), 4),
            (AclTag::Mask, 6),
            (AclTag::Other, 4),
        ];
        Acl::new(
            tags.map(|(tag, permissions)| AclEntry { tag, permissions })
                .to_vec(),
        )
        .unwrap()
    }

    #[test]
    fn disk_and_xattr_formats_agree() {
        let disk = to_disk(&named());
        assert_eq!(disk.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(
            disk[..16],
            [1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 6, 0, 0xe8, 3, 0, 0]
        );
        assert_eq!(from_disk(&disk).unwrap(), named());
        assert_eq!(Acl::from_xattr(&named().to_xattr()).unwrap(), Some(named()));
    }

    #[test]
    fn invalid_acl_on_disk_is_corrupt() {
        let disk = to_disk(&named());
        for len in 0..disk.len() {
            assert_eq!(
                from_disk(&disk[..len]).unwrap_err().errno(),
                Errno::UCLEAN,
                "{len} bytes"
            );
        }
        let mut forged = disk.clone();
        forged[0] = 2;
        assert_eq!(
            from_disk(&forged).unwrap_err().to_string(),
            "access control list: unknown version"
        );
    }
}
