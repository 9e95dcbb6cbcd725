//! The threads that are traced: their calls, as records.

use super::counters::{self, Counters};
use super::program;
use super::system::{self, CallStop};
use super::table::{ARCHITECTURE, Table};
use crate::calls::{Call, Names, Op, Returns};
use crate::layout::{F_SETFD, INCLUDES_GAP, MEASURED, PATH_MAX, Record, WORKING_DIRECTORY};
use crate::ring::Mapping;
use std::collections::HashMap;
use std::path::Path;

/// A call of at least this many nanoseconds may have waited: the thread's counters are read. Two
/// stops take less.
const SLOW_NS: u64 = 40_000;
/// The duration of a call that does nothing, before one was seen, in nanoseconds: two switches of
/// the processor.
const SWITCHES_NS: u64 = 8_000;
/// Calls change the estimate of that duration by this many nanoseconds.
const ADJUSTMENT_NS: u64 = 50;
/// The result of a call that still waits at the end of the trace: EINTR.
const UNFINISHED: i64 = -4;

/// A call that has begun.
#[derive(Debug, Clone, Copy)]
struct Begun {
    call: Call,
    arguments: [usize; 6],
    path: u32,
    second: u32,
    is_measured: bool,
    /// Blocks that a disk read for this thread since the last reading.
    gap_blocks: u32,
    start_ns: u64,
}

/// A thread.
#[derive(Debug)]
struct Thread {
    pid: u32,
    call: Option<Begun>,
    /// The last reading of its counters, and when that was.
    last: Counters,
    last_ns: u64,
    /// Stops since the last reading: each is a context switch.
    stops: u64,
    /// When it was stopped, and for how long it was in all, in nanoseconds.
    stopped_at_ns: u64,
    stopped_ns: u64,
    /// A bit for each operation: its last call was slow.
    slow: u64,
    /// Time without a processor before it was traced, in nanoseconds.
    delay_before_ns: u64,
    /// Its program is of another architecture.
    is_foreign: bool,
    has_ended: bool,
}

impl Thread {
    fn new(pid: u32) -> Self {
        let now = now();
        Self {
            pid,
            call: None,
            last: Counters::default(),
            last_ns: now,
            stops: 0,
            stopped_at_ns: now,
            stopped_ns: 0,
            slow: 0,
            delay_before_ns: 0,
            is_foreign: false,
            has_ended: false,
        }
    }

    /// Reads the counters of the thread; returns how much they have grown.
    fn read(&mut self, tid: u32) -> Counters {
        let (now, before) = (Counters::of(tid), self.last);
        let growth = Counters {
            cpu_ns: now.cpu_ns.saturating_sub(before.cpu_ns),
            delay_ns: now.delay_ns.saturating_sub(before.delay_ns),
            switches: now.switches.saturating_sub(before.switches + self.stops),
            read_blocks: now.read_blocks.saturating_sub(before.read_blocks),
        };
        self.last = now;
        self.stops = 0;
        growth
    }
}

/// The threads of a process tree, whose calls are written as records.
#[derive(Debug)]
pub(super) struct Threads {
    table: Table,
    ring: Mapping,
    /// The median duration of calls that do not wait: what a stop costs beside its handling, in
    /// nanoseconds.
    switches_ns: u64,
    known: HashMap<u32, Thread>,
}

impl Threads {
    pub(super) fn new(mapping: Mapping) -> Self {
        Self {
            table: Table::new(),
            ring: mapping,
            switches_ns: SWITCHES_NS,
            known: HashMap::new(),
        }
    }

    pub(super) fn is_known(&self, tid: u32) -> bool {
        self.known.contains_key(&tid)
    }

    pub(super) fn is_in_call(&self, tid: u32) -> bool {
        self.known
            .get(&tid)
            .is_some_and(|thread| thread.call.is_some())
    }

    pub(super) fn stopped(&mut self, tid: u32) {
        if let Some(thread) = self.known.get_mut(&tid) {
            thread.stops += 1;
            thread.stopped_at_ns = now();
        }
    }

    /// A thread is about to go on after a stop.
    pub(super) fn resumes(&mut self, tid: u32) {
        if let Some(thread) = self.known.get_mut(&tid) {
            let now = now();
            thread.stopped_ns += now.saturating_sub(thread.stopped_at_ns) + self.switches_ns;
            if let Some(begun) = &mut thread.call {
                begun.start_ns = now;
            }
        }
    }

    /// Adds the process of a command, whose program has not started.
    pub(super) fn add_command(&mut self, pid: u32) {
        self.known.insert(pid, Thread::new(pid));
    }

    /// Adds a new thread, and with it its process.
    pub(super) fn add(&mut self, tid: u32) {
        if self.is_known(tid) {
            return;
        }
        let Some((pid, parent)) = counters::process_of(tid) else {
            return;
        };
        let by = if pid == tid { parent } else { pid };
        let is_foreign = self.known.get(&by).is_some_and(|thread| thread.is_foreign);
        let mut thread = Thread::new(pid);
        thread.is_foreign = is_foreign;
        self.known.insert(tid, thread);
        if pid != tid {
            self.mark_reading(tid);
        } else if is_foreign {
            let program = counters::link(tid, "exe");
            self.mark(tid, Op::Exec, [&program, Path::new("")], parent.into());
        } else {
            self.mark(tid, Op::Start, [Path::new(""); 2], parent.into());
        }
    }

