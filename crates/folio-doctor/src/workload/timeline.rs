//! Processes and threads over time: readings of their processor time, and the calls that waited.

use super::strip::Interval;
use folio_interpose::{
    Event, FileId, INCLUDES_GAP, MEASURED, O_APPEND, O_TRUNC, Op, OpenFile, Record, Ring, Tracker,
};
use std::collections::HashMap;

/// The flag of open(2) that may make a file.
pub(super) const O_CREAT: u64 = 0o100;
/// The flag of open(2) that makes a file.
const O_EXCL: u64 = 0o200;

/// A call that took long, or the time between calls in which a disk read pages of mapped files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) op: Op,
    pub(super) start_ns: u64,
    pub(super) wall_ns: u64,
    pub(super) wait_ns: u64,
    /// Without one it waited for a processor only.
    pub(super) switches: u32,
    pub(super) read_bytes: u64,
    pub(super) result: i64,
    pub(super) file: Option<FileId>,
    /// Flags of its open file.
    pub(super) flags: u64,
    /// Bytes written through its descriptor since its last sync.
    pub(super) unsynced_bytes: u64,
    /// A file with contents was replaced.
    pub(super) is_replacement: bool,
}

impl Span {
    /// Returns whether its result is a number of bytes.
    pub(super) fn moves_bytes(&self) -> bool {
        let reads = matches!(self.op, Op::Read | Op::ReadVector | Op::ReadStream);
        let writes = matches!(self.op, Op::Write | Op::WriteVector | Op::WriteStream);
        reads || writes || self.op == Op::Copy
    }
}

/// Small reads or writes of a file.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SmallCalls {
    pub(super) calls: u64,
    pub(super) bytes: u64,
    /// Those of them that a file without contents, or the end of a file, got.
    pub(super) new_bytes: u64,
    /// Whether a file may be new.
    pub(super) may_be_created: bool,
    pub(super) ns: u64,
    /// The start of the first one and the end of the last one.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

impl SmallCalls {
    /// Adds calls of another thread.
    pub(super) fn add(&mut self, other: &Self) {
        if self.calls == 0 || other.first_ns < self.first_ns {
            self.first_ns = other.first_ns;
        }
        self.last_ns = self.last_ns.max(other.last_ns);
        self.calls += other.calls;
        self.bytes += other.bytes;
        self.new_bytes += other.new_bytes;
        self.may_be_created |= other.may_be_created;
        self.ns += other.ns;
    }

    /// Adds the bytes of writes to an open file.
    fn add_written(&mut self, bytes: u64, open: &OpenFile) {
        let is_grown = open.is_truncated || open.flags & (O_APPEND | O_EXCL) != 0;
        self.new_bytes += if is_grown { bytes } else { 0 };
        self.may_be_created |= open.flags & O_CREAT != 0;
    }
}

/// What a thread had used at a moment, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) at_ns: u64,
    pub(super) cpu_ns: u64,
    /// Stopped by a tracer.
    pub(super) stopped_ns: u64,
}

/// A thread.
#[derive(Debug, Default)]
pub(super) struct Thread {
    pub(super) readings: Vec<Reading>,
    pub(super) spans: Vec<Span>,
}

/// A process.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) parent: u32,
    /// Place of its program's path in the ring; 0 if it has that of its parent.
    pub(super) program: u32,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) has_ended: bool,
    /// Time that its last thread waited for a processor.
    pub(super) run_delay_ns: u64,
    /// A program that was started and has not reported since.
    pub(super) unreached: Option<(u64, String)>,
    pub(super) threads: HashMap<u32, Thread>,
    /// By thread, file, and whether they write.
    pub(super) small: HashMap<(u32, FileId, bool), SmallCalls>,
}

/// All processes.
#[derive(Debug, Default)]
pub(super) struct Timelines {
    pub(super) processes: HashMap<u32, Process>,
    /// Programs of children that were spawned, until they report.
    pub(super) spawned: HashMap<u32, String>,
}

