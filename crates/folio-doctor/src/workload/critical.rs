//! The critical path: the main thread of the command, and of each wait for a child the child.

use super::mounted::Mounted;
use super::part::{Cost, Part, Tiny, Unreached};
use super::timeline::{Process, SmallCalls, Span, Thread, Timelines};
use folio_interpose::{FileId, Op, Tracker};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Flags of open(2) by which each write waits for the disk: O_SYNC and O_DSYNC.
const SYNC_FLAGS: u64 = 0o4_010_000;
/// The flag of open(2) that may make a file.
const O_CREAT: u64 = 0o100;
/// Waits for children that are followed into each other at most.
const DEPTH_MAX: usize = 64;
/// Shorter waits outside of files are not followed into a child, in nanoseconds.
const FOLLOWED_NS: u64 = 1_000_000;
/// Small calls on a file that are worth a finding.
const SMALL_CALLS_MIN: u64 = 1000;

/// A part of the time, in nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy)]
struct Interval {
    from: u64,
    to: u64,
}

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

/// Calls of one part on one mount.
#[derive(Default)]
struct Group {
    calls: u64,
    files: HashSet<FileId>,
    wait_ns: u64,
    wall_ns: u64,
    bytes: u64,
    device_bytes: u64,
    replacements: u64,
    longest: (u64, Option<FileId>),
    /// Of syncs: bytes that were written before the last one, by file.
    synced: HashMap<FileId, u64>,
}

/// The wall time, as it is split.
pub(super) struct Split<'a> {
    timelines: &'a Timelines,
    tracker: &'a Tracker,
    mounted: &'a mut Mounted,
    parts: HashMap<Part, u64>,
    groups: BTreeMap<(Part, usize), Group>,
    unreached: BTreeMap<String, u64>,
    visited: HashSet<u32>,
    mounts: HashMap<FileId, usize>,
}

/// The result.
pub(super) struct Found {
    pub(super) parts: Vec<(Part, u64)>,
    pub(super) costs: Vec<Cost>,
    pub(super) tiny: Vec<Tiny>,
    pub(super) unreached: Vec<Unreached>,
}

impl<'a> Split<'a> {
    pub(super) fn new(
        timelines: &'a Timelines,
        tracker: &'a Tracker,
        mounted: &'a mut Mounted,
    ) -> Self {
        Self {
            timelines,
            tracker,
            mounted,
            parts: HashMap::new(),
            groups: BTreeMap::new(),
            unreached: BTreeMap::new(),
            visited: HashSet::new(),
            mounts: HashMap::new(),
        }
    }

    /// Splits the time of the command.
    pub(super) fn root(&mut self, pid: u32, from: u64, to: u64, program: &str) {
        let timelines = self.timelines;
        let Some(process) = timelines.processes.get(&pid) else {
            self.miss(program, to - from);
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
        *self.parts.entry(Part::Cpu).or_default() += cpu_ns;
        *self.parts.entry(Part::NotFiles).or_default() += started - from - cpu_ns;
        if process.has_ended || process.unreached.is_some() {
            self.process(started, to.max(ended), first_position(pid));
        } else {
            self.process(started, ended, first_position(pid));
            self.miss(program, to - ended);
        }
    }

    fn miss(&mut self, program: &str, ns: u64) {
        *self.parts.entry(Part::Unknown).or_default() += ns;
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
            self.miss(name, to - from);
            return;
        };
        let mut until = to;
        if let Some((since, program)) = &process.unreached {
            until = (*since).clamp(from, to);
            self.miss(program, to - until);
        }
        self.thread(process, pid, Interval { from, to: until }, at);
    }

