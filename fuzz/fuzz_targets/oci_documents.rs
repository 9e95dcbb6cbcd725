//! Index, manifest and configuration of a container image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_tree::fuzzing::documents(data));
