//! The queue of invalidations for the kernel. A thread of its own writes them: the kernel accepts a
//! notice only once it has the lock of the page or directory concerned, and the holder of that lock
//! may be waiting for a reply.

use super::kernel_cache::{ChildName, KernelCache};
use folio_fuse::ROOT;
use folio_fuse::wire::Notice;
use parking_lot::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;

/// Most queued messages. With more, everything is invalidated instead.
const WAITING_MAX: usize = 4096;
/// Codes of the messages that are forwarded (linux/fuse.h, `enum fuse_notify_code`): none that puts
/// data into the kernel's cache or reads data from it.
const FORWARDED_CODES: [i32; 3] = [2, 3, 6];

/// The queue.
#[derive(Default)]
pub(super) struct Notices {
    queue: Mutex<NoticeQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct NoticeQueue {
    messages: VecDeque<Vec<u8>>,
    drops_all_names: bool,
    drops_all_nodes: bool,
    has_ended: bool,
}

impl Notices {
    /// Queues a message of the server.
    pub(super) fn add(&self, message: Vec<u8>) {
        let code = message
            .get(4..8)
            .and_then(|code| Some(i32::from_ne_bytes(code.try_into().ok()?)));
        if !code.is_some_and(|code| FORWARDED_CODES.contains(&code)) {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.messages.len() >= WAITING_MAX {
            queue.messages.clear();
            (queue.drops_all_names, queue.drops_all_nodes) = (true, true);
        } else {
            queue.messages.push_back(message);
        }
        self.changed.notify_one();
    }

    /// Queues the invalidation of all names.
    pub(super) fn drop_names(&self) {
        self.queue.lock().drops_all_names = true;
        self.changed.notify_one();
    }

    /// Queues the invalidation of all names and nodes.
    pub(super) fn drop_everything(&self) {
        let mut queue = self.queue.lock();
        queue.messages.clear();
        (queue.drops_all_names, queue.drops_all_nodes) = (true, true);
        self.changed.notify_one();
    }

    /// Ends [`Notices::write_until_end`].
    pub(super) fn end(&self) {
        self.queue.lock().has_ended = true;
        self.changed.notify_one();
    }

    /// Writes queued notices to `device` until the end. Ignores errors: the kernel refuses notices
    /// for entries that it has not cached, and codes that it does not support.
    pub(super) fn write_until_end(&self, device: &OwnedFd, cache: &Mutex<KernelCache>) {
        let write = |message: &[u8]| {
            let _ = rustix::io::write(device, message);
        };
        loop {
            let mut queue = self.queue.lock();
            while queue.messages.is_empty()
                && !queue.drops_all_names
                && !queue.drops_all_nodes
                && !queue.has_ended
            {
                self.changed.wait(&mut queue);
            }
            if queue.has_ended {
                return;
            }
            let (drops_all_names, drops_all_nodes) = (
                std::mem::take(&mut queue.drops_all_names),
                std::mem::take(&mut queue.drops_all_nodes),
            );
            let message = if drops_all_names || drops_all_nodes {
                None
            } else {
                queue.messages.pop_front()
            };
            drop(queue);
            match message {
                Some(message) => write(&message),
                None => {
                    // Only now: entries that came since the mark was set are dropped, too.
                    let (nodes, names) = cache.lock().entries();
                    if drops_all_nodes {
                        nodes.iter().for_each(|node| write(&forget_node(*node)));
                    }
                    if drops_all_names {
                        // A kernel that supports this needs no other message.
                        write(&encoded(&Notice::Names));
                        names.iter().for_each(|name| write(&forget_name(name)));
                        write(&forget_node(ROOT));
                    }
                }
            }
        }
    }
}

fn encoded(notice: &Notice<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    notice.encode(&mut message);
    message
}

fn forget_node(node: u64) -> Vec<u8> {
    encoded(&Notice::Inode {
        node,
        offset: 0,
        len_bytes: 0,
    })
}

fn forget_name(name: &ChildName) -> Vec<u8> {
    encoded(&Notice::Entry {
        parent: name.parent,
        name: &name.name,
    })
}
