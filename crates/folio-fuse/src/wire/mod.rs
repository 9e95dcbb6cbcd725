//! The FUSE protocol as bytes, whatever transport carries them. Linux: fs/fuse, linux/fuse.h.
//!
//! ```text
//!   request bytes --> request.rs  header and arguments, each length checked
//!   reply bytes   <-- reply.rs    body first, header last     encode.rs  attributes, types, devices
//!   notice bytes  <-- notice.rs   invalidations, which answer no request
//!                     abi.rs      the structs and numbers of linux/fuse.h
//! ```
//!
//! Neighbors: the operations of `server/` above, and transports, which implement [`Reply`]; no
//! state and no calls into a file system here.
//!
//! Invariant:
//! - W1: the client may be hostile. Every length and offset is checked, a reply never exceeds its
//!   room, nothing panics, and memory is bounded by [`REQUEST_MAX`] and [`REPLY_BODY_MAX`].

pub(crate) mod abi;
pub(crate) mod encode;
mod notice;
mod reply;
pub(crate) mod request;

pub use abi::op;
pub use notice::Notice;
pub use reply::{Message, REPLY_BODY_MAX, REPLY_HEADER_LEN, Reply, TRANSFER_MAX};
pub use request::REQUEST_MAX;

pub(crate) use reply::finish;
