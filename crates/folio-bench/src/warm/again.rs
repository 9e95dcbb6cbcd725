//! Reads of files that a command has just brought in: what its pages are worth. Large folios are
//! copied faster than single pages.

use super::tree::{Tree, Warmer, scattered};
use crate::report::{Sample, with_context};
use crate::run::Case;
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

/// Reads in order, after each of these commands.
pub(super) fn in_order<'a>(tree: &'a Tree, warmers: &[Warmer]) -> Vec<Case<'a>> {
    let cases = warmers.iter().map(|warmer| {
        case(tree, warmer, IN_ORDER, |files| {
            let mut buf = vec![0; PIECE];
            let mut bytes = 0;
            for (file, len_bytes) in files {
                let mut at = 0;
                while at < *len_bytes {
                    match read(file, &mut buf, at)? {
                        0 => break,
                        count => at += count,
                    }
                }
                bytes += at;
            }
            Ok(bytes as f64 / f64::from(1 << 20))
        })
    });
    cases.collect()
}

/// Random reads, after each of these commands.
pub(super) fn at_random<'a>(tree: &'a Tree, warmers: &[Warmer]) -> Vec<Case<'a>> {
    let cases = warmers.iter().map(|warmer| {
        let case = case(tree, warmer, RANDOM, |files| {
            let mut buf = vec![0; SMALL_PIECE];
            for number in 0..READS {
                let (file, len_bytes) = &files[scattered(number, files.len() as u64) as usize];
                let pieces = (len_bytes / SMALL_PIECE as u64).max(1);
                let at = scattered(number + 1, pieces) * SMALL_PIECE as u64;
                read(file, &mut buf, at)?;
            }
            Ok(READS as f64)
        });
        case.map_value(|per_second| 1.0 / per_second.max(1e-9))
    });
    cases.collect()
}

fn read(file: &File, buf: &mut [u8], at: u64) -> Result<u64, String> {
    let count = file.read_at(buf, at).map_err(with_context("read"))?;
    Ok(count as u64)
}

/// Brings all in, then does `pass` several times; the value is its result in a second.
fn case<'a>(
    tree: &'a Tree,
    warmer: &Warmer,
    job: &str,
    pass: impl Fn(&[(File, u64)]) -> Result<f64, String> + 'a,
) -> Case<'a> {
    let warmer = warmer.clone();
    Case::new(job, warmer.name, move || {
        tree.cold()?;
        let warmed = tree.time(&warmer)?;
        let files = tree.open()?;
        let mut best = 0.0_f64;
        for _ in 0..PASSES {
            let start = Instant::now();
            let done = pass(&files)?;
            best = best.max(done / start.elapsed().as_secs_f64().max(1e-9));
        }
        let mut evidence = warmed.evidence;
        evidence.cpu_seconds = None;
        Ok(Sample {
            value: best,
            evidence,
            label: warmed.label,
        })
    })
}
