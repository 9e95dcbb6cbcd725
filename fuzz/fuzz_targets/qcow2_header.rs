//! The header of a qcow2 image, with its extensions.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::qcow2_header(data));
