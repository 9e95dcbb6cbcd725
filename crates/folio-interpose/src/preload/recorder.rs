//! One record: the time of a call, its waits where they matter, and the names of its files.

use crate::calls::{Call, Names, Op, Returns};
use crate::layout::{F_SETFD, INCLUDES_GAP, MEASURED, PATH_MAX, Record, WORKING_DIRECTORY};
use crate::system::{self, Usage};
use crate::loops::{self, Loops, TinyCall};
use crate::{Arguments, forward, ring};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A call of at least this many nanoseconds may have waited: the thread's counters are read.
const SLOW_NS: u64 = 16_000;
/// The same of calls for attributes, which take a microsecond or two in memory: a server that is
/// awake answers in five.
const SLOW_ATTRIBUTES_NS: u64 = 5_000;
/// Calls on streams, and of readdir, that are faster than this need no record.
const BUFFERED_NS: u64 = 2_000;
/// O_WRONLY and O_TRUNC: the mode `w` of a stream.
const CREATES_EMPTY: u64 = 0o1001;
/// What opendir(3) opens with.
const O_CLOEXEC: u64 = 0o2_000_000;
/// Threads with counters of their own.
const THREADS: usize = 1024;

/// The last reading of a thread's counters.
struct Thread {
    pointer: AtomicUsize,
    tid: AtomicU32,
    time_ns: AtomicU64,
    cpu_ns: AtomicU64,
    switches: AtomicU64,
    read_blocks: AtomicU64,
    /// A bit for each operation: its last call was slow.
    slow: AtomicU64,
    loops: Loops,
}

static TABLE: [Thread; THREADS] = [const {
    Thread {
        pointer: AtomicUsize::new(0),
        tid: AtomicU32::new(0),
        time_ns: AtomicU64::new(0),
        cpu_ns: AtomicU64::new(0),
        switches: AtomicU64::new(0),
        read_blocks: AtomicU64::new(0),
        slow: AtomicU64::new(0),
        loops: Loops::new(),
    }
}; THREADS];
/// A thread has an entry.
static HAS_THREAD: AtomicBool = AtomicBool::new(false);
/// A second thread has one, too: most processes never touch the rest of the table.
static HAS_THREADS: AtomicBool = AtomicBool::new(false);
/// This process.
pub(crate) static PID: AtomicU32 = AtomicU32::new(0);

impl Thread {
    /// The entry of this thread; `None` if the table is full around it.
    #[inline]
    fn current() -> Option<&'static Self> {
        let pointer = system::thread_pointer();
        let hash = (pointer >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50;
        for probe in 0..8 {
            let entry = &TABLE[(hash + probe) % THREADS];
            let owner = entry.pointer.load(Ordering::Relaxed);
            if owner == pointer {
                return Some(entry);
            }
            if owner == 0 {
                entry.pointer.store(pointer, Ordering::Relaxed);
                entry.begin();
                return Some(entry);
            }
        }
        None
    }

    fn begin(&self) {
        if HAS_THREAD.swap(true, Ordering::Relaxed) {
            HAS_THREADS.store(true, Ordering::Relaxed);
        }
        self.tid.store(system::tid(), Ordering::Relaxed);
        self.slow.store(0, Ordering::Relaxed);
        self.loops.clear();
        self.save(system::now(), system::usage());
    }

    /// Remembers whether the last call of an operation was slow: the next one is then measured.
    fn remember(&self, op: Op, is_slow: bool) {
        let bit = 1 << op as u16;
        let slow = self.slow.load(Ordering::Relaxed);
        let new = if is_slow { slow | bit } else { slow & !bit };
        if new != slow {
            self.slow.store(new, Ordering::Relaxed);
        }
    }

    /// Records the calls that were joined so far.
    fn write_loops(&self) {
        self.loops.take(|record| {
            ring::push(&Record {
                pid: PID.load(Ordering::Relaxed),
                tid: self.tid.load(Ordering::Relaxed),
                ..record
            });
        });
    }

    fn save(&self, time_ns: u64, usage: Usage) {
        self.time_ns.store(time_ns, Ordering::Relaxed);
        self.cpu_ns.store(usage.cpu_ns, Ordering::Relaxed);
        self.switches.store(usage.switches, Ordering::Relaxed);
        self.read_blocks.store(usage.read_blocks, Ordering::Relaxed);
    }
}

