//! What the kernel has to forget, told by a thread of its own: the kernel answers a notice only
//! when it has the lock of the page or directory that it concerns, and whoever has that lock may be
//! waiting for a reply.

use super::known::{Known, Name};
use folio_fuse::adapter::ROOT;
use folio_fuse::wire::Notice;
use parking_lot::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;

/// Messages that wait; with more, everything is forgotten.
const WAITING_MAX: usize = 4096;
/// Codes of the messages that are passed on (linux/fuse.h, `enum fuse_notify_code`); none that puts
/// data into the kernel's cache or takes it out.
const PASSED_ON: [i32; 3] = [2, 3, 6];

/// A queue and its end.
#[derive(Default)]
pub(super) struct Notices {
    queue: Mutex<Queue>,
    came: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Vec<u8>>,
    drops_names: bool,
    drops_nodes: bool,
    is_over: bool,
}

impl Notices {
    /// A message of the server.
    pub(super) fn add(&self, message: Vec<u8>) {
        let code = message
            .get(4..8)
            .and_then(|code| Some(i32::from_ne_bytes(code.try_into().ok()?)));
        if !code.is_some_and(|code| PASSED_ON.contains(&code)) {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.messages.len() >= WAITING_MAX {
            queue.messages.clear();
            (queue.drops_names, queue.drops_nodes) = (true, true);
        } else {
            queue.messages.push_back(message);
        }
        self.came.notify_one();
    }

    /// All names are to be forgotten.
    pub(super) fn drop_names(&self) {
        self.queue.lock().drops_names = true;
        self.came.notify_one();
    }

    /// Everything is.
    pub(super) fn drop_everything(&self) {
        let mut queue = self.queue.lock();
        queue.messages.clear();
        (queue.drops_names, queue.drops_nodes) = (true, true);
        self.came.notify_one();
    }

    /// Ends [`Notices::tell`].
    pub(super) fn end(&self) {
        self.queue.lock().is_over = true;
        self.came.notify_one();
    }

    /// Tells the kernel behind `device` until the end. What it does not know is no error, nor is
    /// what an old one does not understand.
    pub(super) fn tell(&self, device: &OwnedFd, known: &Mutex<Known>) {
        let write = |message: &[u8]| {
            let _ = rustix::io::write(device, message);
        };
        loop {
            let mut queue = self.queue.lock();
            while queue.messages.is_empty()
                && !queue.drops_names
                && !queue.drops_nodes
                && !queue.is_over
            {
                self.came.wait(&mut queue);
            }
            if queue.is_over {
                return;
            }
            let (drops_names, drops_nodes) = (
                std::mem::take(&mut queue.drops_names),
                std::mem::take(&mut queue.drops_nodes),
            );
            let message = if drops_names || drops_nodes {
                None
            } else {
                queue.messages.pop_front()
            };
            drop(queue);
            match message {
                Some(message) => write(&message),
                None => {
                    let (nodes, names) = known.lock().all();
                    if drops_nodes {
                        nodes.iter().for_each(|node| write(&forget_node(*node)));
                    }
                    if drops_names {
                        // Enough for a kernel that understands it.
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

fn forget_name(name: &Name) -> Vec<u8> {
    encoded(&Notice::Entry {
        parent: name.0,
        name: &name.1,
    })
}
