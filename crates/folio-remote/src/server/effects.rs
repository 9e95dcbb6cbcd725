//! The changes by a client's request, for the other clients of the share. Change notifications do
//! not report them: a watched host directory omits the server's own changes, and an image has no
//! notifications.

use crate::message::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, op, u32_at, u64_at};
use folio::vfs::FileEvent;
use folio_fuse::wire::Notice;

/// What a client's request means for another client.
#[derive(Clone, Copy)]
pub(super) enum Effect<'a> {
    /// A cached item that is invalid.
    Notice(Notice<'a>),
    /// An event for its watchers, after the notices.
    Event(&'a FileEvent),
}

/// Returns whether a reply reports no error.
pub(super) fn has_succeeded(reply: &[u8]) -> bool {
    reply.len() >= REPLY_HEADER_BYTES && reply[4..8] == [0; 4]
}

/// Calls `notify` for each node and name that the request has changed, if its reply is a success.
pub(crate) fn for_each_effect(request: &[u8], reply: &[u8], mut notify: impl FnMut(Notice<'_>)) {
    let (Some(opcode), Some(node)) = (u32_at(request, 4), u64_at(request, 16)) else {
        return;
    };
    let Some(body) = request
        .get(REQUEST_HEADER_BYTES..)
        .filter(|_| has_succeeded(reply))
    else {
        return;
    };
    let inode = |node| Notice::Inode {
        node,
        offset: 0,
        len_bytes: 0,
    };
    let mut names = |skip: usize, parents: [u64; 2]| {
        let mut rest = body
            .get(skip..)
            .unwrap_or_default()
            .split(|byte| *byte == 0);
        for parent in parents.into_iter().filter(|parent| *parent != 0) {
            if let Some(name) = rest.next().filter(|name| !name.is_empty()) {
                notify(Notice::Entry { parent, name });
            }
        }
    };
    match opcode {
        op::SYMLINK | op::UNLINK | op::RMDIR => names(0, [node, 0]),
        op::MKDIR => names(8, [node, 0]),
        op::MKNOD | op::CREATE => names(16, [node, 0]),
        op::RENAME => names(8, [node, u64_at(body, 0).unwrap_or(0)]),
        op::RENAME2 => names(16, [node, u64_at(body, 0).unwrap_or(0)]),
        op::LINK => {
            names(8, [node, 0]);
            // Its link count has changed.
            notify(Notice::Inode {
                node: u64_at(body, 0).unwrap_or(0),
                offset: -1,
                len_bytes: 0,
            });
        }
        op::SETATTR | op::WRITE | op::FALLOCATE => notify(inode(node)),
        op::SETXATTR | op::REMOVEXATTR => notify(Notice::Inode {
            node,
            offset: -1,
            len_bytes: 0,
        }),
        // The target node follows the source's file and offset.
        op::COPY_FILE_RANGE => notify(inode(u64_at(body, 16).unwrap_or(0))),
        _ => {}
    }
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
        ]
        .concat();
        [&head[..], &[0; 16], body].concat()
    }

    fn effects(request: &[u8], error: i32) -> Vec<(u64, String)> {
        let reply = [
            &16_u32.to_ne_bytes()[..],
            &error.to_ne_bytes(),
            &7_u64.to_ne_bytes(),
        ]
        .concat();
        let mut effects = Vec::new();
        for_each_effect(request, &reply, |notice| {
            effects.push(match notice {
                Notice::Inode { node, offset, .. } => (node, format!("{offset}")),
                Notice::Entry { parent, name } | Notice::Deleted { parent, name, .. } => {
                    (parent, String::from_utf8_lossy(name).into_owned())
                }
                Notice::Names | Notice::Prune { .. } => (0, String::new()),
            });
        });
        effects
    }

    #[test]
    fn successful_request_reports_its_changes() {
        let rename = [&9_u64.to_ne_bytes()[..], &[0; 8], b"old\0new\0"].concat();
        assert_eq!(
            effects(&request(op::RENAME2, 3, &rename), 0),
            [(3, "old".to_owned()), (9, "new".to_owned())]
        );
        assert_eq!(effects(&request(op::RENAME2, 3, &rename), -2), []);
        assert_eq!(
            effects(&request(op::UNLINK, 3, b"name\0"), 0),
            [(3, "name".to_owned())]
        );
        assert_eq!(
            effects(&request(op::WRITE, 3, b""), 0),
            [(3, "0".to_owned())]
        );
        let link = [&8_u64.to_ne_bytes()[..], b"name\0"].concat();
        assert_eq!(
            effects(&request(op::LINK, 3, &link), 0),
            [(3, "name".to_owned()), (8, "-1".to_owned())]
        );
        assert_eq!(effects(&request(15, 3, &[0; 40]), 0), []);
    }

    proptest! {
        #[test]
        fn any_request_is_parsed_without_panic(opcode in 0_u32..60, body in proptest::collection::vec(any::<u8>(), 0..80), cut in 0_usize..120) {
            let request = request(opcode, 3, &body);
            effects(&request[..cut.min(request.len())], 0);
        }
    }
}
