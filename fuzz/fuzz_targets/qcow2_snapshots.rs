//! The snapshot table of a qcow2 image, and the snapshots' tables.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::qcow2_snapshots(data));