/// A call that has begun.
pub(crate) struct Begun {
    thread: Option<&'static Thread>,
    fd: i32,
    is_measured: bool,
    /// Blocks that a disk read for this thread since the last reading.
    gap_blocks: u32,
    start_ns: u64,
}

/// Begins a record; `None` if the call is of no interest.
#[inline]
pub(crate) fn begin(call: &Call, a: &Arguments) -> Option<Begun> {
    if !ring::is_open() || !call.is_relevant(a) {
        return None;
    }
    let thread = Thread::current();
    let fd = descriptor(call, a);
    let bit = 1 << call.op as u16;
    let is_measured = thread.is_some_and(|thread| thread.slow.load(Ordering::Relaxed) & bit != 0);
    let mut gap_blocks = 0;
    if let (true, Some(thread)) = (is_measured, thread) {
        let usage = system::usage();
        let before = thread.read_blocks.load(Ordering::Relaxed);
        gap_blocks = usage.read_blocks.saturating_sub(before) as u32;
        thread.save(system::now(), usage);
    }
    Some(Begun { thread, fd, is_measured, gap_blocks, start_ns: system::now() })
}

#[inline]
fn descriptor(call: &Call, a: &Arguments) -> i32 {
    match call.names {
        Names::Descriptor(place) | Names::At(place, _) | Names::TwoAt(place, _) => a[place] as i32,
        Names::Stream(place) => descriptor_of(a[place]),
        Names::Directory(place) => descriptor_of_directory(a[place]),
        _ => -1,
    }
}

/// The descriptor of a stream.
pub(crate) fn descriptor_of(stream: usize) -> i32 {
    static FILENO: AtomicUsize = AtomicUsize::new(0);
    ask_descriptor(&FILENO, "fileno\0", stream)
}

/// The descriptor of a directory's stream.
fn descriptor_of_directory(stream: usize) -> i32 {
    static DIRFD: AtomicUsize = AtomicUsize::new(0);
    ask_descriptor(&DIRFD, "dirfd\0", stream)
}

fn ask_descriptor(known: &'static AtomicUsize, function: &'static str, stream: usize) -> i32 {
    if stream == 0 {
        return -1;
    }
    let before = system::errno();
    // SAFETY: the program passes a stream to the C library.
    let fd = unsafe { forward(known, function, usize::MAX, [stream, 0, 0, 0, 0, 0]) };
    // A stream in memory has none.
    system::set_errno(before);
    fd as i32
}

/// The result as a signed number: below 0 for a failure.
#[inline]
fn result_of(call: &Call, a: &Arguments, result: usize) -> i64 {
    match call.returns {
        Returns::Int => i64::from(result as i32),
        Returns::Size => result as i64,
        Returns::Pointer if call.op == Op::List => 0,
        Returns::Pointer if result == 0 || result == usize::MAX => -1,
        Returns::Pointer => 0,
        Returns::Items(size) => result.saturating_mul(a[size]) as i64,
    }
}

/// The time from which on a call may have waited. Bytes take their time, too.
#[inline]
fn slow_ns(op: Op, returned: i64) -> u64 {
    match op {
        Op::Stat | Op::StatDescriptor => SLOW_ATTRIBUTES_NS,
        _ => SLOW_NS + (returned.max(0) as u64) / 8,
    }
}

