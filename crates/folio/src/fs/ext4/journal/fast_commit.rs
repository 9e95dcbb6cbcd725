//! Fast commits: operations noted behind the ring since the last full commit, instead of the blocks
//! they changed.
//!
//! ```text
//!   area:  | HEAD tag tag TAIL | tag tag TAIL | PAD | tag TAIL | ...       one fast commit ends with a TAIL, and with
//!            transaction, checksum -^                                      the block it is in
//! ```
//!
//! Here they are read and checked; `Ext4` makes them happen (../fast_replay.rs). Linux:
//! fs/ext4/fast_commit.c, fast_commit.h; format: Documentation/filesystems/ext4/journal.rst. All
//! numbers are little-endian.

use super::disk::INCOMPAT_FAST_COMMIT;
use super::ring::Ring;
use crate::base::{Error, Result};
use crate::fs::ext4::file::extent::{Extent, decode_extent};
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{EXTENT_ENTRY_LEN, INODE_BASE_LEN};
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
/// Tag and length.
const TAG_LEN: usize = 4;
const NAME_MAX: usize = 255;

/// One thing that a fast commit says happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The inode became this; as many bytes as the writer had fields for.
    Inode { number: u32, bytes: Vec<u8> },
    /// File blocks lie here from now on.
    AddRange { number: u32, extent: Extent },
    /// File blocks are a hole from now on.
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

/// What is noted since the full commit before `sequence`, in order: all that whole fast commits
/// say.
///
/// EOPNOTSUPP for features Folio does not know. What a TAIL vouches for and still makes no sense is
/// EUCLEAN.
pub(super) fn read(ring: &Ring, sequence: u32) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    if ring.features & INCOMPAT_FAST_COMMIT == 0 {
        return Ok(changes);
    }
    let mut scan = Scan {
        sequence,
        crc: 0,
        pending: Vec::new(),
        is_open: false,
    };
    // The block behind the ring is not used: the area starts with the next.
    for at in ring.end.saturating_add(1)..ring.superblock.block_count.get() {
        let block = ring.read(at)?;
        let goes_on = scan
            .block(&block, &mut changes)
            .map_err(|e| e.at(format!("fast commit block {at}")))?;
        if !goes_on {
            break;
        }
    }
    Ok(changes)
}

/// Where the reading stands.
struct Scan {
    sequence: u32,
    /// Over the tags since the last TAIL.
    crc: u32,
    /// What waits for its TAIL; damage is told only when a TAIL vouches for it.
    pending: Vec<Result<Option<Change>>>,
    /// Whether the first tag of all was a HEAD.
    is_open: bool,
}

impl Scan {
    /// Reads one block; says whether the next may go on.
    fn block(&mut self, block: &[u8], changes: &mut Vec<Change>) -> Result<bool> {
        let mut rest = block;
        while let Some((head, after)) = rest.split_first_chunk::<TAG_LEN>() {
            let (tag, len) = (
                u16::from_le_bytes([head[0], head[1]]),
                u16::from_le_bytes([head[2], head[3]]),
            );
            let Some(value) = after.get(..usize::from(len)) else {
                return Ok(false);
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
                _ => return Ok(false),
            }
            self.crc = crc32c(crc32c(self.crc, head), value);
            rest = &after[usize::from(len)..];
        }
        Ok(true)
    }

