//! The critical path: the main thread of the command, and of each wait for a child the child.

use super::by_file::{CallsByFile, SmallLoop};
use super::mounted::Mounted;
use super::part::{Cost, FileCost, Part, Tiny, Unreached};
use super::strip::{Interval, Strip};
use super::timeline::{O_CREAT, Process, SmallCalls, Span, Thread, Timelines};
use super::visit::Visit;
use folio_interpose::{FileId, Op, Tracker};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Flags of open(2) by which each write waits for the disk: O_SYNC and O_DSYNC.
const SYNC_FLAGS: u64 = 0o4_010_000;
/// Waits for children that are followed into each other at most.
const DEPTH_MAX: usize = 64;
/// Shorter waits outside of files are not followed into a child, in nanoseconds.
const FOLLOWED_NS: u64 = 1_000_000;
/// The least time for which the scheduler lets another program run (Linux: base_slice_ns), and
/// less: a thread that waits longer without a switch of its own was preempted.
const SLICE_NS: u64 = 500_000;
/// Small calls on a file that are worth a finding.
const SMALL_CALLS_MIN: u64 = 1000;

/// A process on the critical path.
#[derive(Clone, Copy)]
struct Position {
    pid: u32,
    /// Waits that were followed to it.
    depth: usize,
    /// It is the other side of a pipe: it waits for that of the path in turn.
    is_peer: bool,
}

/// The position of the command itself.
fn first_position(pid: u32) -> Position {
    Position {
        pid,
        depth: 0,
        is_peer: false,
    }
}

/// The wall time, as it is split.
pub(super) struct Split<'a> {
    timelines: &'a Timelines,
    tracker: &'a Tracker,
    mounted: &'a mut Mounted,
    /// The parts of the wall time, over the run.
    path: Strip,
    /// Time that a thread was on the path in a bucket, by process, thread and bucket.
    on_path: HashMap<(u32, u32, usize), u64>,
    calls: CallsByFile,
    unreached: BTreeMap<String, u64>,
    visited: HashSet<u32>,
    mounts: HashMap<FileId, usize>,
}

/// The result.
pub(super) struct Found {
    pub(super) parts: Vec<(Part, u64)>,
    pub(super) path: Strip,
    pub(super) costs: Vec<Cost>,
    pub(super) files: Vec<FileCost>,
    pub(super) tiny: Vec<Tiny>,
    pub(super) unreached: Vec<Unreached>,
}

impl<'a> Split<'a> {
    pub(super) fn new(
        timelines: &'a Timelines,
        tracker: &'a Tracker,
        mounted: &'a mut Mounted,
        whole: Interval,
    ) -> Self {
        Self {
            timelines,
            tracker,
            mounted,
            path: Strip::new(whole),
            on_path: HashMap::new(),
            calls: CallsByFile::default(),
            unreached: BTreeMap::new(),
            visited: HashSet::new(),
            mounts: HashMap::new(),
        }
    }

    /// Splits the time of the command.
    pub(super) fn root(&mut self, pid: u32, whole: Interval, program: &str) {
        let Interval { from, to } = whole;
        let timelines = self.timelines;
        let Some(process) = timelines.processes.get(&pid) else {
            self.miss(program, whole);
            return;
        };
        let started = process.start_ns.clamp(from, to);
        let ended = process.end_ns.clamp(started, to);
        // Before the first record, the kernel loads the program; after the last, it frees it.
        let first = process
            .threads
            .get(&pid)
            .and_then(|thread| thread.readings.first());
        let cpu_ns = first.map_or(0, |first| first.cpu_ns).min(started - from);
        let before = Interval { from, to: started };
        self.path.add(Part::Cpu, before, cpu_ns);
        self.path
            .add(Part::NotFiles, before, started - from - cpu_ns);
        if process.has_ended || process.unreached.is_some() {
            self.process(started, to.max(ended), first_position(pid));
        } else {
            self.process(started, ended, first_position(pid));
            self.miss(program, Interval { from: ended, to });
        }
    }

    fn miss(&mut self, program: &str, within: Interval) {
        let ns = within.to - within.from;
        self.path.add(Part::Unknown, within, ns);
        if ns > 0 {
            *self.unreached.entry(program.to_owned()).or_default() += ns;
        }
    }

