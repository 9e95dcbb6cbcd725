//! The snapshot table of a qcow2 image and the tables of its snapshots.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::qcow2_snapshots(data));
