//! The bytes that a server reads from the client of a remote share: handshake and frames.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_remote::fuzzing::server(data));
