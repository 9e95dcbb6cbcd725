//! The superblock, group descriptors and bitmaps of an image that is then mounted and used.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::superblock(data));
