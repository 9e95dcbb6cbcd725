//! Panics of the crates on damaged images, as errors.

use crate::base::{Errno, Error, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// The code of a crate runs on this thread, and its panics are caught.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of the crates, whose panics on damaged images become errors, without a message.
pub(crate) fn without_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    silence_caught();
    let outer = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(outer);
    result.unwrap_or_else(|_| {
        let text = "damaged: the reader of this file system panicked";
        Err(Error::new(Errno::UCLEAN, text))
    })
}

/// Puts a panic hook before the program's own that drops the messages of caught panics.
fn silence_caught() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let program = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_CAUGHT.get() {
                program(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caught_panic_becomes_an_error() {
        let failed = without_panic::<()>(|| panic!("an index"));
        assert_eq!(failed.unwrap_err().errno(), Errno::UCLEAN);
        assert!(!IS_CAUGHT.get());
    }
}
