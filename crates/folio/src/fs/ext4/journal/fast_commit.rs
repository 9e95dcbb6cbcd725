//! Fast commits: records of the operations since the last full commit, stored after the ring
//! instead of the changed blocks.
//!
//! ```text
//!   area:  | HEAD tag tag TAIL | tag tag TAIL | PAD | tag TAIL | ...
//!            transaction, checksum -^     a fast commit ends with a TAIL, which fills its block
//! ```
//!
//! This file reads and checks them; ../commit/fast_commit_replay.rs applies them. Linux:
//! fs/ext4/fast_commit.c, fast_commit.h; format: Documentation/filesystems/ext4/journal.rst. All
//! numbers are little-endian.

use super::disk::INCOMPAT_FAST_COMMIT;
use super::ring::Ring;
use crate::base::{Error, Result};
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{EXTENT_ENTRY_LEN, INODE_BASE_LEN};
use crate::fs::ext4::layout::extent::{Extent, decode_extent};
use std::ops::Range;

const TAG_ADD_RANGE: u16 = 1;
const TAG_DEL_RANGE: u16 = 2;
const TAG_CREAT: u16 = 3;
const TAG_LINK: u16 = 4;
const TAG_UNLINK: u16 = 5;
const TAG_INODE: u16 = 6;
const TAG_PAD: u16 = 7;
const TAG_TAIL: u16 = 8;
const TAG_HEAD: u16 = 9;
/// Length of a tag's header (type and length) in bytes.
const TAG_LEN: usize = 4;
const NAME_MAX: usize = 255;

/// One change recorded by a fast commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FastCommitChange {
    /// The inode's new bytes, as many as the writer had fields for.
    Inode { number: u32, bytes: Vec<u8> },
    /// File blocks are mapped by this extent.
    AddRange { number: u32, extent: Extent },
    /// File blocks become a hole.
    RemoveRange { number: u32, range: Range<u64> },
    /// A new inode got its first name.
    Create {
        parent: u32,
        number: u32,
        name: Vec<u8>,
    },
    /// An inode got a name.
    Link {
        parent: u32,
        number: u32,
        name: Vec<u8>,
    },
    /// An inode lost a name.
    Unlink {
        parent: u32,
        number: u32,
        name: Vec<u8>,
    },
}

/// Reads the changes since the full commit before `sequence`, in order, from all complete fast
/// commits.
///
/// # Errors
/// EOPNOTSUPP for unknown features; EUCLEAN for an invalid tag in a fast commit with a valid TAIL,
/// and for damage in the first fast commit. Damage in a later one ends the area, because a power
/// cut may have left it partly written.
pub(super) fn read(ring: &Ring, sequence: u32) -> Result<Vec<FastCommitChange>> {
    let mut changes = Vec::new();
    if ring.features & INCOMPAT_FAST_COMMIT == 0 {
        return Ok(changes);
    }
    let mut scan = FastCommitScan {
        sequence,
        crc: 0,
        pending: Vec::new(),
        is_open: false,
        has_valid: false,
    };
    // The block after the ring is unused; the area starts with the next one.
    for at in ring.end.saturating_add(1)..ring.superblock.block_count.get() {
        let block = ring.read(at)?;
        let may_continue = scan
            .block(&block, &mut changes)
            .map_err(|e| e.at(format!("fast commit block {at}")))?;
        if !may_continue {
            break;
        }
    }
    Ok(changes)
}

/// The state of reading the area.
struct FastCommitScan {
    sequence: u32,
    /// Checksum over the tags since the last TAIL.
    crc: u32,
    /// Changes since the last TAIL. An error among them is reported only with a valid TAIL.
    pending: Vec<Result<Option<FastCommitChange>>>,
    /// Whether a HEAD was read.
    is_open: bool,
    /// Whether a fast commit was complete.
    has_valid: bool,
}

impl FastCommitScan {
    /// Reads one block; returns whether the next block may continue.
    fn block(&mut self, block: &[u8], changes: &mut Vec<FastCommitChange>) -> Result<bool> {
        let mut rest = block;
        while let Some((head, after)) = rest.split_first_chunk::<TAG_LEN>() {
            let (tag, len) = (
                u16::from_le_bytes([head[0], head[1]]),
                u16::from_le_bytes([head[2], head[3]]),
            );
            let Some(value) = after.get(..usize::from(len)) else {
                return self.end(format_args!("tag {tag} of {len} bytes exceeds the block"));
            };
            match (tag, self.is_open) {
                (TAG_TAIL, true) => {
                    // The rest of the block belongs to the TAIL.
                    return self.close(head, value, changes);
                }
                (TAG_HEAD, _) => {
                    if !self.open(value)? {
                        return Ok(false);
                    }
                }
                (TAG_PAD, true) => {}
                (TAG_ADD_RANGE..=TAG_INODE, true) => {
                    self.pending.push(
                        parse(tag, value)
                            .map(Some)
                            .map_err(|e| e.at(format!("tag {tag}"))),
                    );
                }
                _ => return self.end(format_args!("unknown tag {tag}")),
            }
            self.crc = crc32c(crc32c(self.crc, head), value);
            rest = &after[usize::from(len)..];
        }
        Ok(true)
    }

