//! Compressed clusters of a qcow2 image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::qcow2_compressed(data));