    /// Adds the threads and open files of a process that runs already.
    pub(super) fn add_running(&mut self, pid: u32, tids: &[u32]) {
        for tid in tids {
            let mut thread = Thread::new(pid);
            thread.read(*tid);
            thread.delay_before_ns = thread.last.delay_ns;
            self.known.insert(*tid, thread);
        }
        self.start(pid);
        for (fd, path, flags) in counters::open_files(pid) {
            self.ring.push(&Record {
                start_ns: now(),
                result: fd.into(),
                detail: flags,
                pid,
                tid: pid,
                fd: WORKING_DIRECTORY,
                path: self.ring.path(counters::bytes(&path)),
                other_fd: -1,
                op: Op::Open as u16,
                ..Record::default()
            });
        }
        for tid in tids.iter().filter(|tid| **tid != pid) {
            self.mark_reading(*tid);
        }
    }

    /// Marks the program of a process.
    fn start(&mut self, pid: u32) {
        let parent = counters::process_of(pid).map_or(0, |(_, parent)| parent);
        let (folder, program) = (counters::link(pid, "cwd"), counters::link(pid, "exe"));
        let is_foreign = program::is_foreign(&program);
        if let Some(thread) = self.known.get_mut(&pid) {
            thread.is_foreign = is_foreign;
        }
        if is_foreign {
            self.mark(pid, Op::Exec, [&program, Path::new("")], parent.into());
        } else {
            self.mark(pid, Op::Start, [&folder, &program], parent.into());
        }
    }

    /// A process has started another program, which ends its other threads.
    pub(super) fn replace(&mut self, pid: u32) {
        self.known
            .retain(|tid, thread| thread.pid != pid || *tid == pid);
        let thread = self.known.entry(pid).or_insert_with(|| Thread::new(pid));
        thread.call = None;
        thread.slow = 0;
        self.start(pid);
    }

    /// A thread is about to end, and its counters can still be read.
    pub(super) fn ends(&mut self, tid: u32) {
        let Some(thread) = self.known.get(&tid) else {
            return;
        };
        if thread.pid == tid {
            self.end_process(tid);
        } else {
            self.mark_reading(tid);
        }
    }

    /// A thread has ended.
    pub(super) fn remove(&mut self, tid: u32) {
        let ended = self.known.get(&tid);
        if ended.is_some_and(|thread| thread.pid == tid && !thread.has_ended) {
            self.end_process(tid);
        }
        self.known.remove(&tid);
    }

    fn end_process(&mut self, pid: u32) {
        let Some(thread) = self.known.get_mut(&pid) else {
            return;
        };
        thread.has_ended = true;
        if !thread.is_foreign {
            self.mark(pid, Op::End, [Path::new(""); 2], 0);
        }
    }

    /// Ends the records of processes that go on: calls that still wait, and counters.
    pub(super) fn leave(&mut self, root: u32) {
        let tids: Vec<_> = self.known.keys().copied().collect();
        let further = tids.into_iter().filter(|tid| *tid != root);
        for tid in further.chain([root]) {
            if let Some(thread) = self.known.get_mut(&tid) {
                thread.stopped_at_ns = now();
            }
            self.end(tid, UNFINISHED);
            self.ends(tid);
        }
    }

    /// Writes the counters of a thread: a wait of no time.
    fn mark_reading(&mut self, tid: u32) {
        if self.known.get(&tid).is_some_and(|thread| thread.is_foreign) {
            return;
        }
        self.mark(tid, Op::WaitThread, [Path::new(""); 2], 0);
    }

    /// Writes a record of a process or thread itself, with its counters.
    fn mark(&mut self, tid: u32, op: Op, paths: [&Path; 2], detail: u64) {
        let Some(thread) = self.known.get_mut(&tid) else {
            return;
        };
        let growth = thread.read(tid);
        thread.last_ns = now();
        let delay_ns = thread.last.delay_ns.saturating_sub(thread.delay_before_ns);
        self.ring.push(&Record {
            start_ns: thread.last_ns,
            cpu_ns: thread.last.cpu_ns,
            stopped_ns: thread.stopped_ns,
            result: if op == Op::End { delay_ns as i64 } else { 0 },
            detail,
            pid: thread.pid,
            tid,
            fd: WORKING_DIRECTORY,
            path: self.ring.path(counters::bytes(paths[0])),
            second: self.ring.path(counters::bytes(paths[1])),
            other_fd: -1,
            switches: growth.switches as u32,
            gap_blocks: growth.read_blocks as u32,
            op: op as u16,
            flags: MEASURED,
            ..Record::default()
        });
    }

