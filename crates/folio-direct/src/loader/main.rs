//! The runtime of a program whose files are in an image: a static program without a C library,
//! which maps the real one and answers its system calls.
//!
//! ```text
//!   start.rs      the way from execve(2) to the first instruction of the program
//!     |-- elf.rs      segments of the program and its interpreter
//!     |-- filter.rs   the filter that traps calls from outside of this file
//!     v
//!   trap.rs       SIGSYS: which call it is, where its arguments lead
//!     |-- patch.rs        instructions that trap often become jumps to entry.rs
//!     |-- names.rs, files.rs, attributes.rs, locks.rs   calls that the image answers
//!     |-- processes.rs, exec.rs, signals.rs             calls that the runtime must know of
//!     |-- paths.rs        is a path the host's or the image's?
//!     |-- descriptors.rs  is a descriptor the host's or the image's?
//!     |-- table_lock.rs   changes of descriptors, or a copy of all
//!     v
//!   client.rs     a request in shared memory, and its reply
//!   memory.rs     copies from and to the program's memory, which may not be there
//!   state.rs      what all threads share
//!   system.rs     system calls of the host; symbols.rs  what the compiler calls
//! ```
//!
//! Invariants:
//! 1. A call runs with all signals blocked, on a stack of its own. A call of the host that
//!    may wait runs where the program made it, with its signals, by [`trap::Answer::Pass`].
//! 2. A descriptor of the image has a placeholder, an empty sealed file of its own, so that the
//!    host's numbers, close-on-exec flags and inheritance hold. Nothing that a program does to it
//!    reaches a file of the host.
//! 3. Memory of the program is copied by the kernel, which finds bad pointers.
//! 4. Nothing allocates. The locks: a slot for each call, then that of the descriptors.

#![no_std]
#![no_main]
#![allow(unsafe_code)]

#[path = "../shared/calls.rs"]
mod calls;
#[path = "../shared/layout.rs"]
mod layout;

mod attributes;
mod client;
mod descriptors;
mod elf;
mod entry;
mod exec;
mod files;
mod filter;
mod host;
mod locks;
mod memory;
mod names;
mod patch;
mod paths;
mod processes;
mod signals;
mod start;
mod state;
mod symbols;
mod system;
mod table_lock;
mod trap;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    system::write_error(b"folio: the runtime of the program has failed\n");
    system::exit_group(125)
}
