//! State of a process that its threads share. Set at the start; a child of fork(2)
//! changes its own copy.

use crate::layout::{DESCRIPTORS_MAX, SLOTS_MAX};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

/// Longest prefix of the image, list of the host's prefixes, and path of the program.
pub(crate) const TEXT_MAX: usize = 4096;

/// Private memory of a slot: the stack of its trapped calls, then buffers.
pub(crate) const STACK_BYTES: usize = 128 << 10;
/// Buffers for paths, after the stack.
pub(crate) const BUFFERS_BYTES: usize = 64 << 10;
pub(crate) const PRIVATE_BYTES: usize = STACK_BYTES + BUFFERS_BYTES;

/// A text that is set before the program starts, or under a process's only thread.
pub(crate) struct Text {
    bytes: UnsafeCell<[u8; TEXT_MAX]>,
    len: AtomicUsize,
}

// SAFETY: written by the only thread of the process, before it starts the program.
unsafe impl Sync for Text {}

impl Text {
    pub(crate) const fn new() -> Self {
        Self { bytes: UnsafeCell::new([0; TEXT_MAX]), len: AtomicUsize::new(0) }
    }

    pub(crate) fn get(&self) -> &'static [u8] {
        let len = self.len.load(core::sync::atomic::Ordering::Acquire);
        // SAFETY: all instances are statics, and `set` has ended.
        unsafe { core::slice::from_raw_parts(self.bytes.get().cast(), len) }
    }

    /// Sets the text, without its zero byte; the caller is the only thread.
    pub(crate) fn set(&self, text: &[u8]) {
        let len = text.len().min(TEXT_MAX);
        // SAFETY: the text has room, and no other thread reads it yet.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), self.bytes.get().cast(), len) };
        self.len.store(len, core::sync::atomic::Ordering::Release);
    }
}

/// The number of this process.
pub(crate) static PID: AtomicU32 = AtomicU32::new(0);
/// The descriptor of the loader; those of the runtime follow.
pub(crate) static BASE: AtomicI32 = AtomicI32::new(0);
/// The address of the arena.
pub(crate) static ARENA: AtomicUsize = AtomicUsize::new(0);
/// The address of the private memory of the slots.
pub(crate) static PRIVATE: AtomicUsize = AtomicUsize::new(0);
/// Whether the server serves a slot.
pub(crate) static SERVED: [AtomicBool; SLOTS_MAX] = [const { AtomicBool::new(false) }; SLOTS_MAX];

/// The place of the image in the view: `/`, or a directory of the host.
pub(crate) static PREFIX: Text = Text::new();
/// Directories of the host inside the image, separated by colons.
pub(crate) static HOST_PREFIXES: Text = Text::new();
/// The path of the program, for /proc/self/exe.
pub(crate) static PROGRAM: Text = Text::new();

/// The umask.
pub(crate) static UMASK: AtomicU32 = AtomicU32::new(0);
/// Whether the working directory is one of the image.
pub(crate) static IS_IN_IMAGE: AtomicBool = AtomicBool::new(false);
/// A bit for each descriptor of the image.
pub(crate) static DESCRIPTORS: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
