//! The bytes that a client sends to an NBD server: handshake, options and requests.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_export::nbd::fuzzing::server(data));
