//! Extended attributes, in inodes and in blocks of their own.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::xattr(data));
