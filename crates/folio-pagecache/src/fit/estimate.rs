//! The estimate without a control group: how the resident part of a program's files grows.
//!
//! A program that touches `s(t)` distinct pages in `t` seconds has `s'(t)` misses per second with
//! memory for `s(t)` pages (the working-set theory of Denning). After the files were dropped, the
//! growth of their residency is `s(t)`, readahead included.

use super::processes;
use super::report::Point;
use super::request::Fit;
use crate::residency::ResidencyReport;
use crate::survey::{State, drop_file};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Samples of the whole time; each two neighbors are a point of the curve.
const SAMPLES: f64 = 40.0;

/// The files of a tree of processes, with all that were open at an earlier sample.
pub(super) struct Files {
    root: u32,
    /// Whether each file is dropped from memory when it is first seen.
    is_cold: bool,
    seen: BTreeSet<PathBuf>,
}

impl Files {
    pub(super) fn new(root: u32, is_cold: bool) -> Self {
        let seen = BTreeSet::new();
        Self {
            root,
            is_cold,
            seen,
        }
    }

    /// Returns the resident bytes of the files; `None` after the processes have ended.
    pub(super) fn resident_bytes(&mut self) -> io::Result<Option<u64>> {
        let tree = processes::tree(self.root);
        if tree.is_empty() {
            return Ok(None);
        }
        for path in processes::all_files(tree) {
            if !self.seen.contains(&path) {
                if self.is_cold {
                    // Files of other users stay: they are part of the memory that is reported.
                    let _ = drop_file(&path, false);
                }
                self.seen.insert(path);
            }
        }
        Ok(Some(self.seen.iter().map(|path| resident(path)).sum()))
    }
}

/// Returns the bytes of a file in memory; 0 if that is unknown.
pub(super) fn resident(path: &Path) -> u64 {
    match State::look(path).map(|state| state.known) {
        Ok(ResidencyReport::Known(found)) => found.resident_bytes,
        _ => 0,
    }
}

impl Fit<'_> {
    /// Samples the files until the time is over or the processes have ended.
    pub(super) fn sample(&mut self, files: &mut Files) -> io::Result<Vec<Point>> {
        let mut points = Vec::new();
        let start = Instant::now();
        let mut last = files.resident_bytes()?.map(|bytes| (bytes, start));
        while let Some((before, then)) = last
            && start.elapsed() < self.duration
            && self.wait(self.duration.as_secs_f64() / SAMPLES)
        {
            let now = Instant::now();
            last = files.resident_bytes()?.map(|bytes| (bytes, now));
            let Some((after, _)) = last else {
                break;
            };
            let seconds = (now - then).as_secs_f64();
            let pages = after.saturating_sub(before) as f64 / rustix::param::page_size() as f64;
            let point = Point {
                cache_bytes: before.midpoint(after),
                misses_per_s: pages / seconds,
                stalled_percent: 0.0,
                seconds,
            };
            points.push(point);
            (self.each)(&point);
        }
        Ok(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn resident_bytes_grow_with_reads_and_end() {
        let mut file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(file.reopen().unwrap())
            .spawn()
            .unwrap();
        let mut files = Files::new(child.id(), true);
        let cold = files.resident_bytes().unwrap().unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap().len(), 1 << 20);
        let warm = files.resident_bytes().unwrap().unwrap();
        // The libraries of `cat` may be mapped in between.
        assert!((1 << 20..8 << 20).contains(&(warm - cold)), "{cold} {warm}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(files.resident_bytes().unwrap(), None);
    }
}
