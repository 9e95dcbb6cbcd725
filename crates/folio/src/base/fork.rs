//! Handlers that run in children of fork(2).

use super::sync;

/// Has `handler` run in each later child of fork(2), by the thread that called fork. Of two threads
/// that register it at once, both may succeed: running it twice must do no harm.
#[allow(unsafe_code)]
pub(crate) fn run_in_children(handler: extern "C" fn()) {
    if !sync::IS_MODEL_CHECKED {
        // SAFETY: the handler stays in memory as long as the library, and the C library drops it
        // with that. No memory for it: the host is about to end the process anyway.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(handler)) };
    }
}
