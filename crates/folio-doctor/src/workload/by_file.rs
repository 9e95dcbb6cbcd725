//! The calls of the critical path by part and file, and their sums by mount.

use super::part::{Cost, FileCost, Part};
use super::timeline::{SmallCalls, Span};
use folio_interpose::{FileId, Tracker};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// Files of a report.
const FILES_MAX: usize = 20;

/// Calls of one part on one file.
#[derive(Default)]
struct Calls {
    calls: u64,
    wait_ns: u64,
    wall_ns: u64,
    bytes: u64,
    device_bytes: u64,
    replacements: u64,
    longest_ns: u64,
    /// Of syncs: bytes that were written before the last one.
    synced_bytes: u64,
}

/// Small calls of a process on a file; of a loop that copies, the time is that of both files.
pub(super) struct SmallLoop {
    pub(super) file: FileId,
    pub(super) is_write: bool,
    pub(super) small: SmallCalls,
}

/// The calls that waited, by part and file.
#[derive(Default)]
pub(super) struct CallsByFile(HashMap<(Part, Option<FileId>), Calls>);

impl CallsByFile {
    pub(super) fn add(&mut self, part: Part, span: &Span, wait_ns: u64) {
        let found = self.0.entry((part, span.file)).or_default();
        found.calls += 1;
        found.wait_ns += wait_ns;
        found.wall_ns += span.wall_ns;
        if span.moves_bytes() {
            found.bytes += span.result.max(0) as u64;
        } else if part == Part::Fsync {
            let written = span.written_bytes;
            // Opened again, a file begins with none.
            found.bytes += written.checked_sub(found.synced_bytes).unwrap_or(written);
            found.synced_bytes = written;
        }
        found.device_bytes += span.read_bytes;
        found.replacements += u64::from(span.is_replacement);
        found.longest_ns = found.longest_ns.max(wait_ns);
    }

    /// Returns the costs by part and mount.
    pub(super) fn costs(
        &self,
        tracker: &Tracker,
        mut mount_of: impl FnMut(Option<FileId>) -> usize,
    ) -> Vec<Cost> {
        let mut costs: BTreeMap<(Part, usize), (u64, Cost)> = BTreeMap::new();
        for ((part, file), calls) in &self.0 {
            let mount = mount_of(*file);
            let empty = Cost::new(*part, mount);
            let (longest_ns, cost) = costs.entry((*part, mount)).or_insert((0, empty));
            cost.calls += calls.calls;
            cost.files
                .extend(file.map(|file| tracker.path(file).to_owned()));
            cost.wait_ns += calls.wait_ns;
            cost.wall_ns += calls.wall_ns;
            cost.bytes += calls.bytes;
            cost.device_bytes += calls.device_bytes;
            cost.replacements += calls.replacements;
            if calls.longest_ns >= *longest_ns {
                *longest_ns = calls.longest_ns;
                cost.example = file.map(|file| tracker.path(file).to_owned());
            }
        }
        let mut costs: Vec<_> = costs.into_values().map(|(_, cost)| cost).collect();
        costs.iter_mut().for_each(|cost| cost.files.sort_unstable());
        costs
    }

    /// Returns the files with the most time, in waits and small calls.
    pub(super) fn files(
        &self,
        small: &[SmallLoop],
        tracker: &Tracker,
        mut mount_of: impl FnMut(Option<FileId>) -> usize,
    ) -> Vec<FileCost> {
        let waits = self.0.iter().filter_map(|((part, file), calls)| {
            let wait = [calls.calls, calls.bytes, calls.wait_ns, calls.wait_ns];
            // A wait for a processor is not for the file.
            (*part != Part::Processor).then_some(((*file)?, *part, wait))
        });
        let small = small.iter().map(|SmallLoop { file, small, .. }| {
            let sums = [small.calls, small.bytes, 0, small.ns];
            (*file, Part::TinyBuffers, sums)
        });
        // The sums, and the part with the most time.
        let mut files: HashMap<FileId, ([u64; 4], (u64, Part))> = HashMap::new();
        for (file, part, found) in waits.chain(small) {
            let (sums, most) = files.entry(file).or_insert(([0; 4], (0, part)));
            sums.iter_mut()
                .zip(found)
                .for_each(|(sum, found)| *sum += found);
            *most = (*most).max((found[3], part));
        }
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by_key(|(file, (sums, _))| (Reverse(sums[3]), *file));
        files.truncate(FILES_MAX);
        let file = |(file, (sums, (_, part))): (FileId, ([u64; 4], (u64, Part)))| {
            let [calls, bytes, wait_ns, cost_ns] = sums;
            FileCost {
                path: PathBuf::from(tracker.path(file)),
                mount: mount_of(Some(file)),
                part,
                calls,
                bytes,
                wait_ns,
                cost_ns,
            }
        };
        files.into_iter().map(file).collect()
    }
}