    /// A thread is stopped at a system call.
    pub(super) fn at_call(&mut self, tid: u32) {
        match system::call_stop(tid, ARCHITECTURE) {
            CallStop::Begins(number, arguments) => self.begin(tid, number, arguments),
            CallStop::Ends(result) => self.end(tid, result),
            CallStop::Unknown => {}
        }
    }

    fn begin(&mut self, tid: u32, number: u64, arguments: [usize; 6]) {
        let Some(thread) = self.known.get_mut(&tid) else {
            return;
        };
        // Waits of further threads are not followed.
        let found = self.table.get(number, &arguments);
        let found = found.filter(|call| call.op != Op::WaitThread || tid == thread.pid);
        let Some(call) = found else {
            thread.call = None;
            return;
        };
        let is_measured = thread.slow & (1 << call.op as u16) != 0;
        let mut gap_blocks = 0;
        if is_measured {
            gap_blocks = thread.read(tid).read_blocks as u32;
        }
        let text = |address| text(&self.ring, tid, address);
        let (path, second) = match call.names {
            Names::Path(place) | Names::At(_, place) => (text(arguments[place]), 0),
            Names::Two(old, new) => (text(arguments[old]), text(arguments[new])),
            Names::TwoAt(old, new) => (text(arguments[old + 1]), text(arguments[new + 1])),
            // The rest are calls of the C library.
            _ => (0, 0),
        };
        let start_ns = now();
        if is_measured {
            thread.last_ns = start_ns;
        }
        thread.call = Some(Begun {
            call,
            arguments,
            path,
            second,
            is_measured,
            gap_blocks,
            start_ns,
        });
    }

    fn end(&mut self, tid: u32, result: i64) {
        let Some(thread) = self.known.get_mut(&tid) else {
            return;
        };
        let Some(begun) = thread.call.take() else {
            return;
        };
        let end_ns = thread.stopped_at_ns;
        let (call, a) = (begun.call, &begun.arguments);
        let is_pointer = call.returns == Returns::Pointer;
        let mut record = Record {
            start_ns: begun.start_ns,
            wall_ns: end_ns.saturating_sub(begun.start_ns),
            result: if is_pointer { result.min(0) } else { result },
            detail: call.detail_of(a),
            pid: thread.pid,
            tid,
            fd: match call.names {
                Names::Descriptor(place) | Names::At(place, _) | Names::TwoAt(place, _) => {
                    a[place] as i32
                }
                Names::Path(_) | Names::Two(..) => WORKING_DIRECTORY,
                _ => -1,
            },
            path: begun.path,
            second: begun.second,
            other_fd: match call.names {
                Names::TwoAt(_, new) => a[new] as i32,
                Names::Two(..) => WORKING_DIRECTORY,
                _ => -1,
            },
            op: call.op as u16,
            gap_blocks: begun.gap_blocks,
            ..Record::default()
        };
        if call.op == Op::Control && record.detail == F_SETFD {
            record.other_fd = a[2] as i32;
        }
        let is_slow = record.wall_ns >= SLOW_NS + (record.result.max(0) as u64) / 8;
        if is_slow || begun.is_measured {
            thread.measure(&mut record, begun.is_measured, end_ns);
        } else {
            let is_longer = record.wall_ns > self.switches_ns;
            record.wall_ns = record.wall_ns.saturating_sub(self.switches_ns);
            self.switches_ns = if is_longer {
                self.switches_ns + ADJUSTMENT_NS
            } else {
                self.switches_ns - ADJUSTMENT_NS.min(self.switches_ns)
            };
        }
        let bit = 1 << call.op as u16;
        thread.slow = if is_slow {
            thread.slow | bit
        } else {
            thread.slow & !bit
        };
        if record.flags & MEASURED != 0 || call.op.is_always_recorded(record.detail) {
            self.ring.push(&record);
        }
    }
}

impl Thread {
    /// Reads the counters, and with them the wait since the last reading.
    fn measure(&mut self, record: &mut Record, is_measured: bool, end_ns: u64) {
        let growth = self.read(record.tid);
        let since = end_ns.saturating_sub(self.last_ns);
        record.cpu_ns = self.last.cpu_ns;
        record.stopped_ns = self.stopped_ns;
        record.switches = growth.switches as u32;
        record.read_blocks = growth.read_blocks as u32;
        if growth.switches > 0 {
            record.wait_ns = since.saturating_sub(growth.cpu_ns).min(record.wall_ns);
        }
        record.flags = if is_measured {
            MEASURED
        } else {
            MEASURED | INCLUDES_GAP
        };
        self.last_ns = end_ns;
    }
}

/// Returns the place of a C string of a thread; 0 if it cannot be read.
fn text(ring: &Mapping, tid: u32, address: usize) -> u32 {
    if address == 0 {
        return 0;
    }
    let mut bytes = [0; PATH_MAX];
    let count = system::read_memory(tid, address, &mut bytes);
    let len = bytes[..count].iter().position(|byte| *byte == 0);
    len.map_or(0, |len| ring.path(&bytes[..len]))
}

/// Returns the time of the clock of records, CLOCK_MONOTONIC, in nanoseconds.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