impl Timelines {
    pub(super) fn add(&mut self, event: &Event, tracker: &Tracker, ring: &Ring) {
        let record = &event.record;
        let program = |file: Option<FileId>| {
            file.map_or_else(
                || "?".to_owned(),
                |file| tracker.path(file).display().to_string(),
            )
        };
        match event.op {
            Op::Spawn => {
                let name = ring
                    .text(record.path)
                    .map(|path| path.display().to_string());
                self.spawned
                    .insert(record.detail as u32, name.unwrap_or_default());
            }
            Op::Exec => {
                let name = program(event.file);
                let process = self.begun(record);
                process.unreached = Some((record.start_ns, name));
            }
            Op::Start => {
                let process = self.begun(record);
                if record.second != 0 {
                    process.program = record.second;
                }
            }
            _ => {}
        }
        let Some(process) = self.processes.get_mut(&record.pid) else {
            return;
        };
        if event.op != Op::Exec {
            // The program has started, or the exec failed: the process still reports.
            process.unreached = None;
        }
        process.end_ns = process.end_ns.max(record.start_ns + record.wall_ns);
        if event.op == Op::End {
            process.has_ended = true;
            process.run_delay_ns = record.result.max(0) as u64;
        }
        if record.flags & MEASURED == 0 {
            process.count_small(event);
            return;
        }
        let thread = process.threads.entry(record.tid).or_default();
        thread.add_gap(event);
        thread.readings.push(Reading {
            at_ns: record.start_ns + record.wall_ns,
            cpu_ns: record.cpu_ns,
            stopped_ns: record.stopped_ns,
        });
        if !matches!(event.op, Op::Start | Op::End | Op::Exec | Op::Spawn) {
            thread.spans.push(span(event));
        }
    }
}

impl Timelines {
    /// Returns whether a parent has waited for the end of a child: a killed one has no last record.
    pub(super) fn is_reaped(&self, child: u32, parent: u32) -> bool {
        let parent = self.processes.get(&parent);
        let threads = parent.iter().flat_map(|parent| parent.threads.values());
        threads
            .flat_map(|thread| &thread.spans)
            .any(|span| span.op == Op::WaitChild && span.result == i64::from(child))
    }

    /// Returns the process of a record, which may be its first.
    fn begun(&mut self, record: &Record) -> &mut Process {
        let process = self.processes.entry(record.pid).or_default();
        if process.start_ns == 0 {
            process.start_ns = record.start_ns;
            process.parent = record.detail as u32;
        }
        process
    }
}

impl Process {
    fn count_small(&mut self, event: &Event) {
        let is_write = matches!(event.op, Op::Write);
        let record = &event.record;
        if let (true, Some(file)) = (event.op.is_tiny(record.detail), event.file) {
            let small = self.small.entry((record.tid, file, is_write)).or_default();
            // Threads write their records later than they end.
            let (start_ns, end_ns) = (record.start_ns, record.start_ns + record.wall_ns);
            if small.calls == 0 || start_ns < small.first_ns {
                small.first_ns = start_ns;
            }
            small.last_ns = small.last_ns.max(end_ns);
            small.calls += 1 + u64::from(record.more_calls);
            let bytes = record.result.max(0) as u64;
            small.bytes += bytes;
            if let (true, Some(open)) = (is_write, &event.open) {
                small.add_written(bytes, open);
            }
            small.ns += record.wall_ns;
        }
    }
}

impl Thread {
    /// Adds the time since the last reading as a span, if a disk read pages in it.
    fn add_gap(&mut self, event: &Event) {
        let record = &event.record;
        let Some(last) = self.readings.last().copied() else {
            return;
        };
        let (from, cpu_before) = (last.at_ns, last.cpu_ns);
        if record.gap_blocks == 0 || record.flags & INCLUDES_GAP != 0 {
            return;
        }
        let wall_ns = record.start_ns.saturating_sub(from);
        let cpu_at_start = record
            .cpu_ns
            .saturating_sub(record.wall_ns - record.wait_ns);
        self.spans.push(Span {
            op: Op::Map,
            start_ns: from,
            wall_ns,
            wait_ns: wall_ns.saturating_sub(cpu_at_start.saturating_sub(cpu_before)),
            switches: 1,
            read_bytes: u64::from(record.gap_blocks) * 512,
            result: 0,
            file: None,
            flags: 0,
            unsynced_bytes: 0,
            is_replacement: false,
        });
    }

