//! Requests: a slot of shared memory for each thread.

use crate::calls::Call;
use crate::entry;
use crate::layout::{
    ARENA_BYTES, ArenaHeader, Attach, DATA_BYTES, DOOR, HEADER_BYTES, IDLE, REPLY, REQUEST, SLOT_BYTES,
    SLOTS_MAX, SOCKET, SlotHeader, SlotTaken, VERSION, WITHDRAWN,
};
use crate::memory::{self, Buffer};
use crate::state::{ARENA, BASE, BUFFERS_BYTES, PID, PRIVATE, PRIVATE_BYTES, SERVED, STACK_BYTES};
use crate::system::{
    self, Errno, FCNTL, FUTEX, MAP_FIXED, MAP_SHARED, MEMFD_CREATE, POLL, PRLIMIT64, PROT_READ,
    PROT_WRITE,
    Result, SCHED_YIELD, SENDMSG, SOCKETPAIR, host,
};
use core::sync::atomic::{AtomicBool, Ordering};

impl ArenaHeader {
    /// The header of this process's arena.
    pub(crate) fn of_client() -> &'static Self {
        let arena = ARENA.load(Ordering::Relaxed);
        // SAFETY: the arena is mapped until the process ends, and has only atomics.
        unsafe { &*(arena as *const Self) }
    }
}

/// A slot, taken by the calling thread for one call.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Slot(usize);

impl Slot {
    /// Takes a slot for a call of this thread: the one that it had before, if it still can.
    pub(crate) fn take() -> Self {
        let thread = system::tid();
        let start = thread as usize % SLOTS_MAX;
        let all = || (0..SLOTS_MAX).map(|step| Self((start + step) % SLOTS_MAX));
        let owner = |slot: &Self| slot.header().thread.load(Ordering::Relaxed);
        // More than one, if handlers of signals made calls during a call.
        if let Some(slot) = all().find(|slot| owner(slot) == thread && slot.try_take(thread)) {
            return slot;
        }
        loop {
            // A slot without a thread, else that of a thread which makes no call now.
            let unused = all().find(|slot| owner(slot) == 0 && slot.try_take(thread));
            if let Some(slot) = unused.or_else(|| all().find(|slot| slot.try_take(thread))) {
                slot.announce();
                return slot;
            }
            let _ = host!(SCHED_YIELD);
        }
    }

    fn try_take(self, thread: u32) -> bool {
        let busy = &self.header().is_busy;
        let is_taken =
            busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_taken {
            self.header().thread.store(thread, Ordering::Relaxed);
        }
        is_taken
    }

    /// Ends the call of this thread, which no longer uses the slot's stack.
    pub(crate) fn release(self) {
        self.header().is_busy.store(0, Ordering::Release);
    }

    /// Lets the server serve the slot from now on.
    fn announce(self) {
        if SERVED[self.0].swap(true, Ordering::AcqRel) {
            return;
        }
        let message = SlotTaken { slot: self.0 as u32 };
        let socket = BASE.load(Ordering::Relaxed) + SOCKET;
        let address = (&raw const message) as usize;
        if host!(system::WRITE, socket, address, size_of::<SlotTaken>()).is_err() {
            server_has_ended();
        }
    }

    /// Whether the server serves the slot.
    pub(crate) fn is_served(self) -> bool {
        SERVED[self.0].load(Ordering::Acquire)
    }

    /// The slot that has this header.
    pub(crate) fn of_header(address: usize) -> Self {
        Self((address - ARENA.load(Ordering::Relaxed) - HEADER_BYTES) / SLOT_BYTES)
    }

    /// The index of the slot.
    pub(crate) fn number(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn header(self) -> &'static SlotHeader {
        let arena = ARENA.load(Ordering::Relaxed);
        let address = arena + HEADER_BYTES + self.0 * SLOT_BYTES;
        // SAFETY: the arena is mapped until the process ends, and has only atomics.
        unsafe { &*(address as *const SlotHeader) }
    }

