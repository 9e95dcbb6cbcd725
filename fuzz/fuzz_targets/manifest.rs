//! A manifest that is applied to a small file system.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_tree::fuzzing::manifest(data));