    fn thread(&mut self, process: &Process, tid: u32, within: Interval, at: Position) {
        let (from, to) = (within.from, within.to);
        let Some(thread) = process.threads.get(&tid) else {
            *self.parts.entry(Part::NotFiles).or_default() += to - from;
            return;
        };
        let mut own_ns = to - from;
        let mut waited_ns = 0;
        // For a processor, in calls.
        let mut counted_ns = 0;
        let mut done = from;
        for span in &thread.spans {
            let start = span.start_ns.max(done);
            let end = (span.start_ns + span.wall_ns).min(to);
            if end <= start {
                continue;
            }
            let part = self.part_of(span);
            let is_followed = part == Part::NotFiles && span.wait_ns >= FOLLOWED_NS;
            if is_followed
                && self.follow(
                    process,
                    span,
                    Interval {
                        from: start,
                        to: end,
                    },
                    at,
                )
            {
                own_ns -= end - start;
                done = end;
                continue;
            }
            let wait = span.wait_ns.min(end - start);
            if part != Part::NotFiles {
                waited_ns += wait;
                counted_ns += if part == Part::Processor { wait } else { 0 };
                self.add(part, span, wait);
            }
            done = end;
        }
        let cpu_ns = thread
            .cpu_between(from, to)
            .min(own_ns - waited_ns.min(own_ns));
        *self.parts.entry(Part::Cpu).or_default() += cpu_ns;
        let rest_ns = own_ns.saturating_sub(waited_ns + cpu_ns);
        let stopped_ns = thread.stopped_between(from, to).min(rest_ns);
        *self.parts.entry(Part::Tracing).or_default() += stopped_ns;
        let rest_ns = rest_ns - stopped_ns;
        // Of its whole life: the part of this interval.
        let life_ns = process.end_ns.saturating_sub(process.start_ns).max(1);
        let delay = process.run_delay_ns as f64 * (own_ns as f64 / life_ns as f64).min(1.0);
        let delay_ns = (delay as u64).saturating_sub(counted_ns).min(rest_ns);
        *self.parts.entry(Part::Processor).or_default() += delay_ns;
        *self.parts.entry(Part::NotFiles).or_default() += rest_ns - delay_ns;
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
        *self.parts.entry(Part::NotFiles).or_default() += started - from;
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
        let spans = thread
            .spans
            .iter()
            .filter(|span| span.start_ns < within.to && span.start_ns + span.wall_ns > within.from);
        let waits: u64 = spans
            .filter(|span| self.part_of(span) != Part::NotFiles)
            .map(|span| span.wait_ns.min(within.to - within.from))
            .sum();
        waits + thread.cpu_between(within.from, within.to)
    }

