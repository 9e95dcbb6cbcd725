//! An erofs that is checked.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_erofs::fuzzing::erofs_check(data));
