//! The mapping between owners inside the mount and owners on the host.

use crate::base::{Errno, Error, Owner, Result};
use crate::vfs::MountOptions;

/// The id of unmapped owners (`/proc/sys/kernel/overflowuid`).
pub(super) const OVERFLOW_ID: u32 = 65534;
/// An entry of an ACL: tag, permissions, id (linux/posix_acl_xattr.h).
const ACL_ENTRY_BYTES: usize = 8;
const ACL_HEADER_BYTES: usize = 4;
const ACL_USER: u16 = 2;
const ACL_GROUP: u16 = 8;

/// A range of ids: those from `inside` on correspond to those from `outside` on at the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IdRange {
    pub(super) inside: u32,
    pub(super) outside: u32,
    pub(super) count: u32,
}

/// The mapping between owners inside and on the host; the identity by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Owners {
    /// The user and group that all files appear to belong to.
    pub(super) squash: Option<Owner>,
    pub(super) users: Vec<IdRange>,
    pub(super) groups: Vec<IdRange>,
}

impl Owners {
    /// Fails with EINVAL unless every id has at most one counterpart.
    pub(super) fn check(&self) -> Result<()> {
        if self.squash.is_some() && !(self.users.is_empty() && self.groups.is_empty()) {
            return Err(MountOptions::invalid(
                "conflicting mount options squash= and map=: give only one of them",
            ));
        }
        for ranges in [&self.users, &self.groups] {
            for (index, range) in ranges.iter().enumerate() {
                let overlaps = |other: &IdRange| {
                    let intersect = |a: u32, b: u32| a < b + other.count && b < a + range.count;
                    intersect(range.inside, other.inside) || intersect(range.outside, other.outside)
                };
                if ranges[..index].iter().any(overlaps) {
                    return Err(MountOptions::invalid(
                        "overlapping ranges in mount option map=: give each id once",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns whether owners inside are the owners on the host.
    pub(super) fn is_identity(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the owner inside for an owner on the host.
    pub(super) fn inside(&self, outside: Owner) -> Owner {
        let inside = |ranges: &[IdRange], id| {
            translate(ranges, id, |r| (r.outside, r.inside)).unwrap_or(OVERFLOW_ID)
        };
        self.squash.unwrap_or_else(|| {
            Owner::new(
                inside(&self.users, outside.uid),
                inside(&self.groups, outside.gid),
            )
        })
    }

    /// Returns the user on the host for a user inside; `None` if the host's owner does not change.
    /// EINVAL if the user is not mapped.
    pub(super) fn outside_user(&self, uid: u32) -> Result<Option<u32>> {
        self.outside(uid, &self.users, self.squash.map(|owner| owner.uid))
    }

    /// Returns the group on the host for a group inside, like [`Owners::outside_user`].
    pub(super) fn outside_group(&self, gid: u32) -> Result<Option<u32>> {
        self.outside(gid, &self.groups, self.squash.map(|owner| owner.gid))
    }

    fn outside(&self, id: u32, ranges: &[IdRange], squashed: Option<u32>) -> Result<Option<u32>> {
        match squashed {
            Some(_) => Ok(None),
            None => match translate(ranges, id, |range| (range.inside, range.outside)) {
                Some(id) => Ok(Some(id)),
                None => Err(Error::new(
                    Errno::INVAL,
                    "the user or group is not in mount option map=",
                )),
            },
        }
    }

    /// Translates the ids of an ACL in xattr format to inside or, with `is_outward`, to the host.
    pub(super) fn translate_acl(&self, acl: &mut [u8], is_outward: bool) -> Result<()> {
        if self.is_identity() {
            return Ok(());
        }
        if self.squash.is_some() {
            return Err(Error::new(
                Errno::OPNOTSUPP,
                "ACLs are not supported with mount option squash=",
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
            let after = if is_outward {
                self.outside(before, ranges, None)?.unwrap_or(before)
            } else {
                translate(ranges, before, |range| (range.outside, range.inside))
                    .unwrap_or(OVERFLOW_ID)
            };
            *id = after.to_le_bytes();
        }
        Ok(())
    }
}

/// Returns the counterpart of an id. `sides` returns the start of a range on the side of `id` and
/// on the other side. Without ranges every id maps to itself.
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
    fn owners_map_both_ways() {
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
            let host = Owner::new(outside, 7);
            assert_eq!(owners.inside(host), Owner::new(inside, 7));
        }
        assert_eq!(owners.outside_user(1000).unwrap_err().errno(), Errno::INVAL);
        assert_eq!(owners.inside(Owner::ROOT), Owner::new(OVERFLOW_ID, 0));
        let squashed = Owners {
            squash: Some(Owner::new(5, 6)),
            ..Owners::default()
        };
        assert_eq!(squashed.inside(Owner::ROOT), Owner::new(5, 6));
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
