//! Reads of files that a command has just brought in: what its pages are worth. Large folios are
//! copied faster than single pages.

use super::tree::{LARGE_FILES, Tree, Warmer};
use crate::outcome::{Context, Outcome};
use crate::random::Random;
use crate::report::Sample;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// The jobs, after each command.
pub(super) const IN_ORDER: &str = "all files read again, in order, 128 KiB a call";
pub(super) const RANDOM: &str = "one random read of 16 KiB";

/// Passes, of which the fastest counts: a pause of the machine says nothing about pages.
const PASSES: u32 = 3;
const PIECE: usize = 128 << 10;
const SMALL_PIECE: usize = 16 << 10;
/// Random reads of a pass.
const READS: u64 = 20_000;

/// Reads in order after a command, in MiB a second.
pub(super) fn in_order(tree: &Tree, warmer: &Warmer) -> Outcome<Sample> {
    let mut buf = vec![0; PIECE];
    fastest(tree, warmer, |files| {
        let mut bytes = 0;
        for (file, len_bytes) in files {
            for offset in (0..*len_bytes).step_by(PIECE) {
                bytes += file.read_at(&mut buf, offset).at("read")?;
            }
        }
        Ok(bytes as f64 / f64::from(1 << 20))
    })
}

/// Random reads after a command, in seconds for each.
pub(super) fn at_random(tree: &Tree, warmer: &Warmer) -> Outcome<Sample> {
    let mut buf = vec![0; SMALL_PIECE];
    let mut random = Random::new(1);
    let sample = fastest(tree, warmer, |files| {
        for _ in 0..READS {
            let (file, len_bytes) = &files[random.below(LARGE_FILES) as usize];
            let place = random.below((len_bytes / SMALL_PIECE as u64).max(1));
            file.read_at(&mut buf, place * SMALL_PIECE as u64)
                .at("read")?;
        }
        Ok(READS as f64)
    })?;
    Ok(sample.map(|per_second| 1.0 / per_second.max(1e-9)))
}

/// Brings all in, then does `pass` several times; the figure is its best result in a second.
fn fastest(
    tree: &Tree,
    warmer: &Warmer,
    mut pass: impl FnMut(&[(File, u64)]) -> Outcome<f64>,
) -> Outcome<Sample> {
    tree.cold()?;
    let mut sample = tree.time(warmer)?;
    sample.evidence.cpu_seconds = None;
    let files = tree.open()?;
    sample.value = 0.0;
    for _ in 0..PASSES {
        let start = Instant::now();
        let done = pass(&files)?;
        sample.value = sample
            .value
            .max(done / start.elapsed().as_secs_f64().max(1e-9));
    }
    Ok(sample)
}
