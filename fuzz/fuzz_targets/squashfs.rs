//! A squashfs that is mounted and read.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::squashfs(data));
