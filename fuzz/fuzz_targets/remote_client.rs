//! The bytes that a client reads from the server of a remote share: handshake and frames.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_remote::fuzzing::client(data));
