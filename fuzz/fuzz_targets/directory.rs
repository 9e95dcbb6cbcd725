//! Directories: linear blocks, hash trees and their inodes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::directory(data));
