//! Tests of the parts of qcow2 together.

mod header_cuts;
#[cfg(folio_model_check)]
mod model_check;
mod power_cuts;
#[cfg(not(folio_model_check))]
mod published;
mod reserve;
