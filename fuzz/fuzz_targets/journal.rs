//! The log of a journal that is replayed, fast commits included.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::journal(data));
