//! What a guest or a remote client asks by FUSE messages.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuse::fuzzing::requests(data));
