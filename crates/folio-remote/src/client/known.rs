//! What the kernel has been told of names and inodes, so that it can be told to forget all of it at
//! once.
//!
//! FUSE can invalidate one name or one inode; one message for all of them came with Linux 6.16 only
//! (`FUSE_NOTIFY_INC_EPOCH`).

use crate::message::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, number32, number64, op};
use foldhash::fast::RandomState;
use folio_fuse::adapter::ROOT;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Names that lead nowhere which are remembered; of more, the oldest are left to their time to
/// live.
const MISSING_MAX: usize = 64 << 10;
/// `struct fuse_entry_out`, `struct fuse_dirent`.
const ENTRY_BYTES: usize = 128;
const DIRENT_BYTES: usize = 24;

/// A name in a directory.
pub(super) type Name = Arc<(u64, Box<[u8]>)>;

#[derive(Default)]
struct Node {
    lookups: u64,
    names: Vec<Name>,
}

/// Names and inodes that the kernel may have cached.
#[derive(Default)]
pub(super) struct Known {
    nodes: HashMap<u64, Node, RandomState>,
    /// What each name leads to; 0 is nothing.
    names: HashMap<Name, u64, RandomState>,
    missing: VecDeque<Name>,
}

impl Known {
    /// A reply that the kernel is going to get.
    pub(super) fn replied(&mut self, request: &[u8], reply: &[u8]) {
        let (Some(opcode), Some(parent)) = (number32(request, 4), number64(request, 16)) else {
            return;
        };
        if reply.get(4..8) != Some(&[0; 4]) {
            return;
        }
        let body = request.get(REQUEST_HEADER_BYTES..).unwrap_or_default();
        let entry = number64(reply, REPLY_HEADER_BYTES).unwrap_or(0);
        let made = |skip: usize| name_at(body, skip).map(|name| (parent, name));
        match opcode {
            op::LOOKUP | op::SYMLINK => self.add(made(0), entry),
            op::MKDIR | op::LINK => self.add(made(8), entry),
            op::MKNOD | op::CREATE => self.add(made(16), entry),
            op::TMPFILE => self.add(None, entry),
            op::READDIRPLUS => self.listed(parent, reply),
            op::UNLINK | op::RMDIR => {
                if let Some((parent, name)) = made(0) {
                    self.remove(parent, name);
                }
            }
            op::RENAME => self.renamed(parent, body, 8),
            op::RENAME2 => self.renamed(parent, body, 16),
            _ => {}
        }
    }

    /// A request without a reply.
    pub(super) fn requested(&mut self, request: &[u8]) {
        match number32(request, 4) {
            Some(op::FORGET) => {
                if let (Some(node), Some(lookups)) = (
                    number64(request, 16),
                    number64(request, REQUEST_HEADER_BYTES),
                ) {
                    self.forget(node, lookups);
                }
            }
            Some(op::BATCH_FORGET) => {
                let pairs = request.get(REQUEST_HEADER_BYTES + 8..).unwrap_or_default();
                for pair in pairs.chunks_exact(16) {
                    self.forget(
                        number64(pair, 0).unwrap_or(0),
                        number64(pair, 8).unwrap_or(0),
                    );
                }
            }
            _ => {}
        }
    }

    /// All nodes and all names.
    pub(super) fn all(&self) -> (Vec<u64>, Vec<Name>) {
        let nodes = self.nodes.keys().copied().chain([ROOT]);
        (nodes.collect(), self.names.keys().cloned().collect())
    }

    /// The names keep their places; the nodes are to be found again.
    fn add(&mut self, name: Option<(u64, &[u8])>, node: u64) {
        let name = name.map(|(parent, name)| Arc::new((parent, Box::from(name))));
        if let Some(name) = &name {
            self.unlink(name);
            self.names.insert(name.clone(), node);
        }
        if node != 0 {
            let known = self.nodes.entry(node).or_default();
            known.lookups += 1;
            known.names.extend(name);
        } else if let Some(name) = name {
            self.missing.push_back(name);
            if self.missing.len() > MISSING_MAX
                && let Some(oldest) = self.missing.pop_front()
                && self.names.get(&oldest) == Some(&0)
            {
                self.names.remove(&oldest);
            }
        }
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        self.unlink(&(parent, Box::from(name)))
    }

    /// Takes the name away, from its node too.
    fn unlink(&mut self, name: &(u64, Box<[u8]>)) -> Option<u64> {
        let node = self.names.remove(name)?;
        if let Some(known) = self.nodes.get_mut(&node) {
            known.names.retain(|other| **other != *name);
        }
        Some(node)
    }

    fn renamed(&mut self, parent: u64, body: &[u8], skip: usize) {
        let Some(new_parent) = number64(body, 0) else {
            return;
        };
        let Some(old) = name_at(body, skip) else {
            return;
        };
        let Some(new) = name_at(body, skip + old.len() + 1) else {
            return;
        };
        // With RENAME_EXCHANGE both lead somewhere still.
        let (from, to) = (self.remove(parent, old), self.remove(new_parent, new));
        let is_exchange = skip == 16 && number32(body, 8).is_some_and(|flags| flags & 2 != 0);
        for (parent, name, node) in [
            (new_parent, new, from),
            (parent, old, to.filter(|_| is_exchange)),
        ] {
            if let Some(node) = node.filter(|node| *node != 0) {
                let name: Name = Arc::new((parent, Box::from(name)));
                self.names.insert(name.clone(), node);
                self.nodes.entry(node).or_default().names.push(name);
            }
        }
    }

