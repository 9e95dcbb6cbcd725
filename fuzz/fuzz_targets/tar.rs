//! A tar archive, compressed or not, that is unpacked and written again.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_tree::fuzzing::tar(data));