    /// The data of requests and replies.
    pub(crate) fn data(self) -> &'static mut [u8] {
        let address = (&raw const *self.header()) as usize + HEADER_BYTES;
        // SAFETY: mapped as above; only this thread uses it while no request is under way.
        unsafe { core::slice::from_raw_parts_mut(address as *mut u8, DATA_BYTES) }
    }

    /// Memory for paths: the `index`th buffer of 4096 bytes.
    pub(crate) fn buffer(self, index: usize) -> &'static mut [u8; 4096] {
        debug_assert!((index + 1) * 4096 <= BUFFERS_BYTES);
        let address = self.private() + STACK_BYTES + index * 4096;
        // SAFETY: private memory of this thread's slot; the callers use different buffers.
        unsafe { &mut *(address as *mut [u8; 4096]) }
    }

    /// The end of the stack of trapped calls, aligned to 16 bytes.
    pub(crate) fn stack_top(self) -> usize {
        self.private() + STACK_BYTES
    }

    fn private(self) -> usize {
        PRIVATE.load(Ordering::Relaxed) + self.0 * PRIVATE_BYTES
    }

    /// Makes a request, whose input is already in the data.
    pub(crate) fn request(self, call: Call, arguments: &[u64], len_bytes: usize) -> Result<u64> {
        self.send(call, arguments, len_bytes);
        if !self.spin() {
            let header = self.header();
            header.client_sleeps.store(1, Ordering::SeqCst);
            loop {
                let now = header.state.load(Ordering::SeqCst);
                if now == REPLY {
                    break;
                }
                wait(&header.state, now, PATIENCE_NS);
            }
            header.client_sleeps.store(0, Ordering::Relaxed);
        }
        self.take_reply()
    }

    /// Makes a request that waits for other processes, and withdraws it when `is_interrupted` says
    /// so.
    pub(crate) fn request_interruptible(
        self,
        call: Call,
        arguments: &[u64],
        len_bytes: usize,
        is_interrupted: impl Fn() -> bool,
    ) -> Result<u64> {
        const STEP_NS: u64 = 5_000_000;
        self.send(call, arguments, len_bytes);
        let state = &self.header().state;
        self.header().client_sleeps.store(1, Ordering::SeqCst);
        loop {
            let now = state.load(Ordering::SeqCst);
            if now == REPLY {
                break;
            }
            if now == REQUEST && is_interrupted() {
                let _ = state.compare_exchange(
                    REQUEST,
                    WITHDRAWN,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                wake(state);
                continue;
            }
            wait(state, now, STEP_NS);
        }
        self.header().client_sleeps.store(0, Ordering::Relaxed);
        self.take_reply()
    }

    fn send(self, call: Call, arguments: &[u64], len_bytes: usize) {
        let header = self.header();
        header.call.store(call as u32, Ordering::Relaxed);
        header.len_bytes.store(len_bytes as u32, Ordering::Relaxed);
        for (index, place) in header.arguments.iter().enumerate() {
            place.store(arguments.get(index).copied().unwrap_or(0), Ordering::Relaxed);
        }
        header.client_processor.store(processor_and_time().0, Ordering::Relaxed);
        header.state.store(REQUEST, Ordering::SeqCst);
        if header.server_sleeps.load(Ordering::SeqCst) != 0 {
            wake(&header.state);
        }
    }

    /// Looks at the state for a while; returns whether there is a reply. A server on this processor
    /// needs it, and one that has been late some times does not get the same chance each time.
    fn spin(self) -> bool {
        if !HAS_RDTSCP.load(Ordering::Relaxed) {
            return false;
        }
        /// Some 30 microseconds: the wakeup of a halted processor.
        const SPIN_CYCLES: u64 = 80_000;
        const UNSPUN_MAX: u32 = 256;
        let header = self.header();
        let unspun = header.unspun.load(Ordering::Relaxed);
        if unspun > 0 {
            header.unspun.store(unspun - 1, Ordering::Relaxed);
            return false;
        }
        let (processor, start) = processor_and_time();
        loop {
            if header.state.load(Ordering::Acquire) == REPLY {
                header.late_replies.store(0, Ordering::Relaxed);
                return true;
            }
            let is_same = header.server_processor.load(Ordering::Relaxed) == processor;
            if is_same || processor_and_time().1.wrapping_sub(start) > SPIN_CYCLES {
                break;
            }
            core::hint::spin_loop();
        }
        let late = header.late_replies.load(Ordering::Relaxed).saturating_add(1);
        header.late_replies.store(late, Ordering::Relaxed);
        let skipped = 1_u32.checked_shl(late).unwrap_or(UNSPUN_MAX).min(UNSPUN_MAX) - 1;
        header.unspun.store(skipped, Ordering::Relaxed);
        false
    }

    fn take_reply(self) -> Result<u64> {
        let header = self.header();
        let result = header.result.load(Ordering::Relaxed);
        header.state.store(IDLE, Ordering::Relaxed);
        if result < 0 { Err(Errno(-result)) } else { Ok(result as u64) }
    }

    /// The output of the last reply.
    pub(crate) fn output(self) -> &'static [u8] {
        let len = self.header().len_bytes.load(Ordering::Relaxed) as usize;
        &self.data()[..len.min(DATA_BYTES)]
    }

    /// Copies input from the program into the data, at `at`.
    pub(crate) fn put(self, at: usize, from: Buffer) -> Result<()> {
        let place = &mut self.data()[at..at + from.len_bytes];
        memory::read_into(place.as_mut_ptr(), from.len_bytes, from.address)
    }

    /// Puts a text and its zero byte into the data; returns the place after it.
    pub(crate) fn put_text(self, at: usize, text: &[u8]) -> usize {
        let data = self.data();
        data[at..at + text.len()].copy_from_slice(text);
        data[at + text.len()] = 0;
        at + text.len() + 1
    }
}

