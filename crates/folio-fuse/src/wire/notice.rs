//! Notices: messages that answer no request and invalidate the client's caches.
//!
//! Streams carry them; a virtiofs device has no queue for them.

use super::abi::{self, DeleteOut, InvalEntryOut, InvalInodeOut, OutHeader, PruneOut};
use super::reply::REPLY_HEADER_LEN;
use zerocopy::{Immutable, IntoBytes};

/// One invalidation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice<'a> {
    /// Attributes of a node, and its data from `offset` on (`FUSE_NOTIFY_INVAL_INODE`). Length zero
    /// means up to the end; a negative offset keeps the data.
    Inode {
        /// Node id.
        node: u64,
        /// First byte to invalidate.
        offset: i64,
        /// Bytes to invalidate.
        len_bytes: i64,
    },
    /// A name in a directory, negative entries included (`FUSE_NOTIFY_INVAL_ENTRY`).
    Entry {
        /// Node id of the directory.
        parent: u64,
        /// The name.
        name: &'a [u8],
    },
    /// An unlinked name; the client also notifies watchers of `child` (`FUSE_NOTIFY_DELETE`).
    Deleted {
        /// Node id of the directory.
        parent: u64,
        /// Node id of the unlinked inode.
        child: u64,
        /// The name.
        name: &'a [u8],
    },
    /// All names (`FUSE_NOTIFY_INC_EPOCH`, Linux 6.16).
    Names,
    /// Unused names of nodes, which the client then forgets (`FUSE_NOTIFY_PRUNE`, Linux 6.18).
    Prune {
        /// Node ids.
        nodes: &'a [u64],
    },
}

impl Notice<'_> {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Inode {
                node,
                offset,
                len_bytes,
            } => {
                let body = InvalInodeOut {
                    node,
                    offset,
                    len: len_bytes,
                };
                message(out, abi::notify::INVAL_INODE, &body, &[]);
            }
            Self::Entry { parent, name } => {
                let body = InvalEntryOut {
                    parent,
                    name_len: name.len() as u32,
                    flags: 0,
                };
                message(out, abi::notify::INVAL_ENTRY, &body, &[name, b"\0"]);
            }
            Self::Deleted {
                parent,
                child,
                name,
            } => {
                let body = DeleteOut {
                    parent,
                    child,
                    name_len: name.len() as u32,
                    padding: 0,
                };
                message(out, abi::notify::DELETE, &body, &[name, b"\0"]);
            }
            Self::Names => message(out, abi::notify::INC_EPOCH, &[0_u8; 0], &[]),
            Self::Prune { nodes } => {
                let body = PruneOut {
                    count: nodes.len() as u32,
                    ..PruneOut::default()
                };
                message(out, abi::notify::PRUNE, &body, &[nodes.as_bytes()]);
            }
        }
    }
}

/// Appends a notice: request number 0, and its code in the place of a reply's error.
fn message(out: &mut Vec<u8>, code: i32, body: &(impl IntoBytes + Immutable), tail: &[&[u8]]) {
    let tail_len: usize = tail.iter().map(|part| part.len()).sum();
    let len = REPLY_HEADER_LEN + size_of_val(body) + tail_len;
    let header = OutHeader {
        len: len as u32,
        error: code,
        unique: 0,
    };
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(body.as_bytes());
    tail.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_length_counts_header_body_and_name() {
        let mut out = Vec::new();
        Notice::Inode {
            node: 7,
            offset: 0,
            len_bytes: 0,
        }
        .encode(&mut out);
        assert_eq!((out.len(), out[0]), (40, 40));
        out.clear();
        Notice::Entry {
            parent: 1,
            name: b"name",
        }
        .encode(&mut out);
        assert_eq!((out.len(), out[0], &out[32..]), (37, 37, &b"name\0"[..]));
        out.clear();
        Notice::Deleted {
            parent: 1,
            child: 2,
            name: b"name",
        }
        .encode(&mut out);
        assert_eq!((out.len(), out[0], &out[40..]), (45, 45, &b"name\0"[..]));
        assert_eq!(
            i32::from_ne_bytes(out[4..8].try_into().unwrap()),
            abi::notify::DELETE
        );
        out.clear();
        Notice::Names.encode(&mut out);
        assert_eq!((out.len(), out[0], out[4]), (16, 16, 8));
        out.clear();
        Notice::Prune { nodes: &[3, 5] }.encode(&mut out);
        assert_eq!((out.len(), out[0], out[4], out[16]), (48, 48, 9, 2));
        assert_eq!(out[40..], 5_u64.to_ne_bytes());
    }
}
