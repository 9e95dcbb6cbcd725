//! Extent trees and the inodes they hang on.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::extent(data));