    /// Ends the area at invalid bytes. Fails if a HEAD is valid, but no fast commit after it.
    fn end(&self, what: std::fmt::Arguments<'_>) -> Result<bool> {
        if self.is_open && !self.has_valid {
            Err(Error::corrupt(format!("first fast commit: {what}")))
        } else {
            Ok(false)
        }
    }

    /// Reads a HEAD; returns whether it belongs to this transaction.
    fn open(&mut self, value: &[u8]) -> Result<bool> {
        let Some((features, sequence)) = word(value, 0).zip(word(value, 4)) else {
            return Ok(false);
        };
        // A HEAD of another transaction is a remainder: a full commit does not clear the area.
        if sequence != self.sequence {
            return Ok(false);
        }
        if features != 0 {
            return Err(Error::unsupported(format!(
                "fast commit features {features:#x}"
            )));
        }
        self.is_open = true;
        Ok(true)
    }

    /// Reads a TAIL. If it matches the tags before it, accepts their changes. Returns whether more
    /// fast commits may follow.
    fn close(
        &mut self,
        head: &[u8],
        value: &[u8],
        changes: &mut Vec<FastCommitChange>,
    ) -> Result<bool> {
        let Some((sequence, checksum)) = word(value, 0).zip(word(value, 4)) else {
            return self.end(format_args!("short TAIL"));
        };
        let crc = crc32c(crc32c(self.crc, head), &value[..4]);
        if sequence != self.sequence || checksum != crc {
            return self.end(format_args!("bad checksum"));
        }
        self.has_valid = true;
        for change in self.pending.drain(..) {
            changes.extend(change?);
        }
        // Each fast commit has a checksum of its own, so a torn one does not spoil those before it.
        self.crc = 0;
        Ok(true)
    }
}

