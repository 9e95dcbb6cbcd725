//! The shared memory of the ring: header, index of paths, paths, records.
//!
//! ```text
//!   Header        4 KiB
//!   path index    PATH_SLOTS times 8 bytes: high half of the hash, place of the path; 0 is free
//!   path heap     HEAP_BYTES: length (u32), bytes, padded to 4
//!   slots         SLOTS times 112 bytes: turn, record
//! ```
//!
//! A slot is free for lap `n` if its turn is `n * SLOTS`, and readable at `n * SLOTS + 1`. A writer
//! that finds an older turn drops its record and counts it: it never waits for the reader.

use core::sync::atomic::AtomicU64;

/// The first eight bytes: the format and its version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"folioR03");
/// Records that fit.
pub(crate) const SLOTS: u64 = 1 << 19;
/// Entries of the path index.
pub(crate) const PATH_SLOTS: u64 = 1 << 17;
/// Bytes of paths.
pub(crate) const HEAP_BYTES: u64 = 16 << 20;
/// Bytes of the longest path that is recorded.
pub(crate) const PATH_MAX: usize = 4096;
/// Where the path index begins, in bytes.
pub(crate) const INDEX_AT: u64 = 4096;
/// Where the paths begin, in bytes.
pub(crate) const HEAP_AT: u64 = INDEX_AT + PATH_SLOTS * 8;
/// Where the records begin, in bytes.
pub(crate) const SLOTS_AT: u64 = HEAP_AT + HEAP_BYTES;
/// Bytes of the whole ring.
pub(crate) const RING_BYTES: u64 = SLOTS_AT + SLOTS * size_of::<Slot>() as u64;
/// AT_FDCWD: the path of a record is relative to the working directory.
pub(crate) const WORKING_DIRECTORY: i32 = -100;
/// The command of fcntl(2) whose argument is recorded.
pub(crate) const F_SETFD: u64 = 2;
/// The part of [`Header::omitted`] that is the number of a device.
pub(crate) const OMITTED_DEVICE: u64 = u32::MAX as u64;
/// Calls of fsync(2) and its kin are left out.
pub(crate) const OMITS_SYNCS: u64 = 1 << 32;
/// O_SYNC and O_DSYNC are left out.
pub(crate) const OMITS_SYNC_FLAGS: u64 = 1 << 33;
/// The environment variable with the path of the ring.
pub(crate) const VARIABLE: &str = "FOLIO_INTERPOSE_RING";

/// The head of the ring.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    /// Records that found no free slot.
    pub(crate) dropped: AtomicU64,
    /// Bytes of the heap in use.
    pub(crate) heap_used: AtomicU64,
    /// What programs leave out, and on which device; 0 for nothing.
    pub(crate) omitted: AtomicU64,
    /// The next slot to write, counted over all laps; in a cache line of its own.
    pub(crate) line: [u64; 4],
    pub(crate) head: AtomicU64,
}

/// A record and its turn.
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) turn: AtomicU64,
    pub(crate) record: Record,
}

/// One call.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// CLOCK_MONOTONIC at its start, in nanoseconds.
    pub start_ns: u64,
    /// Its duration in nanoseconds.
    pub wall_ns: u64,
    /// The part of it that the thread did not run, in nanoseconds; 0 if not measured.
    pub wait_ns: u64,
    /// Processor time of the thread at its end, in nanoseconds; 0 if not measured.
    pub cpu_ns: u64,
    /// Time that a tracer had the thread stopped, up to its end, in nanoseconds; 0 if not measured.
    pub stopped_ns: u64,
    /// What the call returned; below 0 for a failure.
    pub result: i64,
    /// Flags, a size or a command.
    pub detail: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The descriptor, or that of the directory; -1 without one.
    pub fd: i32,
    /// Place of the path; 0 without one.
    pub path: u32,
    /// Place of the second path; 0 without one.
    pub second: u32,
    /// The descriptor of the second path's directory, or the argument of F_SETFD.
    pub other_fd: i32,
    /// 512-byte blocks that a disk read for the call, if measured.
    pub read_blocks: u32,
    /// Voluntary context switches in the call, if measured: each is a wait.
    pub switches: u32,
    /// [`Op`](crate::Op), as a number.
    pub op: u16,
    /// [`MEASURED`] and [`INCLUDES_GAP`].
    pub flags: u16,
    /// 512-byte blocks that a disk read for the thread between the last reading and the call: pages
    /// of mapped files.
    pub gap_blocks: u32,
    /// Further calls that the record sums up: the same operation on the same descriptor. Its result
    /// and its duration are sums.
    pub more_calls: u32,
}

/// The waits of the call were measured.
pub const MEASURED: u16 = 1;
/// The counters were read only after the call: they include the time since the last reading.
pub const INCLUDES_GAP: u16 = 2;
