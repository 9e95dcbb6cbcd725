//! Tests of the parts of qcow2 together.

mod header_cuts;
mod power_cuts;
mod reserve;
