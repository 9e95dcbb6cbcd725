//! libfolio: Linux's file I/O path for programs in C, C++, Go and other languages.
//!
//! ```text
//!   C program
//!      |  folio.h: opaque handles, structs of our own, -errno
//!      v
//!   call.rs      every call: refused after fork, panics caught, errors kept   last_error.rs  fork.rs
//!      |
//!   kernel.rs process.rs files.rs transfer.rs borrowed.rs names.rs attributes.rs xattrs.rs image.rs trees.rs
//!      |         argument.rs    pointers and sizes of C programs, checked
//!      |         options.rs     structs that may grow
//!      |         constants.rs   flags
//!      |         device.rs      a device in C as a block::Device
//!      v
//!    folio: Kernel, Process, block          folio-tree: copies of trees
//! ```
//!
//! No Rust type, panic or exception crosses the boundary: a panic becomes -EIO. Neighbors: C
//! programs above, the public API of `folio` below. `docs/c-library.md` is the manual, and
//! `include/folio.h` the reference.
//!
//! # Contract
//!
//! As in C, the caller vouches for its pointers: a handle comes from the call that makes it and is
//! not freed yet, strings end in a zero byte, buffers have the length that is passed with them, and
//! stay unchanged by other threads during the call. A null pointer is refused (EFAULT, or EINVAL
//! for a handle). The `unsafe` code of this crate rests on this contract: `argument.rs` makes
//! references of pointers, `options.rs` reads structs (for `kernel.rs` and `image.rs`),
//! `borrowed.rs` frees what it has lent, `device.rs` calls the program. `fork.rs` registers a
//! handler.
//!
//! # Threads, fork and signals
//!
//! Any thread may make any call, also on the same handle. In a child of fork(2) every call fails
//! with -EINVAL. No call may be made in a signal handler.

#![allow(
    missing_docs,
    reason = "fields and flags have the names and meanings of Linux's manual pages"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "one contract holds for all calls: see above"
)]

pub mod argument;
pub mod attributes;
pub mod borrowed;
mod call;
pub mod constants;
pub mod device;
pub mod files;
mod fork;
pub mod image;
pub mod kernel;
pub mod last_error;
pub mod names;
mod options;
pub mod process;
pub mod transfer;
pub mod trees;
pub mod xattrs;
