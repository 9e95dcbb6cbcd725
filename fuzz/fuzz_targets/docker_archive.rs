//! The documents in an archive of `docker save`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_tree::fuzzing::docker_archive(data));
