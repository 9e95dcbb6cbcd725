//! The refcount table of a qcow2 image, and its blocks.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_fuzz::qcow2_refcounts(data));
