//! All objects of a volume, which is then opened, read and checked.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_volume::fuzzing::store(data));