/// How long a reply may take before the client looks whether there is a server.
const PATIENCE_NS: u64 = 200_000_000;

/// Whether this processor has the instruction RDTSCP: some virtual ones have not.
static HAS_RDTSCP: AtomicBool = AtomicBool::new(false);

/// Finds out whether to look for replies.
pub(crate) fn prepare_to_spin() {
    const EXTENDED_FEATURES: u32 = 0x8000_0001;
    const RDTSCP: u32 = 1 << 27;
    let has = core::arch::x86_64::__cpuid(EXTENDED_FEATURES).edx & RDTSCP != 0;
    HAS_RDTSCP.store(has, Ordering::Relaxed);
}

/// The processor that this thread is on, and its time stamp counter. Linux keeps the first in
/// TSC_AUX. Without the instruction, no processor.
fn processor_and_time() -> (u32, u64) {
    const PROCESSOR: u32 = 0xfff;
    if !HAS_RDTSCP.load(Ordering::Relaxed) {
        return (u32::MAX, 0);
    }
    let mut aux = 0;
    // SAFETY: the processor has the instruction, and programs cannot disable it by prctl(2).
    let time = unsafe { core::arch::x86_64::__rdtscp(&raw mut aux) };
    (aux & PROCESSOR, time)
}

fn wake(state: &core::sync::atomic::AtomicU32) {
    const FUTEX_WAKE: usize = 1;
    let _ = host!(FUTEX, state.as_ptr(), FUTEX_WAKE, 1);
}

fn wait(state: &core::sync::atomic::AtomicU32, while_it_is: u32, limit_ns: u64) {
    const FUTEX_WAIT: usize = 0;
    let limit = [limit_ns / 1_000_000_000, limit_ns % 1_000_000_000];
    let waited = host!(FUTEX, state.as_ptr(), FUTEX_WAIT, while_it_is, &raw const limit);
    if waited == Err(Errno(110)) && !is_server_there() {
        server_has_ended();
    }
}

fn is_server_there() -> bool {
    const POLLHUP: u64 = 0x10;
    // struct pollfd: the descriptor, no events; the kernel adds POLLHUP.
    let mut question = (BASE.load(Ordering::Relaxed) + SOCKET) as u32 as u64;
    let found = host!(POLL, &raw mut question, 1, 0);
    !(found == Ok(1) && question >> 48 & POLLHUP != 0)
}