/// Ends a record and writes it.
#[inline]
pub(crate) fn end(begun: Begun, call: &Call, a: &Arguments, result: usize) {
    let end_ns = system::now();
    let wall_ns = end_ns - begun.start_ns;
    let is_buffered = matches!(call.op, Op::List | Op::ReadStream | Op::WriteStream);
    if is_buffered && wall_ns < BUFFERED_NS {
        if let (true, Some(thread)) = (begun.is_measured, begun.thread) {
            thread.remember(call.op, false);
        }
        return;
    }
    if matches!(call.op, Op::Close | Op::Duplicate | Op::ChangeDirectory | Op::Control)
        && system::pid() != PID.load(Ordering::Relaxed)
    {
        // The child of vfork(2) shares this memory, not the descriptors.
        return;
    }
    let returned = result_of(call, a, result);
    let is_slow = wall_ns >= slow_ns(call.op, returned);
    let detail = call.detail_of(a);
    if let Some(thread) = begun.thread {
        thread.remember(call.op, is_slow);
    }
    let is_counted = begun.thread.is_some() && (is_slow || begun.is_measured);
    if !is_counted && !call.op.is_always_recorded(detail) {
        return;
    }
    if let Some(thread) = begun.thread {
        let tiny = TinyCall {
            op: call.op,
            fd: begun.fd,
            size_bytes: detail,
            moved_bytes: returned.max(0) as u64,
            start_ns: begun.start_ns,
            wall_ns,
        };
        if !is_counted && call.op.is_tiny(detail) && thread.loops.join(&tiny) {
            if thread.loops.is_due(end_ns) {
                thread.write_loops();
            }
            return;
        }
        // What was written before a file is closed, renamed or synced is recorded before.
        thread.write_loops();
        if matches!(call.op, Op::Close | Op::Duplicate | Op::Sync | Op::SyncData)
            && HAS_THREADS.load(Ordering::Relaxed)
            && loops::may_have_joined(begun.fd)
        {
            write_all_loops();
        }
    }
    let mut record = Record {
        start_ns: begun.start_ns,
        wall_ns,
        result: returned,
        detail,
        pid: PID.load(Ordering::Relaxed),
        tid: begun.thread.map_or(0, |thread| thread.tid.load(Ordering::Relaxed)),
        fd: begun.fd,
        other_fd: -1,
        op: call.op as u16,
        gap_blocks: begun.gap_blocks,
        ..Record::default()
    };
    name(&mut record, call, a, result);
    if let (true, Some(thread)) = (is_counted, begun.thread) {
        measure(&mut record, thread, begun.is_measured, end_ns);
    }
    ring::push(&record);
}

/// Reads the thread's counters, and with them the wait since the last reading.
fn measure(record: &mut Record, thread: &Thread, is_measured: bool, end_ns: u64) {
    let usage = system::usage();
    let since = end_ns.saturating_sub(thread.time_ns.load(Ordering::Relaxed));
    let cpu_ns = usage.cpu_ns.saturating_sub(thread.cpu_ns.load(Ordering::Relaxed));
    record.cpu_ns = usage.cpu_ns;
    record.wait_ns = since.saturating_sub(cpu_ns).min(record.wall_ns);
    record.switches = since_last(usage.switches, &thread.switches);
    record.read_blocks = since_last(usage.read_blocks, &thread.read_blocks);
    record.flags = if is_measured { MEASURED } else { MEASURED | INCLUDES_GAP };
    thread.save(end_ns, usage);
}

fn since_last(now: u64, before: &AtomicU64) -> u32 {
    now.saturating_sub(before.load(Ordering::Relaxed)) as u32
}

/// Records the paths of a call.
#[inline]
fn name(record: &mut Record, call: &Call, a: &Arguments, result: usize) {
    // Calls that failed with these may not have read the path.
    let is_unread = record.result < 0
        && matches!(system::errno(), system::EFAULT | system::EINVAL | system::ENOSYS);
    let place_of = |address| {
        if is_unread { place_of_unread(address) } else { place_of(address) }
    };
    // A call that fails by its first path has not read the second one.
    let second_of = |address| {
        if record.result < 0 { place_of_unread(address) } else { place_of(address) }
    };
    match call.names {
        Names::Path(place) | Names::At(_, place) => record.path = place_of(a[place]),
        Names::Two(old, new) => {
            record.path = place_of(a[old]);
            record.second = second_of(a[new]);
        }
        Names::TwoAt(old, new) => {
            record.path = place_of(a[old + 1]);
            record.second = second_of(a[new + 1]);
            record.other_fd = a[new] as i32;
        }
        Names::Opened(place) => {
            record.path = place_of(a[place]);
            // SAFETY: the program passed a C string as the mode, and the call has read it.
            let mode = unsafe { (a[1] as *const u8).read() };
            record.detail = if mode == b'w' { CREATES_EMPTY } else { 0 };
            record.result = if result == 0 { -1 } else { i64::from(descriptor_of(result)) };
        }
        Names::OpenedDirectory(place) => {
            record.path = place_of(a[place]);
            record.detail = O_CLOEXEC;
            record.result = match result {
                0 => -1,
                stream => i64::from(descriptor_of_directory(stream)),
            };
        }
        Names::Nothing | Names::Descriptor(_) | Names::Stream(_) | Names::Directory(_) => {}
    }
    if call.op == Op::Control && record.detail == F_SETFD {
        record.other_fd = a[2] as i32;
    }
    if matches!(call.names, Names::Path(_) | Names::OpenedDirectory(_) | Names::Two(..)) {
        record.fd = WORKING_DIRECTORY;
        record.other_fd = WORKING_DIRECTORY;
    }
}

