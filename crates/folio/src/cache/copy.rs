//! Copies between a page and a caller's buffer, by the one loop that was measured best.
//!
//! A page that is read may be written at the same time, as in Linux: the reader gets old bytes, new
//! bytes, or some of each. Such a copy must not be visible to the compiler as a plain read, which
//! could assume that nobody writes. Both directions are therefore a call that the compiler cannot
//! look into: the C library's, which for every length measured was as fast as the best of vector
//! loops and `rep movsb`.

#![allow(unsafe_code)]

use crate::base::sync;

/// Copies from a page that others may be writing.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes.
#[inline]
pub(super) unsafe fn from_page(from: *const u8, to: &mut [u8]) {
    // SAFETY: as the caller promises; `to` is ours to write.
    unsafe { copy(from, to.as_mut_ptr(), to.len()) }
}

/// Copies to a page that others may be reading.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes, and nobody else writes them.
#[inline]
pub(super) unsafe fn to_page(to: *mut u8, from: &[u8]) {
    // SAFETY: as the caller promises.
    unsafe { copy(from.as_ptr(), to, from.len()) }
}

/// Copies from page to page, which may be the same.
///
/// # Safety
/// Both are valid for `len` bytes, and nobody else writes `to`.
#[inline]
pub(super) unsafe fn between_pages(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { OPAQUE_COPY.get()(to, from, len) };
}

/// Zeroes part of a page that others may be reading.
///
/// # Safety
/// `to` is valid for writes of `len` bytes, and nobody else writes them.
#[inline]
pub(super) unsafe fn zero(to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { OPAQUE_SET.get()(to, 0, len) };
}

/// # Safety
/// As for `memmove`.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if sync::IS_MODEL_CHECKED {
        // The model checker lets others in before and in the middle.
        let half = len / 2;
        sync::step();
        // SAFETY: as the caller promises.
        unsafe { OPAQUE_COPY.get()(to, from, half) };
        sync::step();
        // SAFETY: as the caller promises.
        let from = unsafe { from.add(half) };
        // SAFETY: as the caller promises.
        let to = unsafe { to.add(half) };
        // SAFETY: as the caller promises.
        unsafe { OPAQUE_COPY.get()(to, from, len - half) };
        return;
    }
    // SAFETY: as the caller promises.
    unsafe { OPAQUE_COPY.get()(to, from, len) };
}

type Copy = unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8;
type Set = unsafe extern "C" fn(*mut u8, i32, usize) -> *mut u8;

unsafe extern "C" {
    fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
    fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8;
}

/// A function known only when the program runs, as far as the compiler can tell.
struct Opaque<F>(F);

impl<F: std::marker::Copy> Opaque<F> {
    #[inline]
    fn get(&self) -> F {
        std::hint::black_box(self.0)
    }
}

// A caller's buffer may be a page that it has locked, even the one it reads from.
static OPAQUE_COPY: Opaque<Copy> = Opaque(memmove);
static OPAQUE_SET: Opaque<Set> = Opaque(memset);