    /// Takes a HEAD; says whether it belongs to this transaction.
    fn open(&mut self, value: &[u8]) -> Result<bool> {
        let Some((features, sequence)) = word(value, 0).zip(word(value, 4)) else {
            return Ok(false);
        };
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

    /// Takes a TAIL: if it is that of what came before, all of that happened. Says whether there
    /// may be more.
    fn close(&mut self, head: &[u8], value: &[u8], changes: &mut Vec<Change>) -> Result<bool> {
        let Some((sequence, checksum)) = word(value, 0).zip(word(value, 4)) else {
            return Ok(false);
        };
        let crc = crc32c(crc32c(self.crc, head), &value[..4]);
        if sequence != self.sequence || checksum != crc {
            return Ok(false);
        }
        for change in self.pending.drain(..) {
            changes.extend(change?);
        }
        self.crc = 0;
        Ok(true)
    }
}

fn parse(tag: u16, value: &[u8]) -> Result<Change> {
    let short = || Error::corrupt(format!("{} bytes", value.len()));
    let number = word(value, 0).ok_or_else(short)?;
    let body = &value[4..];
    match tag {
        TAG_INODE if body.len() >= INODE_BASE_LEN => Ok(Change::Inode {
            number,
            bytes: body.to_vec(),
        }),
        TAG_ADD_RANGE if body.len() == EXTENT_ENTRY_LEN => {
            let extent = decode_extent(body)?;
            if extent.len > 0 && extent.logical.checked_add(extent.len).is_some() {
                Ok(Change::AddRange { number, extent })
            } else {
                Err(Error::corrupt(format!(
                    "{} blocks at {}",
                    extent.len, extent.logical
                )))
            }
        }
        TAG_DEL_RANGE if body.len() == 8 => {
            let (start, len) = word(body, 0).zip(word(body, 4)).ok_or_else(short)?;
            Ok(Change::RemoveRange {
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
                    "name {:?}",
                    String::from_utf8_lossy(&name)
                ))),
                (true, TAG_CREAT) => Ok(Change::Create {
                    parent,
                    number,
                    name,
                }),
                (true, TAG_LINK) => Ok(Change::Link {
                    parent,
                    number,
                    name,
                }),
                (true, _) => Ok(Change::Unlink {
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

    /// The tags with a TAIL behind them that fills the block.
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

    fn scan(blocks: &[Vec<u8>]) -> Result<Vec<Change>> {
        let mut scan = Scan {
            sequence: 7,
            crc: 0,
            pending: Vec::new(),
            is_open: false,
        };
        let mut changes = Vec::new();
        for block in blocks {
            if !scan.block(block, &mut changes)? {
                break;
            }
        }
        Ok(changes)
    }

    fn names(changes: &[Change]) -> Vec<&[u8]> {
        assert!(
            changes
                .iter()
                .all(|change| matches!(change, Change::Unlink { .. }))
        );
        changes
            .iter()
            .filter_map(|change| match change {
                Change::Unlink { name, .. } => Some(name.as_slice()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn whole_fast_commits_of_this_transaction_count() {
        let first = commit(&[head(7), unlink(b"a"), unlink(b"b")], 7);
        let second = commit(&[unlink(b"c")], 7);
        let old = commit(&[unlink(b"d")], 6);
        let both = scan(&[first.clone(), second.clone(), old.clone()]).unwrap();
        assert_eq!(names(&both), [b"a", b"b", b"c"]);
        assert_eq!(scan(&[old, first.clone()]).unwrap(), []);
        // Without a HEAD nothing starts, and with another transaction's neither.
        assert_eq!(scan(std::slice::from_ref(&second)).unwrap(), []);
        assert_eq!(scan(&[commit(&[head(6), unlink(b"a")], 6)]).unwrap(), []);
        // A torn block ends it, and what came before stays.
        let mut torn = second;
        torn[10] ^= 1;
        assert_eq!(names(&scan(&[first, torn]).unwrap()), [b"a", b"b"]);
    }

    #[test]
    fn a_fast_commit_may_take_many_blocks() {
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
    fn nonsense_is_told_only_if_a_tail_vouches_for_it() {
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
            assert_eq!(scan(&[[head(7), bad.clone()].concat()]).unwrap(), []);
            let error = scan(&[commit(&[head(7), bad], 7)]).unwrap_err();
            assert_eq!(error.kind(), crate::base::ErrorKind::Corrupt, "{error}");
        }
        let unknown = tag(
            TAG_HEAD,
            &[1_u32.to_le_bytes(), 7_u32.to_le_bytes()].concat(),
        );
        assert_eq!(
            scan(&[unknown]).unwrap_err().kind(),
            crate::base::ErrorKind::Unsupported
        );
    }
}
