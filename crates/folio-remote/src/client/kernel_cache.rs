//! An index of the names and nodes that the kernel may have cached, to invalidate all of them at
//! once.
//!
//! A FUSE notice invalidates one name or one inode. One message for all names exists since Linux
//! 6.16 (`FUSE_NOTIFY_INC_EPOCH`).

use crate::message::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, op, u32_at, u64_at};
use foldhash::fast::RandomState;
use folio_fuse::ROOT;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Most negative names in the index. Beyond it the oldest are dropped; they expire by their time to
/// live.
const NEGATIVE_NAMES_MAX: usize = 64 << 10;
/// `struct fuse_entry_out`, `struct fuse_dirent`.
pub(super) const ENTRY_BYTES: usize = 128;
const DIRENT_BYTES: usize = 24;

/// A name in a directory.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct ChildName {
    /// The directory's node.
    pub(super) parent: u64,
    pub(super) name: Box<[u8]>,
}

impl ChildName {
    fn new(parent: u64, name: &[u8]) -> Self {
        Self {
            parent,
            name: name.into(),
        }
    }
}

type Name = Arc<ChildName>;

#[derive(Default)]
struct CachedNode {
    /// Lookups that the kernel has not forgotten (`nlookup`).
    lookups: u64,
    names: Vec<Name>,
}

/// Names and nodes that the kernel may have cached.
#[derive(Default)]
pub(crate) struct KernelCache {
    nodes: HashMap<u64, CachedNode, RandomState>,
    /// The node of each name; 0 for a negative name.
    names: HashMap<Name, u64, RandomState>,
    negative_names: VecDeque<Name>,
}

impl KernelCache {
    /// Records a reply before it is passed to the kernel.
    pub(crate) fn record_reply(&mut self, request: &[u8], reply: &[u8]) {
        let (Some(opcode), Some(parent)) = (u32_at(request, 4), u64_at(request, 16)) else {
            return;
        };
        if reply.get(4..8) != Some(&[0; 4]) {
            return;
        }
        let body = request.get(REQUEST_HEADER_BYTES..).unwrap_or_default();
        let entry = u64_at(reply, REPLY_HEADER_BYTES).unwrap_or(0);
        let entry_name = |skip: usize| name_at(body, skip).map(|name| (parent, name));
        match opcode {
            op::LOOKUP | op::SYMLINK => self.insert(entry_name(0), entry),
            op::MKDIR | op::LINK => self.insert(entry_name(8), entry),
            op::MKNOD | op::CREATE => self.insert(entry_name(16), entry),
            op::TMPFILE => self.insert(None, entry),
            op::READDIRPLUS => {
                for (node, name) in listed(reply) {
                    self.insert(Some((parent, name)), node);
                }
            }
            op::UNLINK | op::RMDIR => {
                if let Some((parent, name)) = entry_name(0) {
                    self.remove(parent, name);
                }
            }
            op::RENAME => self.record_rename(parent, body, 8),
            op::RENAME2 => self.record_rename(parent, body, 16),
            _ => {}
        }
    }

    /// Records a request without a reply: the kernel forgets nodes.
    pub(crate) fn record_request(&mut self, request: &[u8]) {
        match u32_at(request, 4) {
            Some(op::FORGET) => {
                if let (Some(node), Some(lookups)) =
                    (u64_at(request, 16), u64_at(request, REQUEST_HEADER_BYTES))
                {
                    self.forget(node, lookups);
                }
            }
            Some(op::BATCH_FORGET) => {
                let pairs = request.get(REQUEST_HEADER_BYTES + 8..).unwrap_or_default();
                for pair in pairs.chunks_exact(16) {
                    self.forget(u64_at(pair, 0).unwrap_or(0), u64_at(pair, 8).unwrap_or(0));
                }
            }
            _ => {}
        }
    }

    /// Returns all nodes, with the root, and all names.
    pub(crate) fn entries(&self) -> (Vec<u64>, Vec<Arc<ChildName>>) {
        let nodes = self.nodes.keys().copied().chain([ROOT]);
        (nodes.collect(), self.names.keys().cloned().collect())
    }

    /// Adds a node with a name, or a negative name if `node` is 0.
    fn insert(&mut self, name: Option<(u64, &[u8])>, node: u64) {
        let name = name.map(|(parent, name)| Arc::new(ChildName::new(parent, name)));
        if let Some(name) = &name {
            self.unlink(name);
            self.names.insert(name.clone(), node);
        }
        if node != 0 {
            let cached = self.nodes.entry(node).or_default();
            cached.lookups += 1;
            cached.names.extend(name);
        } else if let Some(name) = name {
            self.negative_names.push_back(name);
            if self.negative_names.len() > NEGATIVE_NAMES_MAX
                && let Some(oldest) = self.negative_names.pop_front()
                && self.names.get(&oldest) == Some(&0)
            {
                self.names.remove(&oldest);
            }
        }
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        self.unlink(&ChildName::new(parent, name))
    }

    /// Removes a name, from its node too. Returns the node.
    fn unlink(&mut self, name: &ChildName) -> Option<u64> {
        let node = self.names.remove(name)?;
        if let Some(cached) = self.nodes.get_mut(&node) {
            cached.names.retain(|other| **other != *name);
        }
        Some(node)
    }

