//! Who owns what: users and groups as they are called inside, and on the host.

use crate::base::{Errno, Error, Result};

/// Whoever has no name inside (`/proc/sys/kernel/overflowuid`).
pub(super) const NOBODY: u32 = 65534;
/// An entry of an ACL: tag, permissions, id (linux/posix_acl_xattr.h).
const ACL_ENTRY_BYTES: usize = 8;
const ACL_HEADER_BYTES: usize = 4;
const ACL_USER: u16 = 2;
const ACL_GROUP: u16 = 8;

/// Ids from `inside` on are those from `outside` on at the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IdRange {
    pub(super) inside: u32,
    pub(super) outside: u32,
    pub(super) count: u32,
}

/// How owners inside and on the host go together; the same by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Owners {
    /// Everything belongs to this user and group.
    pub(super) squash: Option<(u32, u32)>,
    pub(super) users: Vec<IdRange>,
    pub(super) groups: Vec<IdRange>,
}

impl Owners {
    /// EINVAL unless every id has one counterpart.
    pub(super) fn check(&self) -> Result<()> {
        if self.squash.is_some() && !(self.users.is_empty() && self.groups.is_empty()) {
            return Err(Error::new(
                Errno::INVAL,
                "mount options squash= and map= exclude each other",
            ));
        }
        for ranges in [&self.users, &self.groups] {
            for (place, range) in ranges.iter().enumerate() {
                let overlaps = |other: &IdRange| {
                    let meet = |a: u32, b: u32| a < b + other.count && b < a + range.count;
                    meet(range.inside, other.inside) || meet(range.outside, other.outside)
                };
                if ranges[..place].iter().any(overlaps) {
                    return Err(Error::new(
                        Errno::INVAL,
                        "ranges of mount option map= overlap",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether owners are called otherwise inside.
    pub(super) fn is_identity(&self) -> bool {
        *self == Self::default()
    }

    /// Owner and group as they are called inside.
    pub(super) fn inside(&self, uid: u32, gid: u32) -> (u32, u32) {
        let inside = |ranges: &[IdRange], id| {
            translate(ranges, id, |r| (r.outside, r.inside)).unwrap_or(NOBODY)
        };
        self.squash
            .unwrap_or_else(|| (inside(&self.users, uid), inside(&self.groups, gid)))
    }

    /// A user as the host calls it; EINVAL if it has no name there. `None` if the host need not
    /// know.
    pub(super) fn outside_user(&self, uid: u32) -> Result<Option<u32>> {
        self.outside(uid, &self.users, self.squash.map(|(uid, _)| uid))
    }

    /// The same for a group.
    pub(super) fn outside_group(&self, gid: u32) -> Result<Option<u32>> {
        self.outside(gid, &self.groups, self.squash.map(|(_, gid)| gid))
    }

    fn outside(&self, id: u32, ranges: &[IdRange], squashed: Option<u32>) -> Result<Option<u32>> {
        match squashed {
            Some(_) => Ok(None),
            None => match translate(ranges, id, |range| (range.inside, range.outside)) {
                Some(id) => Ok(Some(id)),
                None => Err(Error::new(
                    Errno::INVAL,
                    "mount option map= has no such user or group",
                )),
            },
        }
    }

    /// Gives the ids in an ACL, as xattrs have it, the names they have inside or, if `is_outward`,
    /// on the host.
    pub(super) fn translate_acl(&self, acl: &mut [u8], is_outward: bool) -> Result<()> {
        if self.is_identity() {
            return Ok(());
        }
        if self.squash.is_some() {
            return Err(Error::new(
                Errno::OPNOTSUPP,
                "ACLs do not go with mount option squash=",
            ));
        }
        let entries = acl.get_mut(ACL_HEADER_BYTES..).unwrap_or_default();
        for entry in entries.as_chunks_mut::<ACL_ENTRY_BYTES>().0 {
            let [tag_low, tag_high, _, _, id @ ..] = entry;
            let ranges = match u16::from_le_bytes([*tag_low, *tag_high]) {
                ACL_USER => &self.users,
                ACL_GROUP => &self.groups,
                _ => continue,
            };
            let before = u32::from_le_bytes(*id);
            let after = match is_outward {
                true => self.outside(before, ranges, None)?.unwrap_or(before),
                false => translate(ranges, before, |range| (range.outside, range.inside))
                    .unwrap_or(NOBODY),
            };
            *id = after.to_le_bytes();
        }
        Ok(())
    }
}

/// The counterpart of an id, where `sides` tells where a range starts on its side and on the other.
/// Without ranges every id is its own.
fn translate(ranges: &[IdRange], id: u32, sides: impl Fn(&IdRange) -> (u32, u32)) -> Option<u32> {
    if ranges.is_empty() {
        return Some(id);
    }
    ranges.iter().find_map(|range| {
        let (from, to) = sides(range);
        let distance = id
            .checked_sub(from)
            .filter(|distance| *distance < range.count)?;
        Some(to + distance)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_go_there_and_back() {
        let owners = Owners {
            squash: None,
            users: vec![
                IdRange {
                    inside: 0,
                    outside: 1000,
                    count: 1,
                },
                IdRange {
                    inside: 1,
                    outside: 100_000,
                    count: 999,
                },
            ],
            groups: Vec::new(),
        };
        owners.check().unwrap();
        for (inside, outside) in [(0, 1000), (1, 100_000), (999, 100_998)] {
            assert_eq!(owners.outside_user(inside).unwrap(), Some(outside));
            assert_eq!(owners.inside(outside, 7), (inside, 7));
        }
        assert_eq!(owners.outside_user(1000).unwrap_err().errno(), Errno::INVAL);
        assert_eq!(owners.inside(0, 0), (NOBODY, 0));
        let squashed = Owners {
            squash: Some((5, 6)),
            ..Owners::default()
        };
        assert_eq!(squashed.inside(0, 0), (5, 6));
        assert_eq!(squashed.outside_user(5).unwrap(), None);
    }

    #[test]
    fn ids_in_an_acl_are_translated() {
        let owners = Owners {
            users: vec![IdRange {
                inside: 0,
                outside: 1000,
                count: 10,
            }],
            ..Owners::default()
        };
        let entry =
            |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[7, 0], &id.to_le_bytes()].concat();
        let acl = |id: u32| {
            [
                vec![2, 0, 0, 0],
                entry(1, u32::MAX),
                entry(ACL_USER, id),
                entry(ACL_GROUP, 3),
            ]
            .concat()
        };
        let mut bytes = acl(4);
        owners.translate_acl(&mut bytes, true).unwrap();
        assert_eq!(bytes, acl(1004));
        owners.translate_acl(&mut bytes, false).unwrap();
        assert_eq!(bytes, acl(4));
        assert_eq!(
            owners
                .translate_acl(&mut acl(10), true)
                .unwrap_err()
                .errno(),
            Errno::INVAL
        );
        owners.translate_acl(&mut [2, 0], true).unwrap();
    }
}
