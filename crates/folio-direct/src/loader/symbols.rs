//! The functions that the compiler calls for copies and comparisons: there is no C library.

use core::arch::asm;

/// # Safety
/// That of memcpy(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// # Safety
/// That of memmove(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: the start of the target is not in the source.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the caller's promise; from the end, and the direction flag is cleared again.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") count => _,
            inout("rdi") to.wrapping_add(count).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(count).wrapping_sub(1) => _,
            options(nostack),
        );
    }
    to
}

/// # Safety
/// That of memset(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// # Safety
/// That of memcmp(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: the caller's promise. Volatile, so that the loop does not become this function.
        let (a, b) = unsafe { (one.add(index).read_volatile(), other.add(index).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// # Safety
/// That of bcmp(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(one, other, count) }
}

// The routine that the unwind tables of core name. Nothing unwinds.
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    "ud2",
);