/// Ends the process: its files are out of reach.
#[cold]
pub(crate) fn server_has_ended() -> ! {
    system::write_error(b"folio: the server of the image has ended\n");
    system::exit_group(125)
}

/// Attaches this process to the server by the token of its start: with an arena and a socket of
/// its own, in the place of those of its parent. A slot is taken for the caller.
pub(crate) fn attach(token: u64) -> Result<Slot> {
    const MFD_CLOEXEC: usize = 1;
    const MFD_ALLOW_SEALING: usize = 2;
    const F_ADD_SEALS: usize = 1033;
    const F_SEAL_SHRINK_GROW: usize = 6;
    const AF_UNIX: usize = 1;
    const SEQPACKET_CLOEXEC: usize = 5 | 0o2_000_000;
    PID.store(system::pid(), Ordering::Relaxed);
    let base = BASE.load(Ordering::Relaxed);
    let name = c"folio: calls";
    let arena = host!(MEMFD_CREATE, name.as_ptr(), MFD_CLOEXEC | MFD_ALLOW_SEALING)? as i32;
    with_large_files(|| host!(system::FTRUNCATE, arena, ARENA_BYTES))?;
    host!(FCNTL, arena, F_ADD_SEALS, F_SEAL_SHRINK_GROW)?;
    let mut ends = [0_i32; 2];
    host!(SOCKETPAIR, AF_UNIX, SEQPACKET_CLOEXEC, 0, &raw mut ends)?;
    let old = ARENA.load(Ordering::Relaxed);
    let fixed = if old == 0 { 0 } else { MAP_FIXED };
    let address = system::map(
        old,
        ARENA_BYTES,
        PROT_READ | PROT_WRITE,
        MAP_SHARED | fixed,
        arena,
        0,
    )?;
    ARENA.store(address, Ordering::Relaxed);
    let message = Attach { version: VERSION, process: PID.load(Ordering::Relaxed), token };
    let sent = send_with_descriptors(base + DOOR, &message, [arena, ends[1]]);
    system::close(arena);
    system::close(ends[1]);
    sent?;
    host!(system::DUP3, ends[0], base + SOCKET, 0o2_000_000)?;
    system::close(ends[0]);
    for served in &SERVED {
        served.store(false, Ordering::Relaxed);
    }
    entry::forget();
    Ok(Slot::take())
}

/// Makes a call without the limit of the size of files, which is for those of the program.
fn with_large_files(call: impl FnOnce() -> Result<usize>) -> Result<()> {
    const FSIZE: usize = 1;
    let mut before = [0_u64; 2];
    host!(PRLIMIT64, 0, FSIZE, 0, &raw mut before)?;
    let raised = [before[1], before[1]];
    host!(PRLIMIT64, 0, FSIZE, &raw const raised, 0)?;
    let done = call();
    host!(PRLIMIT64, 0, FSIZE, &raw const before, 0)?;
    done.map(drop)
}

/// sendmsg(2) with SCM_RIGHTS.
fn send_with_descriptors(socket: i32, message: &Attach, descriptors: [i32; 2]) -> Result<()> {
    #[repr(C)]
    struct Control {
        len_bytes: usize,
        level: i32,
        kind: i32,
        descriptors: [i32; 2],
    }
    #[repr(C)]
    struct Message {
        name: usize,
        name_len: usize,
        parts: usize,
        parts_len: usize,
        control: usize,
        control_len: usize,
        flags: usize,
    }
    const SOL_SOCKET: i32 = 1;
    const SCM_RIGHTS: i32 = 1;
    const MSG_NOSIGNAL: usize = 0x4000;
    let control = Control {
        len_bytes: size_of::<Control>(),
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        descriptors,
    };
    let part = [(&raw const *message) as usize, size_of::<Attach>()];
    let whole = Message {
        name: 0,
        name_len: 0,
        parts: (&raw const part) as usize,
        parts_len: 1,
        control: (&raw const control) as usize,
        control_len: size_of::<Control>(),
        flags: 0,
    };
    host!(SENDMSG, socket, &raw const whole, MSG_NOSIGNAL).map(drop)
}
