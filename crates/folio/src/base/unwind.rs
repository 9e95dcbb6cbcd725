//! Panics of code that the embedding program supplies: devices, file systems, listeners.
//!
//! A thread of the kernel must survive them, and so must counts of I/O in flight. So such code is
//! called by [`catch_panic`] wherever the kernel has state that an unwind would leave half done.

use super::{Errno, Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `call`; a panic becomes EIO. `callee` names the code for the message.
///
/// The panic hook of the program has reported the panic before.
pub(crate) fn catch_panic<T>(callee: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwind safe: the callee's state is its own, and the caller's changes after the call.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("without a message");
        Err(Error::new(
            Errno::IO,
            format!("{callee} panicked: {message}"),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_eio_with_its_message() {
        let number = 7;
        let failed = catch_panic::<()>("the device", || panic!("sector {number}"));
        let error = failed.unwrap_err();
        assert_eq!(error.errno(), Errno::IO);
        assert!(error.to_string().contains("the device panicked: sector 7"));
        assert_eq!(catch_panic("the device", || Ok(3)).unwrap(), 3);
    }
}
