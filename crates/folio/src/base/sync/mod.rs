//! Locks, atomics, threads and statics, in one module so that a model checker can replace them.
//!
//! `cargo rustc -p folio --lib --profile test -- --cfg folio_model_check` builds the tests with
//! those of shuttle. It runs the threads of a test one at a time, and picks the thread to run
//! before each operation on shared data.

#[cfg(all(test, folio_model_check))]
mod checked;
#[cfg(not(all(test, folio_model_check)))]
mod native;

#[cfg(all(test, folio_model_check))]
pub(crate) use checked::*;
#[cfg(not(all(test, folio_model_check)))]
pub(crate) use native::*;
