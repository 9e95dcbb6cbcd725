//! FUSE messages of a guest or a remote client.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuse::fuzzing::requests(data));