    /// Splits the time of a process.
    fn process(&mut self, from: u64, to: u64, at: Position) {
        let (timelines, pid) = (self.timelines, at.pid);
        self.visited.insert(pid);
        let Some(process) = timelines.processes.get(&pid) else {
            let name = timelines.spawned.get(&pid).map_or("?", String::as_str);
            self.miss(name, Interval { from, to });
            return;
        };
        let mut until = to;
        if let Some((since, program)) = &process.unreached {
            until = (*since).clamp(from, to);
            self.miss(program, Interval { from: until, to });
        }
        self.thread(process, pid, Interval { from, to: until }, at);
    }

    fn thread(&mut self, process: &Process, tid: u32, within: Interval, at: Position) {
        let (from, to) = (within.from, within.to);
        let Some(thread) = process.threads.get(&tid) else {
            self.path.add(Part::NotFiles, within, to - from);
            return;
        };
        let mut visit = Visit::new(process, thread, within, &self.path);
        for (call, span) in thread.calls(within) {
            let part = self.part_of(span);
            let is_followed = part == Part::NotFiles && span.wait_ns >= FOLLOWED_NS;
            if is_followed && self.follow(process, span, call, at) {
                visit.skip(call, &self.path);
            } else if part != Part::NotFiles {
                let wait = span.wait_ns.min(call.to - call.from);
                visit.wait(part, call, wait, &mut self.path);
                self.calls.add(part, span, wait);
            }
        }
        for (bucket, own_ns) in visit.finish(&mut self.path) {
            *self.on_path.entry((at.pid, tid, bucket)).or_default() += own_ns;
        }
    }

    /// Splits the time of a wait by what it waits for; returns whether that is known.
    fn follow(&mut self, process: &Process, span: &Span, within: Interval, at: Position) -> bool {
        let (from, to, pid, depth) = (within.from, within.to, at.pid, at.depth);
        let timelines = self.timelines;
        if depth >= DEPTH_MAX {
            return false;
        }
        if span.op == Op::WaitThread {
            let waits = |thread: &Thread| thread.spans.iter().map(|span| span.wait_ns).sum::<u64>();
            let others = process.threads.iter().filter(|(tid, _)| **tid != pid);
            let Some((tid, _)) = others.max_by_key(|(_, thread)| waits(thread)) else {
                return false;
            };
            let depth = depth + 1;
            self.thread(process, *tid, within, Position { depth, ..at });
            return true;
        }
        let is_pipe = matches!(
            span.op,
            Op::Read | Op::ReadStream | Op::Write | Op::WriteVector | Op::WriteStream
        );
        if span.op != Op::WaitChild && !is_pipe {
            return false;
        }
        let by_result = u32::try_from(span.result).ok().filter(|child| {
            let is_child = |process: &Process| process.parent == pid;
            timelines.processes.get(child).is_some_and(is_child)
                || timelines.spawned.contains_key(child)
        });
        let overlaps = |child: &Process| child.start_ns < to && child.end_ns > from;
        let children = timelines.processes.iter();
        let running = children
            .filter(|(_, child)| child.parent == pid && overlaps(child))
            .max_by_key(|(_, child)| child.end_ns.min(to) - child.start_ns.max(from));
        let child = match (span.op, by_result) {
            (Op::WaitChild, Some(child)) => child,
            (_, _) => match running {
                Some((child, _)) => *child,
                None if is_pipe && !at.is_peer => return self.follow_peer(process, within, at),
                None => return false,
            },
        };
        let started = timelines
            .processes
            .get(&child)
            .map_or(from, |child| child.start_ns);
        let started = started.clamp(from, to);
        let before = Interval { from, to: started };
        self.path.add(Part::NotFiles, before, started - from);
        let depth = depth + 1;
        self.process(
            started,
            to,
            Position {
                pid: child,
                depth,
                ..at
            },
        );
        true
    }

    /// Splits the time of a wait for a pipe by the busiest of the processes that run beside this
    /// one: the commands of a pipeline have the shell as their parent.
    fn follow_peer(&mut self, process: &Process, within: Interval, at: Position) -> bool {
        let timelines = self.timelines;
        if !timelines.processes.contains_key(&process.parent) {
            return false;
        }
        let peers = timelines.processes.iter().filter(|(pid, peer)| {
            let overlaps = peer.start_ns <= within.from && peer.end_ns >= within.to;
            **pid != at.pid && peer.parent == process.parent && overlaps
        });
        let busiest = peers
            .map(|(pid, peer)| (self.busy_ns(*pid, peer, within), *pid))
            .max()
            .filter(|(busy_ns, _)| *busy_ns > 0);
        let Some((_, pid)) = busiest else {
            return false;
        };
        let depth = at.depth + 1;
        let is_peer = true;
        self.process(
            within.from,
            within.to,
            Position {
                pid,
                depth,
                is_peer,
            },
        );
        true
    }

