//! What a client reads of a server of a remote share: handshake and frames.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_remote::fuzzing::client(data));
