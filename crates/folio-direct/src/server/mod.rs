//! The server: answers the system calls of unmodified programs on an image.
//!
//! ```text
//!   session.rs   a command from its start to the end of its processes (options.rs, view.rs)
//!      v
//!   start.rs     the first program: its process, the handoff, the loader    program.rs  search
//!   door.rs      processes attach      registry.rs  tokens, running processes
//!      v
//!   threads.rs   a thread for each process, and for each slot of its arena
//!      v
//!   dispatch.rs  a request by its number
//!      |-- processes.rs files.rs names.rs attributes.rs xattrs.rs locks.rs     its calls
//!      v            request.rs arguments   encode.rs structures
//!   folio::Process  one for each client (client.rs)    executed.rs    what a process needs besides
//!                                                 nodes.rs node_folder.rs    sockets, FIFOs
//!
//!   arena.rs sys.rs   shared memory, system calls: the only unsafe code
//! ```
//!
//! Neighbors: `folio-cli` above; the loader in each program; `folio::syscall` below.
//!
//! Invariants:
//! 1. Shared memory is read once, by copy, and each number is checked: a client that writes garbage
//!    harms itself alone.
//! 2. A process that ends leaves nothing: its files are closed and its locks released.
//! 3. No lock of this folder is held while a client is waited for.

#[expect(unsafe_code, reason = "shared memory")]
mod arena;
mod attributes;
mod client;
mod dispatch;
mod door;
mod encode;
mod executed;
mod files;
pub mod fuzzing;
mod locks;
mod names;
mod node_folder;
mod nodes;
mod options;
mod processes;
mod program;
mod registry;
mod request;
mod session;
mod start;
#[expect(unsafe_code, reason = "system calls that no crate wraps safely")]
mod sys;
#[cfg(test)]
mod tests;
mod threads;
mod view;
mod xattrs;

pub use options::{Failure, Options};
pub use session::Session;
pub use view::View;
