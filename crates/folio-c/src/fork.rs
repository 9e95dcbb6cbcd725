//! Detection of children of fork(2), where every call fails: their parent's locks may be held by
//! threads that the child does not have.

use std::sync::atomic::{AtomicBool, Ordering};

/// A call was made in this process or in a parent.
static IS_USED: AtomicBool = AtomicBool::new(false);
/// This process is a child of one that had made calls.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Run by the dynamic linker, or by the start code of a static program, before any call.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
    // SAFETY: the handler stays in memory as long as the library, and glibc drops it with that.
    unsafe { libc::pthread_atfork(None, None, Some(note_child)) };
}

extern "C" fn note_child() {
    IS_CHILD.store(IS_USED.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Notes that the library has state from now on. Called before the first state is made.
pub(crate) fn note_use() {
    IS_USED.store(true, Ordering::Relaxed);
}

/// Returns whether the parent of this process had made calls.
#[inline]
pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}
