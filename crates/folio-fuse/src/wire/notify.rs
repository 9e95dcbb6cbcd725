//! Messages that answer nothing: what a kernel has to forget because somebody else changed it.
//!
//! Streams carry them; a virtiofs device has no queue for them.

use super::abi::{self, DeleteOut, InvalEntryOut, InvalInodeOut, OutHeader};
use super::reply::HEADER_LEN;
use zerocopy::{Immutable, IntoBytes};

/// Something that a kernel has to forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice<'a> {
    /// Attributes of a node, and its data from `offset` on (`FUSE_NOTIFY_INVAL_INODE`). A length of
    /// zero is all that follows; a negative offset leaves the data alone.
    Inode {
        /// Node id.
        node: u64,
        /// First byte that is forgotten.
        offset: i64,
        /// Bytes that are forgotten.
        len_bytes: i64,
    },
    /// What a name in a directory leads to, nothing included (`FUSE_NOTIFY_INVAL_ENTRY`).
    Entry {
        /// Node id of the directory.
        parent: u64,
        /// The name.
        name: &'a [u8],
    },
    /// The same, and who watches `child` is told that it is gone (`FUSE_NOTIFY_DELETE`).
    Deleted {
        /// Node id of the directory.
        parent: u64,
        /// Node id of what had the name.
        child: u64,
        /// The name.
        name: &'a [u8],
    },
    /// Where all names lead (`FUSE_NOTIFY_INC_EPOCH`, Linux 6.16).
    Names,
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
                message(out, abi::notify::INVAL_INODE, &body, None);
            }
            Self::Entry { parent, name } => {
                let body = InvalEntryOut {
                    parent,
                    name_len: name.len() as u32,
                    flags: 0,
                };
                message(out, abi::notify::INVAL_ENTRY, &body, Some(name));
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
                message(out, abi::notify::DELETE, &body, Some(name));
            }
            Self::Names => message(out, abi::notify::INC_EPOCH, &[0_u8; 0], None),
        }
    }
}

/// A message has the request number 0, and its code where replies have their error.
fn message(out: &mut Vec<u8>, code: i32, body: &(impl IntoBytes + Immutable), name: Option<&[u8]>) {
    let len = HEADER_LEN + size_of_val(body) + name.map_or(0, |name| name.len() + 1);
    let header = OutHeader {
        len: len as u32,
        error: code,
        unique: 0,
    };
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(body.as_bytes());
    if let Some(name) = name {
        out.extend_from_slice(name);
        out.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_everything() {
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
    }
}
