//! Requests of a client of `folio run --direct`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_direct::fuzzing::requests(data));
