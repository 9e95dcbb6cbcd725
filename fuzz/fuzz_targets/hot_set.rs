//! A hot set of the page cache to load.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_pagecache::fuzzing::hot_set(data));
