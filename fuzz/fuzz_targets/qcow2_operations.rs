//! Operations on the disk of a qcow2 image, compared with plain memory.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::qcow2_operations(data));
