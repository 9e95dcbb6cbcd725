//! Events of external changes, raised for the watchers of a mount: one thread makes the system
//! calls of which the kernel informs watchers, and the server answers their requests without the
//! host.
//!
//! ```text
//!   changes/EventInbox ---> server/event_sender.rs
//!                                 |  event_call.rs   EventCall: here, or over a stream, or by
//!                                 |                  notifier_calls.rs to a program in a guest
//!                                 v
//!          call.rs  RaisedCall    mount/mount_caller.rs   mknod, unlink, rename, utimensat, close
//!                                 |    ^
//!                                 v    | kernel: inotify, fanotify
//!                              server/raised.rs     answers the requests of that thread
//!                                 |
//!                              places.rs            where the kernel has its directories
//! ```
//!
//! Neighbors: `server/` and `mount/` above; the change queue and the node table below.
//!
//! Locks: the call, the places; one at a time, and none during a system call. A shard of the node
//! table is locked below the places.
//!
//! Invariants:
//! - E1: the thread is recognized by the `pid` of its requests. The server takes it from the first
//!   lookup of a name that only the thread knows, and which exists for the thread alone. The thread
//!   opens it before its calls: no call of it reaches the host. A program in a guest is recognized
//!   by a group id instead: it may be stopped in the middle of a call, with its machine, and its
//!   `pid` may be another program's later.
//! - E2: it serves no request, and no request waits for it. The kernel holds the lock of a
//!   directory during its calls, which the threads of the server answer.
//! - E3: an answer that differs from the host's state is valid for no time.

mod call;
mod event_call;
mod notifier_calls;
mod places;

pub(crate) use call::{EventCalls, RaisedCall, RaisedName, RaisedTarget, placeholder_type};
pub(crate) use event_call::{CallName, EventCallKind};
pub use event_call::{EventCall, EventCallError, EventCaller};
pub(crate) use notifier_calls::{AskStep, NotifierAsk, NotifierCalls, NotifierService};
pub(crate) use places::Place;
