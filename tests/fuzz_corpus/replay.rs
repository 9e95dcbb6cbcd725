//! The replay of a fuzz target on stable Rust: its stored corpus, mutations of it, random inputs.

use std::fs;
use std::path::Path;

/// Random and mutated inputs per target; `FOLIO_FUZZ_CASES` overrides it.
const CASES: u64 = 40;
/// Bytes of a random input.
const RANDOM_BYTES: u64 = 200;
/// Longest mutated input, in bytes.
const MUTATED_BYTES_MAX: usize = 256 << 10;
/// Numbers at which lengths and offsets go wrong.
const LIMITS: [u64; 10] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

fn cases() -> u64 {
    std::env::var("FOLIO_FUZZ_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(CASES)
}

/// Runs `target` on all stored inputs, and on random ones and mutations in turn.
pub(crate) fn run(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(name);
    let listed =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    // The mutations must not depend on the order of the host's directory.
    paths.sort();
    assert!(
        !paths.is_empty(),
        "{}: the corpus is empty",
        folder.display()
    );
    let stored: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    for (path, bytes) in paths.iter().zip(&stored) {
        let outcome = std::panic::catch_unwind(|| target(bytes));
        assert!(outcome.is_ok(), "{name}: {} panics", path.display());
    }
    for seed in 0..cases() {
        let bytes = input(seed, &stored);
        let outcome = std::panic::catch_unwind(|| target(&bytes));
        assert!(outcome.is_ok(), "{name}: seed {seed} panics");
    }
}

/// Returns the input of a seed: random bytes, or a stored input with a few changes.
fn input(seed: u64, stored: &[Vec<u8>]) -> Vec<u8> {
    let mut random = Random(seed);
    if seed.is_multiple_of(8) {
        return (0..RANDOM_BYTES).map(|_| random.below(256) as u8).collect();
    }
    let mut bytes = stored[random.below(stored.len())].clone();
    for _ in 0..=random.below(6) {
        mutate(&mut bytes, &mut random, stored);
    }
    bytes.truncate(MUTATED_BYTES_MAX);
    bytes
}

/// Makes one change: of a bit, a byte, a number, a digit, or a range.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random, stored: &[Vec<u8>]) {
    let at = random.below(bytes.len() + 1);
    let end = at + random.below((bytes.len() - at).min(64) + 1);
    match random.below(8) {
        0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        2 if at < bytes.len() => bytes[at] = random.below(256) as u8,
        3 => {
            let number = LIMITS[random.below(LIMITS.len())].wrapping_sub(random.below(3) as u64);
            let width = 1 << random.below(4);
            let numbers = [number.to_le_bytes(), number.to_be_bytes()];
            let encoded = match random.below(2) {
                0 => &numbers[0][..width],
                _ => &numbers[1][8 - width..],
            };
            let count = width.min(bytes.len() - at);
            bytes[at..at + count].copy_from_slice(&encoded[..count]);
        }
        4 => {
            let digit = bytes[at..].iter_mut().find(|byte| byte.is_ascii_digit());
            digit
                .into_iter()
                .for_each(|byte| *byte = b"01789"[random.below(5)]);
        }
        5 => drop(bytes.drain(at..end)),
        6 => {
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        _ => {
            let other = &stored[random.below(stored.len())];
            let from = random.below(other.len() + 1);
            let count = random.below((other.len() - from).min(512) + 1);
            bytes.splice(at..end, other[from..from + count].iter().copied());
        }
    }
}

/// A linear congruential generator.
struct Random(u64);

impl Random {
    /// Returns a number below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}
