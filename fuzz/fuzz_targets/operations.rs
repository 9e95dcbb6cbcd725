//! System calls on ext4, compared with the same on a ramfs.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::operations(data));
