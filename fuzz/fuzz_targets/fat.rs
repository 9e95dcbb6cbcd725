//! A FAT that is mounted, read and changed.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::fat::fat(data));
