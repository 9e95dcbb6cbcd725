//! The fuzz target's entry: a hot set to load. Not public API.

use crate::hotset::{Match, load};

/// First bytes of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Loads `data` as a hot set. Lines without compression are compressed first, so that damage
/// reaches the code behind the checksums of zstd.
pub fn hot_set(data: &[u8]) {
    let compressed: Vec<u8>;
    let set = if data.starts_with(&ZSTD_MAGIC) {
        data
    } else {
        let Ok(bytes) = zstd::encode_all(data, 1) else {
            return;
        };
        compressed = bytes;
        &compressed
    };
    for rule in [Match::SameFile, Match::Unchanged] {
        if let Ok((files, report)) = load(set, rule) {
            assert_eq!(files.len() as u64, report.files, "the report is wrong");
            for range in files.iter().flat_map(|file| &file.ranges) {
                assert!(range.start < range.end, "an empty range");
            }
        }
    }
}

#[cfg(test)]
#[path = "../../../tests/fuzz_corpus/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_set_inputs_do_not_panic() {
        replay::run("hot_set", hot_set);
    }
}