    /// Returns the part that the wait of a call is of.
    fn part_of(&mut self, span: &Span) -> Part {
        let is_map = span.op == Op::Map;
        let mount = span.file.map(|file| self.mount_of(file));
        let has_files = is_map || mount.is_some_and(|mount| self.mounted.get(mount).has_files);
        let is_listing = matches!(span.op, Op::List | Op::SyncMap);
        if !has_files && !is_listing {
            return Part::NotFiles;
        }
        if span.switches == 0 {
            return Part::Processor;
        }
        let is_sync_mount =
            mount.is_some_and(|mount| self.mounted.get(mount).file_system.has("sync"));
        let is_served = mount.is_some_and(|mount| self.mounted.get(mount).file_system.is_served());
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

    fn mount_of(&mut self, file: FileId) -> usize {
        let (tracker, mounted) = (self.tracker, &mut *self.mounted);
        let found = self.mounts.entry(file);
        *found.or_insert_with(|| mounted.of(tracker.path(file)))
    }

    fn add(&mut self, part: Part, span: &Span, wait_ns: u64) {
        *self.parts.entry(part).or_default() += wait_ns;
        let mount = match span.file {
            Some(file) => self.mount_of(file),
            None => self.mounted.of(std::path::Path::new("/")),
        };
        let group = self.groups.entry((part, mount)).or_default();
        group.calls += 1;
        group.files.extend(span.file);
        group.wait_ns += wait_ns;
        group.wall_ns += span.wall_ns;
        if span.moves_bytes() {
            group.bytes += span.result.max(0) as u64;
        } else if let (Part::Fsync, Some(file)) = (part, span.file) {
            let written = span.written_bytes;
            let before = group.synced.insert(file, written).unwrap_or(0);
            // Opened again, a file begins with none.
            group.bytes += written.checked_sub(before).unwrap_or(written);
        }
        group.device_bytes += span.read_bytes;
        group.replacements += u64::from(span.is_replacement);
        group.longest = group.longest.max((wait_ns, span.file));
    }

    pub(super) fn finish(mut self) -> Found {
        let tiny = self.tiny();
        let tiny_ns: u64 = tiny.iter().map(|tiny| tiny.ns).sum();
        let cpu = self.parts.entry(Part::Cpu).or_default();
        let tiny_ns = tiny_ns.min(*cpu);
        *cpu -= tiny_ns;
        self.parts.insert(Part::TinyBuffers, tiny_ns);
        let part = |part: Part| (part, self.parts.get(&part).copied().unwrap_or(0));
        let path = |file: FileId| self.tracker.path(file).to_owned();
        let files = |group: &Group| {
            let mut files: Vec<_> = group.files.iter().map(|file| path(*file)).collect();
            files.sort();
            files
        };
        let cost = |((part, mount), group): (&(Part, usize), &Group)| Cost {
            part: *part,
            mount: *mount,
            calls: group.calls,
            files: files(group),
            wait_ns: group.wait_ns,
            wall_ns: group.wall_ns,
            bytes: group.bytes,
            device_bytes: group.device_bytes,
            last_sync_ns: None,
            replacements: group.replacements,
            example: group.longest.1.map(path),
        };
        let seconds = |ns: u64| (ns as f64 / 1e6).round() / 1e3;
        Found {
            parts: Part::ALL.into_iter().map(part).collect(),
            costs: self.groups.iter().map(cost).collect(),
            tiny,
            unreached: self
                .unreached
                .iter()
                .map(|(program, ns)| Unreached {
                    program: program.clone(),
                    seconds: seconds(*ns),
                })
                .collect(),
        }
    }

    /// Returns the files that processes of the critical path read or write in small calls.
    fn tiny(&mut self) -> Vec<Tiny> {
        let (timelines, tracker) = (self.timelines, self.tracker);
        let mut found = Vec::new();
        for pid in self.visited.clone() {
            let process = timelines.processes.get(&pid);
            let mut small: Vec<_> = process.iter().flat_map(|process| &process.small).collect();
            small.retain(|(_, small)| small.calls >= SMALL_CALLS_MIN);
            // The costliest first.
            small.sort_by_key(|(_, small)| u64::MAX - small.ns);
            let mut is_on_files = |file: FileId| {
                let mount = self.mount_of(file);
                self.mounted.get(mount).has_files
            };
            while let Some(at) = small.iter().position(|((file, _), _)| is_on_files(*file)) {
                let ((file, is_write), calls) = small.remove(at);
                // A loop that copies: a buffer saves the calls on the other file, too.
                let is_other_side =
                    |((_, is_other_write), other): &(&(FileId, bool), &SmallCalls)| {
                        is_other_write != is_write && is_copy(calls, other)
                    };
                let other = small.iter().position(is_other_side);
                let other_ns = other.map_or(0, |at| small.remove(at).1.ns);
                found.push(Tiny {
                    path: tracker.path(*file).to_owned(),
                    is_write: *is_write,
                    calls: calls.calls,
                    bytes: calls.bytes,
                    ns: calls.ns + other_ns,
                });
            }
        }
        found.sort_by_key(|tiny| u64::MAX - tiny.ns);
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
        };
        assert!(is_copy(&calls(800_000, 800_000), &calls(800_001, 800_000)));
        // A database: a header of its journal for each read of a change counter.
        assert!(!is_copy(&calls(20_000, 240_000), &calls(20_000, 320_000)));
        assert!(!is_copy(&calls(20_000, 320_000), &calls(40_000, 320_000)));
    }
}
