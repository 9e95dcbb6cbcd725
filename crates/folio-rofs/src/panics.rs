//! Panics of the crates on damaged images, as errors.

use folio::base::{Errno, Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the crates, whose panics on damaged images become errors.
pub(crate) fn without_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let text = "damaged: the reader of this file system panicked";
        Err(Error::new(Errno::UCLEAN, text))
    })
}