    fn record_rename(&mut self, parent: u64, body: &[u8], skip: usize) {
        let Some(new_parent) = u64_at(body, 0) else {
            return;
        };
        let Some(old) = name_at(body, skip) else {
            return;
        };
        let Some(new) = name_at(body, skip + old.len() + 1) else {
            return;
        };
        // With RENAME_EXCHANGE both names still exist.
        let (from, to) = (self.remove(parent, old), self.remove(new_parent, new));
        let is_exchange = skip == 16 && u32_at(body, 8).is_some_and(|flags| flags & 2 != 0);
        for (parent, name, node) in [
            (new_parent, new, from),
            (parent, old, to.filter(|_| is_exchange)),
        ] {
            if let Some(node) = node.filter(|node| *node != 0) {
                let name = Arc::new(ChildName::new(parent, name));
                self.names.insert(name.clone(), node);
                self.nodes.entry(node).or_default().names.push(name);
            }
        }
    }

    fn forget(&mut self, node: u64, lookups: u64) {
        let Some(cached) = self.nodes.get_mut(&node) else {
            return;
        };
        cached.lookups = cached.lookups.saturating_sub(lookups);
        if cached.lookups == 0
            && let Some(forgotten) = self.nodes.remove(&node)
        {
            for name in &forgotten.names {
                self.names.remove(name);
            }
        }
    }
}

/// Returns the nodes and names in a reply to `READDIRPLUS`, without `.` and `..`, which have no
/// node.
pub(super) fn listed(reply: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut rest = reply.get(REPLY_HEADER_BYTES..).unwrap_or_default();
    let next = move || {
        let (node, len) = (u64_at(rest, 0)?, u32_at(rest, ENTRY_BYTES + 16)?);
        let start = ENTRY_BYTES + DIRENT_BYTES;
        let name = rest.get(start..start.saturating_add(len as usize))?;
        let next = (start + name.len()).next_multiple_of(8);
        rest = rest.get(next..).unwrap_or_default();
        Some((node, name))
    };
    std::iter::from_fn(next).filter(|(node, _)| *node != 0)
}

/// Returns the name from byte `start` to the next zero byte.
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

    fn names(cache: &KernelCache) -> Vec<(u64, String)> {
        let mut names: Vec<_> = cache
            .entries()
            .1
            .iter()
            .map(|name| {
                (
                    name.parent,
                    String::from_utf8_lossy(&name.name).into_owned(),
                )
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn names_follow_lookup_rename_and_forget() {
        let mut cache = KernelCache::default();
        cache.record_reply(&request(op::LOOKUP, 1, b"a\0"), &entry(10));
        cache.record_reply(&request(op::MKDIR, 1, b"\0\0\0\0\0\0\0\0d\0"), &entry(11));
        cache.record_reply(&request(op::LOOKUP, 1, b"none\0"), &entry(0));
        assert_eq!(
            names(&cache),
            [
                (1, "a".to_owned()),
                (1, "d".to_owned()),
                (1, "none".to_owned())
            ]
        );
        let rename = [&11_u64.to_ne_bytes()[..], b"a\0b\0"].concat();
        cache.record_reply(&request(op::RENAME, 1, &rename), &[0; 16]);
        assert_eq!(names(&cache)[2], (11, "b".to_owned()));
        cache.record_request(&request(op::FORGET, 10, &1_u64.to_ne_bytes()));
        cache.record_reply(&request(op::RMDIR, 1, b"d\0"), &[0; 16]);
        assert_eq!(names(&cache), [(1, "none".to_owned())]);
        let mut nodes = cache.entries().0;
        nodes.sort_unstable();
        assert_eq!(nodes, [1, 11]);
        cache.record_request(&request(
            op::BATCH_FORGET,
            0,
            &[1_u64, 11, 1].map(u64::to_ne_bytes).concat(),
        ));
        assert_eq!(cache.entries().0, [1]);
    }

    #[test]
    fn listed_names_are_recorded() {
        let mut cache = KernelCache::default();
        let mut reply = vec![0; REPLY_HEADER_BYTES];
        for (node, name) in [(0_u64, &b"."[..]), (5, b"five"), (6, b"eightlet")] {
            reply.extend_from_slice(&entry(node)[REPLY_HEADER_BYTES..]);
            reply.extend_from_slice(&[0; 16]);
            reply.extend_from_slice(&(name.len() as u32).to_ne_bytes());
            reply.extend_from_slice(&[0; 4]);
            reply.extend_from_slice(name);
            reply.resize(reply.len().next_multiple_of(8), 0);
        }
        cache.record_reply(&request(op::READDIRPLUS, 1, &[0; 40]), &reply);
        assert_eq!(
            names(&cache),
            [(1, "eightlet".to_owned()), (1, "five".to_owned())]
        );
    }

    #[test]
    fn negative_names_are_bounded() {
        let mut cache = KernelCache::default();
        for number in 0..NEGATIVE_NAMES_MAX + 10 {
            cache.record_reply(
                &request(op::LOOKUP, 1, format!("{number}\0").as_bytes()),
                &entry(0),
            );
        }
        assert_eq!(cache.names.len(), NEGATIVE_NAMES_MAX);
        // A name that was negative and is created stays.
        cache.record_reply(&request(op::MKDIR, 1, b"\0\0\0\0\0\0\0\x0010\0"), &entry(3));
        cache.record_reply(&request(op::LOOKUP, 1, b"other\0"), &entry(0));
        assert!(names(&cache).contains(&(1, "10".to_owned())));
    }

    proptest! {
        #[test]
        fn any_messages_are_parsed_without_panic(
            opcode in 0_u32..60,
            body in proptest::collection::vec(any::<u8>(), 0..80),
            reply in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut cache = KernelCache::default();
            let reply = [&[0; REPLY_HEADER_BYTES][..], &reply].concat();
            cache.record_reply(&request(opcode, 1, &body), &reply);
            cache.record_request(&request(opcode, 1, &body));
        }
    }
}