    fn listed(&mut self, parent: u64, reply: &[u8]) {
        let mut rest = reply.get(REPLY_HEADER_BYTES..).unwrap_or_default();
        while let (Some(node), Some(len)) = (number64(rest, 0), number32(rest, ENTRY_BYTES + 16)) {
            let start = ENTRY_BYTES + DIRENT_BYTES;
            let Some(name) = rest.get(start..start.saturating_add(len as usize)) else {
                return;
            };
            // `.` and `..` come without a node.
            if node != 0 {
                self.add(Some((parent, name)), node);
            }
            let next = (start + name.len()).next_multiple_of(8);
            rest = rest.get(next..).unwrap_or_default();
        }
    }

    fn forget(&mut self, node: u64, lookups: u64) {
        let Some(known) = self.nodes.get_mut(&node) else {
            return;
        };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0
            && let Some(gone) = self.nodes.remove(&node)
        {
            for name in &gone.names {
                self.names.remove(name);
            }
        }
    }
}

/// The name that begins there and ends in a zero byte.
fn name_at(body: &[u8], start: usize) -> Option<&[u8]> {
    let rest = body.get(start..)?;
    rest.get(..rest.iter().position(|byte| *byte == 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let len = (REQUEST_HEADER_BYTES + body.len()) as u32;
        let head = [
            &len.to_ne_bytes()[..],
            &opcode.to_ne_bytes(),
            &7_u64.to_ne_bytes(),
            &node.to_ne_bytes(),
        ];
        [&head.concat()[..], &[0; 16], body].concat()
    }

    fn entry(node: u64) -> Vec<u8> {
        [
            &[0; REPLY_HEADER_BYTES][..],
            &node.to_ne_bytes(),
            &[0; ENTRY_BYTES - 8],
        ]
        .concat()
    }

    fn names(known: &Known) -> Vec<(u64, String)> {
        let mut names: Vec<_> = known
            .all()
            .1
            .iter()
            .map(|name| (name.0, String::from_utf8_lossy(&name.1).into_owned()))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn names_come_move_and_go() {
        let mut known = Known::default();
        known.replied(&request(op::LOOKUP, 1, b"a\0"), &entry(10));
        known.replied(&request(op::MKDIR, 1, b"\0\0\0\0\0\0\0\0d\0"), &entry(11));
        known.replied(&request(op::LOOKUP, 1, b"none\0"), &entry(0));
        assert_eq!(
            names(&known),
            [
                (1, "a".to_owned()),
                (1, "d".to_owned()),
                (1, "none".to_owned())
            ]
        );
        let rename = [&11_u64.to_ne_bytes()[..], b"a\0b\0"].concat();
        known.replied(&request(op::RENAME, 1, &rename), &[0; 16]);
        assert_eq!(names(&known)[2], (11, "b".to_owned()));
        known.requested(&request(op::FORGET, 10, &1_u64.to_ne_bytes()));
        known.replied(&request(op::RMDIR, 1, b"d\0"), &[0; 16]);
        assert_eq!(names(&known), [(1, "none".to_owned())]);
        let mut nodes = known.all().0;
        nodes.sort_unstable();
        assert_eq!(nodes, [1, 11]);
        known.requested(&request(
            op::BATCH_FORGET,
            0,
            &[1_u64, 11, 1].map(u64::to_ne_bytes).concat(),
        ));
        assert_eq!(known.all().0, [1]);
    }

    #[test]
    fn listed_names_count() {
        let mut known = Known::default();
        let mut reply = vec![0; REPLY_HEADER_BYTES];
        for (node, name) in [(0_u64, &b"."[..]), (5, b"five"), (6, b"eightlet")] {
            reply.extend_from_slice(&entry(node)[REPLY_HEADER_BYTES..]);
            reply.extend_from_slice(&[0; 16]);
            reply.extend_from_slice(&(name.len() as u32).to_ne_bytes());
            reply.extend_from_slice(&[0; 4]);
            reply.extend_from_slice(name);
            reply.resize(reply.len().next_multiple_of(8), 0);
        }
        known.replied(&request(op::READDIRPLUS, 1, &[0; 40]), &reply);
        assert_eq!(
            names(&known),
            [(1, "eightlet".to_owned()), (1, "five".to_owned())]
        );
    }

    #[test]
    fn names_that_lead_nowhere_do_not_pile_up() {
        let mut known = Known::default();
        for number in 0..MISSING_MAX + 10 {
            known.replied(
                &request(op::LOOKUP, 1, format!("{number}\0").as_bytes()),
                &entry(0),
            );
        }
        assert_eq!(known.names.len(), MISSING_MAX);
        // One that was missing and then made stays.
        known.replied(&request(op::MKDIR, 1, b"\0\0\0\0\0\0\0\x0010\0"), &entry(3));
        known.replied(&request(op::LOOKUP, 1, b"other\0"), &entry(0));
        assert!(names(&known).contains(&(1, "10".to_owned())));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(
            opcode in 0_u32..60,
            body in proptest::collection::vec(any::<u8>(), 0..80),
            reply in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut known = Known::default();
            let reply = [&[0; REPLY_HEADER_BYTES][..], &reply].concat();
            known.replied(&request(opcode, 1, &body), &reply);
            known.requested(&request(opcode, 1, &body));
        }
    }
}