    /// Returns how long a process's main thread ran or waited for files, in nanoseconds.
    fn busy_ns(&mut self, pid: u32, process: &Process, within: Interval) -> u64 {
        let Some(thread) = process.threads.get(&pid) else {
            return 0;
        };
        self.file_waits_ns(thread, within) + thread.cpu_between(within.from, within.to)
    }

    /// Returns how long a thread waited for files, in nanoseconds.
    pub(super) fn file_waits_ns(&mut self, thread: &Thread, within: Interval) -> u64 {
        let calls = thread.calls(within);
        let waits = calls.filter(|(_, span)| self.part_of(span) != Part::NotFiles);
        waits
            .map(|(call, span)| span.wait_ns.min(call.to - call.from))
            .sum()
    }

    /// Returns the part that the wait of a call is of.
    pub(super) fn part_of(&mut self, span: &Span) -> Part {
        let is_map = span.op == Op::Map;
        let mount = span.file.map(|file| self.mount_of(Some(file)));
        let has_files = is_map || mount.is_some_and(|mount| self.mounted.get(mount).has_files);
        let is_listing = matches!(span.op, Op::List | Op::SyncMap);
        if !has_files && !is_listing {
            return Part::NotFiles;
        }
        let is_served = mount.is_some_and(|mount| self.mounted.get(mount).file_system.is_served());
        // A server on this machine may take the caller's processor, and answer before it sleeps.
        let is_answered = is_served && span.wait_ns < SLICE_NS;
        if span.switches == 0 && !is_answered {
            return Part::Processor;
        }
        let is_sync_mount =
            mount.is_some_and(|mount| self.mounted.get(mount).file_system.has("sync"));
        let is_sync = is_sync_mount || span.flags & SYNC_FLAGS != 0;
        match span.op {
            // Names and attributes wait for the disk, too.
            Op::Open if is_sync_mount && span.flags & O_CREAT != 0 => Part::SyncWrites,
            Op::Rename | Op::Unlink | Op::Name | Op::Truncate | Op::Allocate if is_sync_mount => {
                Part::SyncWrites
            }
            Op::Stat | Op::StatDescriptor => Part::Attributes,
            // It waits for the writeback that the last close began.
            Op::Open if span.is_replacement && !is_served => Part::Close,
            Op::Open | Op::OpenStream | Op::OpenDirectory | Op::List => Part::OpenAndLookup,
            Op::Read | Op::ReadVector | Op::ReadStream => Part::ReadMisses,
            Op::Copy | Op::Map if span.read_bytes > 0 => Part::ReadMisses,
            Op::Write | Op::WriteVector | Op::WriteStream | Op::Copy if is_sync => Part::SyncWrites,
            Op::Write | Op::WriteVector | Op::WriteStream | Op::Copy => Part::Writes,
            Op::Sync | Op::SyncData | Op::SyncMap => Part::Fsync,
            Op::Close | Op::CloseStream => Part::Close,
            Op::Rename => Part::Rename,
            Op::Lock | Op::Control => Part::Locks,
            _ => Part::OtherFiles,
        }
    }

    /// Returns the mount of a file; that of the root directory without one.
    fn mount_of(&mut self, file: Option<FileId>) -> usize {
        let (tracker, mounted) = (self.tracker, &mut *self.mounted);
        let Some(file) = file else {
            return mounted.of(std::path::Path::new("/"));
        };
        let found = self.mounts.entry(file);
        *found.or_insert_with(|| mounted.of(tracker.path(file)))
    }

    /// Returns the time of the run.
    pub(super) fn whole(&self) -> Interval {
        self.path.whole()
    }