/// The place of a C string.
pub(crate) fn place_of(address: usize) -> u32 {
    if address == 0 || !ring::is_open() {
        return 0;
    }
    let start = address as *const u8;
    // SAFETY: the program passed a C string, and the call has read it.
    let len = unsafe { len_of(start) };
    // SAFETY: these bytes were just read.
    ring::path(unsafe { core::slice::from_raw_parts(start, len) })
}

/// Bytes of a C string, at most [`PATH_MAX`]: by words, as it is read at each call. The program may
/// have a strlen(3) of its own, which must not be called here.
///
/// # Safety
/// The string is readable up to its zero byte, or for [`PATH_MAX`] bytes.
unsafe fn len_of(start: *const u8) -> usize {
    const WORD: usize = size_of::<u64>();
    const LOW_BITS: u64 = u64::MAX / 0xff;
    let mut len = 0;
    while len < PATH_MAX {
        // SAFETY: no byte before this one is zero.
        let at = unsafe { start.add(len) };
        if (at as usize).is_multiple_of(WORD) && PATH_MAX - len >= WORD {
            // SAFETY: its first byte is readable, and an aligned word is in one page.
            let word = unsafe { at.cast::<u64>().read() };
            if word.wrapping_sub(LOW_BITS) & !word & (LOW_BITS << 7) == 0 {
                len += WORD;
                continue;
            }
        }
        // SAFETY: as above.
        if unsafe { at.read() } == 0 {
            break;
        }
        len += 1;
    }
    len
}

/// The place of a C string that may not be readable; 0 if it is not.
pub(crate) fn place_of_unread(address: usize) -> u32 {
    if address == 0 || !ring::is_open() {
        return 0;
    }
    let mut bytes = [0_u8; PATH_MAX];
    let len = system::read_text(address, &mut bytes);
    ring::path(&bytes[..len])
}

/// Writes a record of the process itself, with the thread's counters.
pub(crate) fn mark(op: Op, path: u32, second: u32, detail: u64) {
    let Some(thread) = Thread::current().filter(|_| ring::is_open()) else {
        return;
    };
    thread.write_loops();
    if matches!(op, Op::End | Op::Exec) && HAS_THREADS.load(Ordering::Relaxed) {
        write_all_loops();
    }
    let now = system::now();
    let usage = system::usage();
    let record = Record {
        start_ns: now,
        cpu_ns: usage.cpu_ns,
        result: if op == Op::End { system::run_delay_ns() } else { 0 },
        detail,
        // A child of vfork(2) has this memory, and an id of its own.
        pid: system::pid(),
        tid: thread.tid.load(Ordering::Relaxed),
        fd: WORKING_DIRECTORY,
        path,
        second,
        other_fd: -1,
        switches: since_last(usage.switches, &thread.switches),
        gap_blocks: since_last(usage.read_blocks, &thread.read_blocks),
        op: op as u16,
        flags: MEASURED,
        ..Record::default()
    };
    if record.pid == PID.load(Ordering::Relaxed) {
        thread.save(now, usage);
    }
    ring::push(&record);
}

/// Records the calls of all threads that were joined so far.
fn write_all_loops() {
    for thread in &TABLE {
        if thread.pointer.load(Ordering::Relaxed) != 0 {
            thread.write_loops();
        }
    }
}

/// Forgets the threads of the parent, in the child of fork(2).
pub(crate) fn forked() {
    PID.store(system::pid(), Ordering::Relaxed);
    let own = system::thread_pointer();
    if HAS_THREADS.swap(false, Ordering::Relaxed) {
        for entry in &TABLE {
            let owner = entry.pointer.load(Ordering::Relaxed);
            if owner != 0 && owner != own {
                entry.pointer.store(0, Ordering::Relaxed);
            }
        }
    }
    HAS_THREAD.store(false, Ordering::Relaxed);
    if let Some(thread) = Thread::current() {
        // It has a new id, and the joined calls are the parent's.
        thread.begin();
    }
}
