//! Change notifications: carries changes by external writers to the client, which invalidates its
//! caches.
//!
//! ```text
//!   file system --- ChangeListener ---> queue.rs  ChangeQueue
//!   server/     --- own writes -------> delayed_nodes.rs   |
//!                   unreported reads                       v
//!                                   push.rs  one thread --- Invalidator ---> client
//!                                      |
//!                                      v
//!                                   event_inbox.rs  EventInbox --- one thread ---> its watchers
//! ```
//!
//! Neighbors: `server/` above, which owns the queue; the node table below.
//!
//! Locks: the queue, the inbox, the reply counts, delayed nodes; never two of them, and none while
//! the client is notified.
//!
//! Invariant:
//! - C1: notices are sent by a thread that serves no request, and no request waits for it. The
//!   client handles a notice only when it has the lock of the directory or page concerned. The
//!   holder of that lock may be waiting for a reply. Exception: `FUSE_LSEEK` waits for the notice
//!   by which the kernel writes pages back (`mount/transport.rs`), which takes no lock that the
//!   requester holds.

mod delayed_nodes;
mod event_inbox;
mod push;
mod queue;

pub(crate) use event_inbox::{EventInbox, InboxItem};
pub use push::Invalidator;
pub(crate) use push::push;
pub use queue::ReplyGuard;
pub(crate) use queue::{ChangeQueue, StaleItem};