    pub(super) fn timelines(&self) -> &'a Timelines {
        self.timelines
    }

    /// Returns the time that threads were on the path, by process, thread and bucket.
    pub(super) fn on_path(&self) -> impl Iterator<Item = (&(u32, u32, usize), &u64)> {
        self.on_path.iter()
    }

    pub(super) fn finish(mut self) -> Found {
        let mut small: Vec<_> = self.visited.clone().into_iter().collect();
        let small = small.drain(..).flat_map(|pid| self.small_of(pid, None));
        let mut small: Vec<_> = small.collect();
        small.sort_by_key(|found| Reverse(found.all_ns()));
        for found in &mut small {
            found.path_ns = found.convert(&mut self.path);
        }
        let (whole, parts) = (self.whole(), [Part::Cpu, Part::TinyBuffers]);
        for found in &mut small {
            let left_ns = found.all_ns() - found.path_ns;
            found.path_ns += left_ns - self.path.convert(parts, whole, left_ns);
        }
        let calls = std::mem::take(&mut self.calls);
        let tracker = self.tracker;
        let mut mount_of = |file| self.mount_of(file);
        let costs = calls.costs(tracker, &mut mount_of);
        let files = calls.files(&small, tracker, &mut mount_of);
        let tiny = small.iter().map(|found| Tiny {
            path: tracker.path(found.file).to_owned(),
            mount: mount_of(Some(found.file)),
            is_write: found.is_write,
            calls: found.small.calls,
            bytes: found.small.bytes,
            new_bytes: found.small.new_bytes,
            may_be_created: found.small.may_be_created,
            ns: found.all_ns(),
            large_ns: None,
        });
        let tiny: Vec<_> = tiny.collect();
        let seconds = |ns: u64| (ns as f64 / 1e6).round() / 1e3;
        let unreached = self.unreached.iter().map(|(program, ns)| Unreached {
            program: program.clone(),
            seconds: seconds(*ns),
        });
        Found {
            parts: Part::ALL.map(|part| (part, self.path.total(part))).to_vec(),
            costs,
            files,
            tiny,
            unreached: unreached.collect(),
            path: self.path,
        }
    }

    /// Returns the files that a process, or one of its threads, reads or writes in small calls.
    pub(super) fn small_of(&mut self, pid: u32, thread: Option<u32>) -> Vec<SmallLoop> {
        let process = self.timelines.processes.get(&pid);
        let mut sums: BTreeMap<(FileId, bool), SmallCalls> = BTreeMap::new();
        for ((tid, file, is_write), calls) in process.iter().flat_map(|process| &process.small) {
            if thread.is_none_or(|thread| thread == *tid) {
                sums.entry((*file, *is_write)).or_default().add(calls);
            }
        }
        let mut small: Vec<_> = sums.into_iter().collect();
        small.retain(|(_, small)| small.calls >= SMALL_CALLS_MIN);
        // The costliest first.
        small.sort_by_key(|(_, small)| Reverse(small.ns));
        let mut is_on_files = |file: FileId| {
            let mount = self.mount_of(Some(file));
            self.mounted.get(mount).has_files
        };
        let mut found = Vec::new();
        while let Some(at) = small.iter().position(|((file, _), _)| is_on_files(*file)) {
            let ((file, is_write), calls) = small.remove(at);
            // A loop that copies: a buffer saves the calls on the other file, too.
            let is_other_side = |((_, is_other_write), other): &((FileId, bool), SmallCalls)| {
                *is_other_write != is_write && is_copy(&calls, other)
            };
            let other = small.iter().position(is_other_side);
            let other = other.map(|at| small.remove(at));
            found.push(SmallLoop {
                file,
                is_write,
                small: calls,
                other_file: other
                    .map(|((file, _), _)| file)
                    .filter(|file| is_on_files(*file)),
                other: other.map_or_else(SmallCalls::default, |(_, other)| other),
                path_ns: 0,
            });
        }
        found
    }
}

/// Returns whether reads and writes are those of one loop: as many calls, of as many bytes. The
/// last read finds the end of the file.
fn is_copy(one: &SmallCalls, other: &SmallCalls) -> bool {
    let is_near = |a: u64, b: u64| a.abs_diff(b) <= a.max(b) / 100;
    is_near(one.calls, other.calls) && is_near(one.bytes, other.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_that_copies_has_as_many_calls_and_bytes() {
        let calls = |calls: u64, bytes: u64| SmallCalls {
            calls,
            bytes,
            ns: 1,
            ..SmallCalls::default()
        };
        assert!(is_copy(&calls(800_000, 800_000), &calls(800_001, 800_000)));
        // A database: a header of its journal for each read of a change counter.
        assert!(!is_copy(&calls(20_000, 240_000), &calls(20_000, 320_000)));
        assert!(!is_copy(&calls(20_000, 320_000), &calls(40_000, 320_000)));
    }
}
