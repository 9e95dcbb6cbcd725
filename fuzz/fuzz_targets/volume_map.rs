//! The entries of a volume's map, and its other stored records.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| folio_volume::fuzzing::map(data));
