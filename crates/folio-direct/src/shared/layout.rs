//! The memory that a client shares with the server, and the messages of its socket.
//!
//! ```text
//!   arena, one for each process:  | header | slot 0 | slot 1 | ...      a slot for each thread
//!   slot:                         | header: state, call, arguments, result | data |
//! ```
//!
//! A client writes a request into its slot, sets the state to [`REQUEST`] and wakes the server; the
//! server writes the reply, sets [`REPLY`] and wakes the client. Both look at the state for a
//! while, unless they are on one processor, and then sleep by futex(2). A client whose call may be
//! interrupted sets [`WITHDRAWN`]; the server replies all the same.
//!
//! A process attaches by a message on the door, a socket that all clients share, with its arena and
//! one end of a socket of its own. When all copies of the other end are closed, the process has
//! ended. On that socket a client says which slot a new thread has taken.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

/// The version of the layout, with which both sides begin.
pub(crate) const VERSION: u32 = 0x464f_0001;

/// Calls of a process at one time; further ones wait.
pub(crate) const SLOTS_MAX: usize = 512;
/// Size of the input or output of one request.
pub(crate) const DATA_BYTES: usize = 256 << 10;
/// Size of the header of the arena and of each slot.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Size of a slot.
pub(crate) const SLOT_BYTES: usize = HEADER_BYTES + DATA_BYTES;
/// Size of an arena.
pub(crate) const ARENA_BYTES: usize = HEADER_BYTES + SLOTS_MAX * SLOT_BYTES;

/// The start of the arena: for the client alone, but a child of vfork(2) shares that of its parent
/// until it attaches.
#[repr(C)]
pub(crate) struct ArenaHeader {
    /// The number of calls in progress that change descriptors.
    pub(crate) changes: AtomicU32,
    /// The call that copies the descriptors, 0 if none does.
    pub(crate) copier: AtomicU32,
}

/// The start of a slot.
#[repr(C)]
pub(crate) struct SlotHeader {
    /// [`IDLE`], [`REQUEST`], [`WITHDRAWN`] or [`REPLY`]; both sides wait for it.
    pub(crate) state: AtomicU32,
    /// The thread that had the slot last, 0 if none: for the client alone.
    pub(crate) thread: AtomicU32,
    /// Whether a call is in progress: for the client alone.
    pub(crate) is_busy: AtomicU32,
    /// The number of a [`Call`](super::calls::Call).
    pub(crate) call: AtomicU32,
    /// The processor of the client at its last request.
    pub(crate) client_processor: AtomicU32,
    /// The processor of the server at its last reply.
    pub(crate) server_processor: AtomicU32,
    /// Whether the client sleeps, or is about to: set before it looks at the state again.
    pub(crate) client_sleeps: AtomicU32,
    /// Whether the server sleeps, or is about to: set before it looks at the state again.
    pub(crate) server_sleeps: AtomicU32,
    /// Replies that came too late for a spin, since the last that did not: for the client alone.
    pub(crate) late_replies: AtomicU32,
    /// Requests that do not spin: for the client alone.
    pub(crate) unspun: AtomicU32,
    /// Input of a request, or output of a reply, in bytes.
    pub(crate) len_bytes: AtomicU32,
    pub(crate) arguments: [AtomicU64; 6],
    pub(crate) result: AtomicI64,
}

pub(crate) const IDLE: u32 = 0;
pub(crate) const REQUEST: u32 = 1;
pub(crate) const WITHDRAWN: u32 = 2;
pub(crate) const REPLY: u32 = 3;

/// The message of a new process on the door. Its descriptors: the arena, and the server's end of
/// the process's own socket.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Attach {
    pub(crate) version: u32,
    pub(crate) process: u32,
    /// The reply of [`Call::Prepare`](super::calls::Call::Prepare).
    pub(crate) token: u64,
}

/// The message of a new thread on the process's own socket.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SlotTaken {
    pub(crate) slot: u32,
}

/// What a program that execve(2) starts finds in descriptor `base + HANDOFF`: a memfd with this
/// header, and then texts, each with a zero byte: the prefix of the image in the view (`/` if it is
/// the root), the prefixes of the host inside the image, separated by colons, the path of the
/// program, and the path that the program is called by (AT_EXECFN).
///
/// `base` is the descriptor of the loader's own file, which AT_EXECFN names as /dev/fd/BASE.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handoff {
    pub(crate) version: u32,
    /// Whether the working directory is one of the image.
    pub(crate) is_in_image: u32,
    /// Whether the process has the filter of system calls: all but the first program.
    pub(crate) has_filter: u32,
    /// The umask of the process.
    pub(crate) umask: u32,
    pub(crate) token: u64,
    /// The signals that the program blocks.
    pub(crate) mask: u64,
    /// A bit for each descriptor of the image.
    pub(crate) descriptors: [u64; DESCRIPTORS_MAX / 64],
}

/// Descriptors that can be of the image.
pub(crate) const DESCRIPTORS_MAX: usize = 65536;

/// The descriptor of the handoff, after that of the loader.
pub(crate) const HANDOFF: i32 = 1;
/// The descriptor of the door.
pub(crate) const DOOR: i32 = 2;
/// The descriptor of the arena, which programs do not inherit.
pub(crate) const ARENA: i32 = 3;
/// The descriptor of the process's own socket, which programs do not inherit.
pub(crate) const SOCKET: i32 = 4;
/// The number of descriptors that the runtime has, from the loader's on.
pub(crate) const RESERVED: i32 = 8;