    /// Returns the calls in an interval, each without what is of the calls before it.
    pub(super) fn calls(&self, within: Interval) -> impl Iterator<Item = (Interval, &Span)> {
        // They are in the order of their ends.
        let first = |span: &Span| span.start_ns + span.wall_ns <= within.from;
        let first = self.spans.partition_point(first);
        let mut done = within.from;
        self.spans[first..].iter().filter_map(move |span| {
            let from = span.start_ns.max(done);
            let to = (span.start_ns + span.wall_ns).min(within.to);
            (from < to).then(|| {
                done = to;
                (Interval { from, to }, span)
            })
        })
    }

    /// Returns the processor time between two moments, in nanoseconds.
    pub(super) fn cpu_between(&self, from: u64, to: u64) -> u64 {
        self.between(from, to, |reading| reading.cpu_ns)
    }

    /// Returns the time that a tracer had it stopped between two moments, in nanoseconds.
    pub(super) fn stopped_between(&self, from: u64, to: u64) -> u64 {
        self.between(from, to, |reading| reading.stopped_ns)
    }

    fn between(&self, from: u64, to: u64, value: fn(&Reading) -> u64) -> u64 {
        self.at(to, value).saturating_sub(self.at(from, value))
    }

    fn at(&self, time: u64, value: fn(&Reading) -> u64) -> u64 {
        let next = self
            .readings
            .partition_point(|reading| reading.at_ns < time);
        let last = next.checked_sub(1).map(|last| &self.readings[last]);
        match (last, self.readings.get(next)) {
            (Some(last), Some(next)) => {
                let (from, to) = (last.at_ns, next.at_ns);
                let part = (time - from) as f64 / (to - from).max(1) as f64;
                let (before, after) = (value(last), value(next));
                before + (after.saturating_sub(before) as f64 * part) as u64
            }
            (Some(last), None) => value(last),
            (None, Some(first)) => value(first),
            (None, None) => 0,
        }
    }
}

fn span(event: &Event) -> Span {
    let record = &event.record;
    let is_replacement = match event.op {
        Op::Rename => event.second.is_some(),
        // An open that reads from a disk looks for a name.
        Op::Open => record.detail & O_TRUNC != 0 && record.result >= 0 && record.read_blocks == 0,
        _ => event
            .open
            .is_some_and(|open| open.is_truncated && open.written_bytes > 0),
    };
    Span {
        op: event.op,
        start_ns: record.start_ns,
        wall_ns: record.wall_ns,
        wait_ns: record.wait_ns,
        switches: record.switches,
        read_bytes: u64::from(record.read_blocks) * 512,
        result: record.result,
        file: event.file,
        flags: match event.op {
            Op::Open => record.detail,
            _ => event.open.map_or(0, |open| open.flags),
        },
        unsynced_bytes: event
            .open
            .map_or(0, |open| open.written_bytes - open.synced_bytes),
        is_replacement,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the process has a program that does not report, after these operations.
    fn has_unreached(ops: &[Op]) -> bool {
        let ring = Ring::create().unwrap();
        let mut tracker = Tracker::default();
        let mut timelines = Timelines::default();
        for (op, start_ns) in ops.iter().zip(1..) {
            let record = Record {
                op: *op as u16,
                pid: 7,
                start_ns,
                ..Record::default()
            };
            let event = tracker.follow(&record, &ring).unwrap();
            timelines.add(&event, &tracker, &ring);
        }
        timelines.processes[&7].unreached.is_some()
    }

    #[test]
    fn a_failed_exec_hides_no_program() {
        assert!(has_unreached(&[Op::Start, Op::Exec]));
        assert!(has_unreached(&[Op::Start, Op::Exec, Op::Exec]));
        assert!(!has_unreached(&[Op::Start, Op::Exec, Op::Start]));
        assert!(!has_unreached(&[Op::Start, Op::Exec, Op::Read]));
    }
}
