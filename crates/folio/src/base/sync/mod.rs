//! Locks, atomics, threads and statics, in one module so that a model checker can replace them.
//!
//! `cargo rustc -p folio --lib --profile test -- --cfg folio_model_check` builds the tests with
//! those of shuttle. It runs the threads of a test one at a time, and picks the thread to run
//! before each operation on shared data.
//!
//! `RUSTFLAGS="--cfg folio_loom" cargo test -p folio --lib --target-dir target/loom loom_check`
//! runs tests with those of loom. It tries every order of steps of a small test, and every value
//! that the memory orders permit a load to return.

#[cfg(all(test, any(folio_model_check, folio_loom)))]
mod checked;
#[cfg(not(all(test, any(folio_model_check, folio_loom))))]
mod native;
#[cfg(all(test, folio_model_check))]
pub(crate) mod schedules;

#[cfg(all(test, any(folio_model_check, folio_loom)))]
pub(crate) use checked::*;
#[cfg(not(all(test, any(folio_model_check, folio_loom))))]
pub(crate) use native::*;
