//! The memory that a client shares with the server. Each value is copied once, and checked by the
//! caller: the client may change the memory at any time.

use crate::shared::layout::{
    ARENA_BYTES, DATA_BYTES, HEADER_BYTES, REPLY, REQUEST, SLOT_BYTES, SLOTS_MAX, SlotHeader,
    WITHDRAWN,
};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex::{self, Flags};
use rustix::thread::sched_getcpu;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// `f_type` of a memfd with small pages. One with huge pages may fail with SIGBUS.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// A state that ends the thread of a slot.
const ENDED: u32 = u32::MAX;
/// How long a thread looks for the next request before it sleeps: most programs make it sooner, and
/// the wakeup of a halted processor takes as long.
const SPIN: Duration = Duration::from_micros(50);
/// Longest sleep without a check whether the client has ended: it may undo the wakeup.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The mapped arena of one client.
pub(super) struct Arena {
    base: NonNull<u8>,
}

// SAFETY: the memory is mapped until the drop, and is used by atomics and copies alone.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// The header of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) call: u32,
    pub(super) arguments: [u64; 6],
}

impl Arena {
    /// Maps the memory of a client, which can no longer shrink.
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        let is_small_paged = fstatfs(file)?.f_type == TMPFS_MAGIC;
        let is_sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if !is_small_paged || !is_sealed || fstat(file)?.st_size != ARENA_BYTES as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address of the host's choice overlaps no other memory.
        let base = unsafe {
            mmap(
                null_mut(),
                ARENA_BYTES,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base })
    }

    /// Returns a slot, if there is one of this number.
    pub(super) fn slot(&self, number: u32) -> Option<Slot<'_>> {
        let number = number as usize;
        if number >= SLOTS_MAX {
            return None;
        }
        // SAFETY: the slot is inside the mapping.
        let start = unsafe { self.base.add(HEADER_BYTES + number * SLOT_BYTES) };
        // SAFETY: the slot is aligned to pages, mapped as long as the arena, and its header
        // consists of atomics.
        let header = unsafe { start.cast::<SlotHeader>().as_ref() };
        // SAFETY: the data is inside the slot.
        let data = unsafe { start.add(HEADER_BYTES) };
        Some(Slot { header, data })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is our own, and no slot outlives it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), ARENA_BYTES) };
    }
}

/// The place of one thread's requests.
pub(super) struct Slot<'a> {
    header: &'a SlotHeader,
    data: NonNull<u8>,
}

impl Slot<'_> {
    /// Waits for a request, unless the client `is_ended`, and returns whether there is one. It may
    /// return early. Looks for [`SPIN`] before it sleeps, unless the client needs this processor.
    pub(super) fn wait(&self, is_ended: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        loop {
            if is_request(self.header.state.load(Ordering::Acquire)) {
                return true;
            }
            if self.client_is_here() || start.elapsed() > SPIN {
                break;
            }
            std::hint::spin_loop();
        }
        self.header.server_sleeps.store(1, Ordering::SeqCst);
        let state = self.header.state.load(Ordering::SeqCst);
        // The flag is set before the state of the end.
        if !is_request(state) && !is_ended() {
            sleep(&self.header.state, state);
        }
        self.header.server_sleeps.store(0, Ordering::Relaxed);
        is_request(self.header.state.load(Ordering::Acquire))
    }

    /// Returns whether the client made its last request on the processor of this thread.
    fn client_is_here(&self) -> bool {
        let processor = sched_getcpu() as u32;
        self.header
            .server_processor
            .store(processor, Ordering::Relaxed);
        self.header.client_processor.load(Ordering::Relaxed) == processor
    }

    /// Returns whether the client has withdrawn the request.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.header.state.load(Ordering::Acquire) == WITHDRAWN
    }

    /// Copies the request; `None` if its size is invalid.
    pub(super) fn take(&self, input: &mut Vec<u8>) -> Option<Header> {
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let len = load(&self.header.len_bytes) as usize;
        if len > DATA_BYTES {
            return None;
        }
        input.clear();
        input.reserve(len);
        // SAFETY: the source is in the slot, the target has room, and they do not overlap. The
        // client may write meanwhile: it receives the reply to any of its bytes.
        unsafe {
            self.data
                .as_ptr()
                .copy_to_nonoverlapping(input.as_mut_ptr(), len)
        };
        // SAFETY: the bytes were written above.
        unsafe { input.set_len(len) };
        Some(Header {
            call: load(&self.header.call),
            arguments: self
                .header
                .arguments
                .each_ref()
                .map(|argument| argument.load(Ordering::Relaxed)),
        })
    }

    /// Writes a reply, and wakes the client.
    pub(super) fn reply(&self, result: i64, output: &[u8]) {
        let len = output.len().min(DATA_BYTES);
        // SAFETY: the target is in the slot, and the source is memory of this process alone.
        unsafe {
            output
                .as_ptr()
                .copy_to_nonoverlapping(self.data.as_ptr(), len)
        };
        self.header.len_bytes.store(len as u32, Ordering::Relaxed);
        self.header.result.store(result, Ordering::Relaxed);
        self.header.state.store(REPLY, Ordering::SeqCst);
        if self.header.client_sleeps.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    /// Wakes the thread of the slot: the client has ended.
    pub(super) fn end(&self) {
        self.set_state(ENDED);
    }

    fn set_state(&self, state: u32) {
        self.header.state.store(state, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        let _ = futex::wake(&self.header.state, Flags::empty(), i32::MAX as u32);
    }
}

fn is_request(state: u32) -> bool {
    matches!(state, REQUEST | WITHDRAWN)
}

fn sleep(word: &AtomicU32, expected: u32) {
    let interval = CHECK_INTERVAL.try_into().ok();
    let _ = futex::wait(word, Flags::empty(), expected, interval.as_ref());
}

/// The client's side.
impl Slot<'_> {
    /// Writes a request, whose size may be wrong, and wakes the server.
    pub(super) fn send(&self, call: u32, arguments: &[u64], input: &[u8], len_bytes: u32) {
        let len = input.len().min(DATA_BYTES);
        // SAFETY: the target is in the slot.
        unsafe {
            input
                .as_ptr()
                .copy_to_nonoverlapping(self.data.as_ptr(), len)
        };
        self.header.call.store(call, Ordering::Relaxed);
        self.header.len_bytes.store(len_bytes, Ordering::Relaxed);
        for (index, place) in self.header.arguments.iter().enumerate() {
            place.store(
                arguments.get(index).copied().unwrap_or(0),
                Ordering::Relaxed,
            );
        }
        self.set_state(REQUEST);
    }
}

#[cfg(test)]
impl Slot<'_> {
    /// Withdraws the request.
    pub(super) fn withdraw(&self) {
        let state = &self.header.state;
        let _ = state.compare_exchange(REQUEST, WITHDRAWN, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Waits for the reply: the result and the output.
    pub(super) fn receive(&self) -> (i64, Vec<u8>) {
        self.header.client_sleeps.store(1, Ordering::SeqCst);
        loop {
            match self.header.state.load(Ordering::SeqCst) {
                REPLY => break,
                state => sleep(&self.header.state, state),
            }
        }
        self.header.client_sleeps.store(0, Ordering::Relaxed);
        let len = self.header.len_bytes.load(Ordering::Relaxed) as usize;
        let mut output = vec![0; len];
        // SAFETY: the source is in the slot: the server limits the size.
        unsafe {
            self.data
                .as_ptr()
                .copy_to_nonoverlapping(output.as_mut_ptr(), len)
        };
        (self.header.result.load(Ordering::Relaxed), output)
    }
}
