//! Extent trees and their inodes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::extent(data));
