//! Locks, atomics, threads and statics, from one place so that a model checker can take their
//! place.
//!
//! `RUSTFLAGS="--cfg folio_model_check" cargo test -p folio --lib model_check` puts shuttle's in:
//! it runs the threads of a test one at a time and picks, before each operation on something
//! shared, which of them goes on.

#[cfg(all(test, folio_model_check))]
mod checked;
#[cfg(not(all(test, folio_model_check)))]
mod native;

#[cfg(all(test, folio_model_check))]
pub(crate) use checked::*;
#[cfg(not(all(test, folio_model_check)))]
pub(crate) use native::*;
