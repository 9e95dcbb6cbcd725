//! The preloaded library: wraps libc's file calls, and records their times in the shared ring.
//!
//! It needs no C library of its own: one object works in programs of glibc and of musl. `dlsym`,
//! `clock_gettime`, `fileno`, `__errno_location` and `environ` are those of the program.
//!
//! ```text
//!   main.rs       the wrappers, from the table of calls.rs; programs and processes
//!   recorder.rs   one record: times, waits, paths
//!   loops.rs      one record for many tiny reads or writes
//!   omitted.rs    syncs that a trial leaves out
//!   ring.rs       the shared memory, written by ../writer.rs
//!   system.rs     system calls and the thread pointer
//! ```
//!
//! Invariants:
//! 1. A call returns what the C library returned, with its errno; one that a trial leaves out
//!    returns 0.
//! 2. Nothing waits, allocates or locks.

#![no_std]

#[path = "../calls.rs"]
mod calls;
#[path = "../layout.rs"]
mod layout;
mod loops;
mod omitted;
mod programs;
mod recorder;
mod ring;
mod system;
#[path = "../writer.rs"]
mod writer;

use calls::{Call, Op, Returns};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Register arguments of a call. Those that it does not have are passed on unread.
type Arguments = [usize; 6];
/// A call of the C library, for all numbers of arguments.
type Real = unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize, usize) -> usize;

unsafe extern "C" {
    fn dlsym(handle: usize, name: *const u8) -> usize;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    system::abort()
}

/// Calls the next definition of a function: the C library's. Without one it fails with ENOSYS, and
/// returns `failure`.
///
/// # Safety
/// `name` ends with a zero byte, and the arguments are those of that function.
#[inline]
unsafe fn forward(known: &AtomicUsize, name: &str, failure: usize, a: Arguments) -> usize {
    let mut address = known.load(Ordering::Relaxed);
    if address == 0 {
        const RTLD_NEXT: usize = usize::MAX;
        let before = system::errno();
        // SAFETY: the name ends with a zero byte.
        address = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) };
        if address == 0 {
            system::set_errno(system::ENOSYS);
            return failure;
        }
        system::set_errno(before);
        known.store(address, Ordering::Relaxed);
    }
    // SAFETY: the C library defines a function of this name, which reads a part of the registers.
    unsafe {
        let real: Real = core::mem::transmute(address);
        real(a[0], a[1], a[2], a[3], a[4], a[5])
    }
}

/// What a call of the table returns if it fails.
const fn failure_of(call: &Call) -> usize {
    match (call.returns, call.op) {
        (Returns::Pointer, Op::Map) | (Returns::Int | Returns::Size, _) => usize::MAX,
        (Returns::Pointer | Returns::Items(_), _) => 0,
    }
}

/// Calls and records a function of the table.
///
/// # Safety
/// As for [`forward`].
#[inline]
unsafe fn record(known: &AtomicUsize, name: &str, call: &Call, a: Arguments) -> usize {
    if omitted::is_omitted(call, &a) {
        return 0;
    }
    let failure = failure_of(call);
    // Other flags have the same arguments.
    let a = omitted::without_sync_flags(name, call, a);
    let Some(begun) = recorder::begin(call, &a) else {
        // SAFETY: the caller's promise.
        return unsafe { forward(known, name, failure, a) };
    };
    // SAFETY: the caller's promise.
    let result = unsafe { forward(known, name, failure, a) };
    recorder::end(begun, call, &a, result);
    result
}

macro_rules! wrap {
    ($($name:ident $op:ident $names:ident $(($($place:literal),+))? $returns:ident
       $(($size:literal))? $detail:ident $(($index:literal))?;)*) => {
        $(
            /// # Safety
            /// That of the C library's function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(
                a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
            ) -> usize {
                static KNOWN: AtomicUsize = AtomicUsize::new(0);
                const CALL: Call = Call {
                    op: Op::$op,
                    names: calls::Names::$names $(($($place),+))?,
                    returns: calls::Returns::$returns $(($size))?,
                    detail: calls::Detail::$detail $(($index))?,
                };
                let name = concat!(stringify!($name), "\0");
                // SAFETY: the caller's promise; the name ends with a zero byte.
                unsafe { record(&KNOWN, name, &CALL, [a, b, c, d, e, f]) }
            }
        )*
    };
}
calls::file_calls!(wrap);
