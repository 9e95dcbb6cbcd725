//! Copies between a page and a caller's buffer, by the loop that was measured fastest. Linux:
//! `copy_folio_to_iter`.
//!
//! A page may be written while it is read, as in Linux: the reader gets old bytes, new bytes, or
//! some of each. The compiler must not see such a copy as a plain read, since it could assume that
//! no thread writes. So both directions are calls that the compiler cannot analyze: those of the C
//! library, which for every measured length were as fast as the best of vector loops and `rep
//! movsb`.

#![allow(unsafe_code)]

use crate::base::sync;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

/// Copies from a page that other threads may be writing.
///
/// # Safety
/// `from` is valid for reads of `to.len()` bytes.
#[inline]
pub(super) unsafe fn from_page(from: *const u8, to: &mut [u8]) {
    // SAFETY: as the caller promises; `to` is exclusively borrowed.
    unsafe { copy(from, to.as_mut_ptr(), to.len()) }
}

/// Copies to a page that other threads may be reading.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes, and no other thread writes them.
#[inline]
pub(super) unsafe fn to_page(to: *mut u8, from: &[u8]) {
    // SAFETY: as the caller promises.
    unsafe { copy(from.as_ptr(), to, from.len()) }
}

/// Copies from page to page, which may be the same.
///
/// # Safety
/// Both are valid for `len` bytes, and no other thread writes `to`.
#[inline]
pub(super) unsafe fn between_pages(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { OPAQUE_COPY.get()(to, from, len) };
}

/// Zeroes part of a page that other threads may be reading.
///
/// # Safety
/// `to` is valid for writes of `len` bytes, and no other thread writes them.
#[inline]
pub(super) unsafe fn zero(to: *mut u8, len: usize) {
    // SAFETY: as the caller promises.
    unsafe { OPAQUE_SET.get()(to, 0, len) };
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Starts to load bytes into the processor's second cache, which takes more requests at a time than
/// the first. A hint: it neither waits nor fails.
///
/// Measured for 4 KiB at random out of 64 MiB, a copy with a prefetch of the next: 202 ns; into the
/// first cache: 315 ns; without: 285 ns.
#[inline]
pub(super) fn prefetch(from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..len).step_by(LINE) {
        let line = from.wrapping_add(at).cast();
        // SAFETY: a prefetch has no effect on memory, and an invalid address none at all.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, len, LINE);
}

/// # Safety
/// As for `memmove`.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if sync::IS_MODEL_CHECKED {
        // The model checker can switch threads before the copy and in its middle.
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

/// A function that the compiler does not know at compile time.
struct Opaque<F>(F);

impl<F: std::marker::Copy> Opaque<F> {
    #[inline]
    fn get(&self) -> F {
        // SAFETY: a valid value, which never changes. A volatile read hides it from the compiler,
        // and other than `black_box` stores nothing.
        unsafe { std::ptr::from_ref(&self.0).read_volatile() }
    }
}

// memmove: a caller's buffer may be a page that it has locked, even the one that it reads.
static OPAQUE_COPY: Opaque<Copy> = Opaque(memmove);
static OPAQUE_SET: Opaque<Set> = Opaque(memset);
