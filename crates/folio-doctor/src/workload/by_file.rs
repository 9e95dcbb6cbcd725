//! The calls of the critical path by part and file, and their sums by mount.

use super::part::{Cost, FileCost, Part};
use super::strip::{Interval, Strip, spread};
use super::timeline::{SmallCalls, Span};
use folio_interpose::{FileId, Op, Tracker};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// Files of a report.
const FILES_MAX: usize = 20;

/// Calls of one part on one file.
#[derive(Default)]
struct Calls {
    calls: u64,
    opens: u64,
    slept: u64,
    wait_ns: u64,
    wall_ns: u64,
    bytes: u64,
    device_bytes: u64,
    replacements: u64,
    longest_ns: u64,
}

/// Small calls of a process on a file, and of a loop that copies those on the other file.
pub(super) struct SmallLoop {
    pub(super) file: FileId,
    pub(super) is_write: bool,
    pub(super) small: SmallCalls,
    /// The other file, if it is on a mount.
    pub(super) other_file: Option<FileId>,
    pub(super) other: SmallCalls,
    /// Time of the calls on both files that is on the critical path.
    pub(super) path_ns: u64,
}

impl SmallLoop {
    /// Returns the time of the calls on both files.
    pub(super) fn all_ns(&self) -> u64 {
        self.small.ns + self.other.ns
    }

    /// Splits the processor time of the calls from the rest; returns what was found.
    pub(super) fn convert(&self, strip: &mut Strip) -> u64 {
        let within = Interval {
            from: self.small.first_ns,
            to: self.small.last_ns,
        };
        let all_ns = self.all_ns();
        all_ns - strip.convert([Part::Cpu, Part::TinyBuffers], within, all_ns)
    }

    /// Returns the calls, bytes, waits and time on the critical path of each file.
    fn files(&self) -> impl Iterator<Item = (FileId, [u64; 4])> {
        let files = [(Some(self.file), self.small), (self.other_file, self.other)];
        let weights = [self.small.ns, self.other.ns];
        let own_ns = spread(self.path_ns, &weights).next().unwrap_or(0);
        let shares = [own_ns, self.path_ns - own_ns];
        files
            .into_iter()
            .zip(shares)
            .filter_map(|((file, small), path_ns)| {
                Some((file?, [small.calls, small.bytes, 0, path_ns]))
            })
    }
}

/// The calls that waited, by part and file.
#[derive(Default)]
pub(super) struct CallsByFile(HashMap<(Part, Option<FileId>), Calls>);

impl CallsByFile {
    pub(super) fn add(&mut self, part: Part, span: &Span, wait_ns: u64) {
        let found = self.0.entry((part, span.file)).or_default();
        found.calls += 1;
        let is_open = matches!(span.op, Op::Open | Op::OpenStream | Op::OpenDirectory);
        found.opens += u64::from(is_open);
        found.slept += u64::from(span.switches > 0);
        found.wait_ns += wait_ns;
        found.wall_ns += span.wall_ns;
        if span.moves_bytes() {
            found.bytes += span.result.max(0) as u64;
        } else if part == Part::Fsync {
            found.bytes += span.unsynced_bytes;
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
            cost.opens += calls.opens;
            cost.slept += calls.slept;
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
            // The bytes of a sync are those of the writes before it.
            let bytes = if *part == Part::Fsync { 0 } else { calls.bytes };
            let wait = [calls.calls, bytes, calls.wait_ns, calls.wait_ns];
            // A wait for a processor is not for the file.
            (*part != Part::Processor).then_some(((*file)?, *part, wait))
        });
        let small = small.iter().flat_map(SmallLoop::files);
        let small = small.map(|(file, sums)| (file, Part::TinyBuffers, sums));
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