fn parse(tag: u16, value: &[u8]) -> Result<FastCommitChange> {
    let short = || Error::corrupt(format!("invalid length of {} bytes", value.len()));
    let number = word(value, 0).ok_or_else(short)?;
    let body = &value[4..];
    match tag {
        TAG_INODE if body.len() >= INODE_BASE_LEN => Ok(FastCommitChange::Inode {
            number,
            bytes: body.to_vec(),
        }),
        TAG_ADD_RANGE if body.len() == EXTENT_ENTRY_LEN => {
            let extent = decode_extent(body)?;
            if extent.len > 0 && extent.logical.checked_add(extent.len).is_some() {
                Ok(FastCommitChange::AddRange { number, extent })
            } else {
                Err(Error::corrupt(format!(
                    "invalid extent of {} blocks at {}",
                    extent.len, extent.logical
                )))
            }
        }
        TAG_DEL_RANGE if body.len() == 8 => {
            let (start, len) = word(body, 0).zip(word(body, 4)).ok_or_else(short)?;
            Ok(FastCommitChange::RemoveRange {
                number,
                range: start.into()..u64::from(start) + u64::from(len),
            })
        }
        TAG_CREAT | TAG_LINK | TAG_UNLINK => {
            let (parent, number) = (number, word(body, 0).ok_or_else(short)?);
            let name = body[4..].to_vec();
            let is_name = !name.is_empty()
                && name.len() <= NAME_MAX
                && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
                && !matches!(name.as_slice(), b"." | b"..");
            match (is_name, tag) {
                (false, _) => Err(Error::corrupt(format!(
                    "invalid name {:?}",
                    String::from_utf8_lossy(&name)
                ))),
                (true, TAG_CREAT) => Ok(FastCommitChange::Create {
                    parent,
                    number,
                    name,
                }),
                (true, TAG_LINK) => Ok(FastCommitChange::Link {
                    parent,
                    number,
                    name,
                }),
                (true, _) => Ok(FastCommitChange::Unlink {
                    parent,
                    number,
                    name,
                }),
            }
        }
        _ => Err(short()),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;

    fn tag(tag: u16, value: &[u8]) -> Vec<u8> {
        [
            &tag.to_le_bytes()[..],
            &(value.len() as u16).to_le_bytes(),
            value,
        ]
        .concat()
    }

    fn head(sequence: u32) -> Vec<u8> {
        tag(
            TAG_HEAD,
            &[0_u32.to_le_bytes(), sequence.to_le_bytes()].concat(),
        )
    }

    /// Returns a block with the tags and a TAIL that fills it.
    fn commit(tags: &[Vec<u8>], sequence: u32) -> Vec<u8> {
        let mut block = tags.concat();
        let len = 1024 - block.len() - TAG_LEN;
        block.extend([TAG_TAIL.to_le_bytes(), (len as u16).to_le_bytes()].concat());
        block.extend(sequence.to_le_bytes());
        let crc = crc32c(0, &block);
        block.extend(crc.to_le_bytes());
        block.resize(1024, 0);
        block
    }

    fn unlink(name: &[u8]) -> Vec<u8> {
        tag(
            TAG_UNLINK,
            &[&2_u32.to_le_bytes()[..], &12_u32.to_le_bytes(), name].concat(),
        )
    }

    fn scan(blocks: &[Vec<u8>]) -> Result<Vec<FastCommitChange>> {
        let mut scan = FastCommitScan {
            sequence: 7,
            crc: 0,
            pending: Vec::new(),
            is_open: false,
            has_valid: false,
        };
        let mut changes = Vec::new();
        for block in blocks {
            if !scan.block(block, &mut changes)? {
                break;
            }
        }
        Ok(changes)
    }

    fn names(changes: &[FastCommitChange]) -> Vec<&[u8]> {
        assert!(
            changes
                .iter()
                .all(|change| matches!(change, FastCommitChange::Unlink { .. }))
        );
        changes
            .iter()
            .filter_map(|change| match change {
                FastCommitChange::Unlink { name, .. } => Some(name.as_slice()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn complete_fast_commits_are_read() {
        let first = commit(&[head(7), unlink(b"a"), unlink(b"b")], 7);
        let second = commit(&[unlink(b"c")], 7);
        let old = commit(&[unlink(b"d")], 6);
        let both = scan(&[first.clone(), second.clone(), old.clone()]).unwrap();
        assert_eq!(names(&both), [b"a", b"b", b"c"]);
        assert_eq!(scan(&[old, first.clone()]).unwrap(), []);
        // No HEAD, or a HEAD of another transaction: nothing is read.
        assert_eq!(scan(std::slice::from_ref(&second)).unwrap(), []);
        assert_eq!(scan(&[commit(&[head(6), unlink(b"a")], 6)]).unwrap(), []);
        // A torn block ends the area; earlier fast commits remain valid.
        let mut torn = second;
        torn[10] ^= 1;
        let both = scan(&[first.clone(), torn]).unwrap();
        assert_eq!(names(&both), [b"a", b"b"]);
        // Damage in the first one is an error, as in Linux.
        let mut torn = first;
        torn[30] ^= 1;
        assert_eq!(scan(&[torn]).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn fast_commit_over_two_blocks_is_read() {
        let mut block = [head(7), unlink(&[b'x'; 200]), unlink(&[b'y'; 200])].concat();
        let left = 1024 - block.len() - TAG_LEN;
        block.extend(tag(TAG_PAD, &vec![0; left]));
        let mut last = unlink(b"z");
        let len = 1024 - last.len() - TAG_LEN;
        last.extend([TAG_TAIL.to_le_bytes(), (len as u16).to_le_bytes()].concat());
        last.extend(7_u32.to_le_bytes());
        let crc = crc32c(crc32c(0, &block), &last);
        last.extend(crc.to_le_bytes());
        last.resize(1024, 0);
        assert_eq!(scan(&[block.clone(), last]).unwrap().len(), 3);
        assert_eq!(scan(&[block]).unwrap(), []);
    }

    #[test]
    fn invalid_tags_fail_only_with_a_valid_tail() {
        for bad in [
            unlink(b""),
            unlink(b"."),
            unlink(b"a/b"),
            unlink(&[b'n'; 256]),
            tag(TAG_ADD_RANGE, &[0; 16]),
            tag(TAG_ADD_RANGE, &[0; 15]),
            tag(TAG_DEL_RANGE, &[0; 8]),
            tag(TAG_INODE, &[0; 100]),
            tag(TAG_CREAT, &[0; 2]),
        ] {
            let padding = tag(TAG_PAD, &vec![0; 1024 - 4 - 12 - bad.len()]);
            assert_eq!(
                scan(&[[head(7), bad.clone(), padding].concat()]).unwrap(),
                []
            );
            let error = scan(&[commit(&[head(7), bad], 7)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
        let unknown = tag(
            TAG_HEAD,
            &[1_u32.to_le_bytes(), 7_u32.to_le_bytes()].concat(),
        );
        assert_eq!(scan(&[unknown]).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
