//! What a server reads of a client of a remote share: handshake and frames.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_remote::fuzzing::server(data));
