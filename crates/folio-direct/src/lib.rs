//! System calls of unmodified programs, answered by the library: without FUSE, namespaces or root.
//!
//! ```text
//!   program, unmodified                             server: this process
//!   ------------------------------------            --------------------------------------
//!   loader/  maps the program, installs a           server/  one Process of the library for
//!            filter of system calls, answers   <-->          each process, one thread for each
//!            SIGSYS: is it the host's or the                 thread that makes calls
//!            image's?                                          |
//!                 shared/  a slot of shared memory             v
//!                          for each thread                   folio::syscall
//! ```
//!
//! The loader is a static program without a C library, which build.rs builds and this crate
//! embeds. It is in the place of each program that execve(2) starts; the filter is inherited.
//!
//! This is not a sandbox: a program has the rights of its user, and can leave the runtime.
//!
//! Neighbors: `folio-cli` above; `folio::syscall` and the host's kernel below. Linux: seccomp(2),
//! execveat(2), memfd_create(2).

#![deny(unsafe_code)]

mod server;
mod shared;

#[doc(hidden)]
pub use server::fuzzing;
pub use server::{Failure, Options, Session, View};

#[cfg(folio_loader)]
static LOADER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/loader"));
#[cfg(not(folio_loader))]
static LOADER: &[u8] = &[];

/// Returns whether this build has a loader: it is for Linux on x86-64.
pub fn is_supported() -> bool {
    !LOADER.is_empty()
}
