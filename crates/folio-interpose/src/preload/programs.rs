//! Starts and ends of processes and programs; the environment that keeps the library loaded.

use crate::calls::Op;
use crate::layout::VARIABLE;
use crate::recorder::{self, PID};
use crate::{forward, ring, system};
use core::sync::atomic::{AtomicUsize, Ordering};

unsafe extern "C" {
    static environ: *const *const u8;
}

/// Most variables of an environment that is completed.
const VARIABLES_MAX: usize = 1024;
const PRELOAD: &str = "LD_PRELOAD";
/// This process's own variables, to be passed on.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = finish;

extern "C" fn start() {
    // SAFETY: the C library sets its environment before it runs constructors.
    let all = unsafe { environ };
    let ring = find(all, VARIABLE);
    if ring.is_null() {
        return;
    }
    OWN[0].store(find(all, PRELOAD) as usize, Ordering::Relaxed);
    OWN[1].store(ring as usize, Ordering::Relaxed);
    PID.store(system::pid(), Ordering::Relaxed);
    // SAFETY: the value follows the name and its `=`.
    ring::open(unsafe { ring.add(VARIABLE.len() + 1) });
    mark_start(true);
}

extern "C" fn finish() {
    recorder::mark(Op::End, 0, 0, 0);
}

fn mark_start(has_program: bool) {
    if !ring::is_open() {
        return;
    }
    let mut bytes = [0_u8; 4096];
    let at = (&raw mut bytes) as usize;
    // SAFETY: the buffer has this size.
    let len = unsafe { system::call(system::GETCWD, [at, bytes.len(), 0, 0, 0, 0]) };
    let text = |bytes: &[u8], len: isize| usize::try_from(len).map_or(0, |len| ring::path(&bytes[..len]));
    let folder = text(&bytes, len - 1);
    let mut program = 0;
    if has_program {
        let link = c"/proc/self/exe".as_ptr() as usize;
        // SAFETY: the path ends with a zero byte, and the buffer has this size.
        let len = unsafe { system::call(system::READLINKAT, [0, link, at, bytes.len(), 0, 0]) };
        program = text(&bytes, len);
    }
    recorder::mark(Op::Start, folder, program, u64::from(system::parent()));
}

/// Finds `NAME=` in an environment; null without it.
fn find(all: *const *const u8, name: &str) -> *const u8 {
    let mut place = all;
    // SAFETY: an environment ends with null, and its strings with zero bytes.
    unsafe {
        while !place.is_null() && !(*place).is_null() {
            let variable = *place;
            let is_same = name.bytes().enumerate().all(|(i, byte)| *variable.add(i) == byte);
            if is_same && *variable.add(name.len()) == b'=' {
                return variable;
            }
            place = place.add(1);
        }
    }
    core::ptr::null()
}

/// Calls `with` with an environment that has the variables of this library.
fn completed(given: usize, with: impl FnOnce(usize) -> usize) -> usize {
    let all = given as *const *const u8;
    let has = |name| !find(all, name).is_null();
    let own = OWN.each_ref().map(|own| own.load(Ordering::Relaxed));
    if all.is_null() || !ring::is_open() || own.contains(&0) || has(VARIABLE) || has(PRELOAD) {
        return with(given);
    }
    let mut more = [0_usize; VARIABLES_MAX + 3];
    let mut count = 0;
    // SAFETY: an environment ends with null.
    while count < VARIABLES_MAX && unsafe { !(*all.add(count)).is_null() } {
        // SAFETY: as above.
        more[count] = unsafe { *all.add(count) } as usize;
        count += 1;
    }
    if count == VARIABLES_MAX {
        return with(given);
    }
    more[count..count + 2].copy_from_slice(&own);
    with((&raw const more) as usize)
}

macro_rules! programs {
    ($($name:ident $run:expr;)*) => {
        $(
            /// # Safety
            /// That of the C library's function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(
                a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
            ) -> usize {
                static KNOWN: AtomicUsize = AtomicUsize::new(0);
                // SAFETY: the caller's promise; the name ends with a zero byte.
                let real = |a: [usize; 6]| unsafe {
                    forward(&KNOWN, concat!(stringify!($name), "\0"), usize::MAX, a)
                };
                let run: fn([usize; 6], Next<'_>) -> usize = $run;
                run([a, b, c, d, e, f], &real)
            }
        )*
    };
}

/// The C library's function.
type Next<'a> = &'a dyn Fn([usize; 6]) -> usize;

programs! {
    execve |a, real| {
        mark_program(a[0]);
        completed(a[2], |all| real([a[0], a[1], all, 0, 0, 0]))
    };
    execvpe |a, real| {
        mark_program(a[0]);
        completed(a[2], |all| real([a[0], a[1], all, 0, 0, 0]))
    };
    execv |a, _| replace("execve\0", &EXECVE, a);
    execvp |a, _| replace("execvpe\0", &EXECVPE, a);
    posix_spawn |a, real| spawn(a, real);
    posix_spawnp |a, real| spawn(a, real);
    _exit |a, real| {
        leave();
        real(a)
    };
    _Exit |a, real| {
        leave();
        real(a)
    };
    fork |a, real| {
        let child = real(a);
        if child as i32 == 0 && ring::is_open() {
            recorder::forked();
            mark_start(false);
        }
        child
    };
}

/// Marks that the program is about to be replaced, by this path.
fn mark_program(path: usize) {
    let path = recorder::place_of_unread(path);
    recorder::mark(Op::Exec, path, 0, u64::from(system::parent()));
}

static EXECVE: AtomicUsize = AtomicUsize::new(0);
static EXECVPE: AtomicUsize = AtomicUsize::new(0);

/// Replaces the program, with this process's environment.
fn replace(name: &str, known: &AtomicUsize, a: [usize; 6]) -> usize {
    mark_program(a[0]);
    // SAFETY: the C library's environment, which ends with null.
    let environment = unsafe { environ } as usize;
    completed(environment, |all| {
        // SAFETY: the arguments of the caller, and an environment.
        unsafe { forward(known, name, usize::MAX, [a[0], a[1], all, 0, 0, 0]) }
    })
}

/// Marks the end, unless this is a child of vfork(2).
fn leave() {
    if system::pid() == PID.load(Ordering::Relaxed) {
        recorder::mark(Op::End, 0, 0, 0);
    }
}

fn spawn(a: [usize; 6], real: Next<'_>) -> usize {
    let result = completed(a[5], |all| real([a[0], a[1], a[2], a[3], a[4], all]));
    if result as i32 == 0 && a[0] != 0 {
        // SAFETY: the C library has stored the child's id there.
        let child = unsafe { (a[0] as *const i32).read() };
        recorder::mark(Op::Spawn, recorder::place_of(a[1]), 0, child as u64);
    }
    result
}
