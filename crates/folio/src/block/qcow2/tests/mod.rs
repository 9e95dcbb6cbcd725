//! Tests of the parts of qcow2 together.

mod power_cuts;
mod reserve;
