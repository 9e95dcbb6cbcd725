//! Loops of tiny reads and writes: after their first calls, one record sums up many.
//!
//! A loop of a million calls then fills no ring, and costs its reader nothing. The calls of a
//! thread are joined until it does something else that has a record, or another thread closes or
//! syncs the descriptor.

use crate::calls::Op;
use crate::layout::Record;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// First calls of a loop, which have a record each.
const SINGLE: u32 = 16;
/// Loops of a thread at a time: a copy reads one descriptor and writes another.
const LOOPS: usize = 4;
/// Nanoseconds after which joined calls are due.
const DUE_NS: u64 = 10_000_000;

/// A bit for each descriptor, by its last six bits: calls on it may be joined in some thread.
static JOINED: AtomicU64 = AtomicU64::new(0);

fn bit_of(fd: i32) -> u64 {
    1 << (fd as u32 % u64::BITS)
}

/// Returns whether calls on a descriptor may be joined in some thread, and forgets it: the caller
/// records the calls of all threads.
pub(crate) fn may_have_joined(fd: i32) -> bool {
    let bit = bit_of(fd);
    JOINED.load(Ordering::Relaxed) & bit != 0 && JOINED.swap(0, Ordering::Relaxed) & bit != 0
}

/// Calls of one operation on one descriptor.
struct Loop {
    /// The operation and the descriptor; 0 is free.
    key: AtomicU64,
    seen: AtomicU32,
    /// Those that are joined and have no record yet; the other fields are theirs.
    joined: AtomicU32,
    start_ns: AtomicU64,
    wall_ns: AtomicU64,
    size_bytes: AtomicU64,
    moved_bytes: AtomicU64,
}

/// The loops of a thread.
pub(crate) struct Loops {
    loops: [Loop; LOOPS],
    /// The next one to be replaced.
    next: AtomicU32,
}

/// A call that may be joined.
pub(crate) struct TinyCall {
    pub(crate) op: Op,
    pub(crate) fd: i32,
    pub(crate) size_bytes: u64,
    pub(crate) moved_bytes: u64,
    pub(crate) start_ns: u64,
    pub(crate) wall_ns: u64,
}

impl Loops {
    pub(crate) const fn new() -> Self {
        Self {
            loops: [const {
                Loop {
                    key: AtomicU64::new(0),
                    seen: AtomicU32::new(0),
                    joined: AtomicU32::new(0),
                    start_ns: AtomicU64::new(0),
                    wall_ns: AtomicU64::new(0),
                    size_bytes: AtomicU64::new(0),
                    moved_bytes: AtomicU64::new(0),
                }
            }; LOOPS],
            next: AtomicU32::new(0),
        }
    }

    /// Forgets all calls.
    pub(crate) fn clear(&self) {
        for one in &self.loops {
            one.key.store(0, Ordering::Relaxed);
            one.joined.store(0, Ordering::Relaxed);
            one.wall_ns.store(0, Ordering::Relaxed);
            one.size_bytes.store(0, Ordering::Relaxed);
            one.moved_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Joins a call to its loop. Returns false for the first ones, which need records of their own.
    pub(crate) fn join(&self, call: &TinyCall) -> bool {
        let key = (call.op as u64 + 1) << 32 | u64::from(call.fd as u32);
        let Some(own) = self
            .loops
            .iter()
            .find(|one| one.key.load(Ordering::Relaxed) == key)
        else {
            self.begin(key);
            return false;
        };
        if own.seen.load(Ordering::Relaxed) < SINGLE {
            add(&own.seen, 1);
            return false;
        }
        // Another thread may take them meanwhile: not without the number, which comes last.
        own.size_bytes.fetch_max(call.size_bytes, Ordering::Relaxed);
        own.wall_ns.fetch_add(call.wall_ns, Ordering::Relaxed);
        own.moved_bytes
            .fetch_add(call.moved_bytes, Ordering::Relaxed);
        if own.joined.load(Ordering::Relaxed) == 0 {
            own.start_ns.store(call.start_ns, Ordering::Relaxed);
        }
        own.joined.fetch_add(1, Ordering::Relaxed);
        let bit = bit_of(call.fd);
        if JOINED.load(Ordering::Relaxed) & bit == 0 {
            JOINED.fetch_or(bit, Ordering::Relaxed);
        }
        true
    }

    /// Begins a loop in the place of another one, which has no joined calls, if there is such one.
    fn begin(&self, key: u64) {
        for _ in 0..LOOPS {
            let place = self.next.load(Ordering::Relaxed) as usize % LOOPS;
            add(&self.next, 1);
            let one = &self.loops[place];
            if one.joined.load(Ordering::Relaxed) == 0 {
                one.key.store(key, Ordering::Relaxed);
                one.seen.store(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Returns whether joined calls have waited for their record long enough.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.loops.iter().any(|one| {
            let start_ns = one.start_ns.load(Ordering::Relaxed);
            one.joined.load(Ordering::Relaxed) > 0 && now_ns.saturating_sub(start_ns) >= DUE_NS
        })
    }

    /// Passes on a record for the joined calls of each loop, without process and thread.
    pub(crate) fn take(&self, mut write: impl FnMut(Record)) {
        for one in &self.loops {
            let key = one.key.load(Ordering::Relaxed);
            if one.joined.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let wall_ns = one.wall_ns.swap(0, Ordering::Relaxed);
            let moved_bytes = one.moved_bytes.swap(0, Ordering::Relaxed);
            let size_bytes = one.size_bytes.swap(0, Ordering::Relaxed);
            let joined = one.joined.swap(0, Ordering::Relaxed);
            if joined == 0 {
                continue;
            }
            write(Record {
                start_ns: one.start_ns.load(Ordering::Relaxed),
                wall_ns,
                result: moved_bytes as i64,
                detail: size_bytes.max(1),
                fd: key as u32 as i32,
                other_fd: -1,
                op: ((key >> 32) - 1) as u16,
                more_calls: joined - 1,
                ..Record::default()
            });
        }
    }
}

/// Adds to a number that one thread changes: cheaper than an atomic addition.
fn add(to: &AtomicU32, more: u32) {
    to.store(
        to.load(Ordering::Relaxed).wrapping_add(more),
        Ordering::Relaxed,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(fd: i32, start_ns: u64) -> TinyCall {
        TinyCall {
            op: Op::Write,
            fd,
            size_bytes: 2,
            moved_bytes: 1,
            start_ns,
            wall_ns: 5,
        }
    }

    #[test]
    fn calls_of_a_loop_are_summed_up() {
        let loops = Loops::new();
        loops.join(&call(3, 0));
        loops.clear();
        let single = (0..1000)
            .take_while(|at| !loops.join(&call(3, *at)))
            .count();
        assert_eq!(single, SINGLE as usize);
        assert!(loops.join(&call(3, 900)));
        assert!(!loops.join(&call(4, 901)), "another loop");
        assert!(!loops.is_due(902) && loops.is_due(DUE_NS + 900));
        let mut taken = Vec::new();
        loops.take(|record| taken.push(record));
        loops.take(|_| panic!("taken twice"));
        let [record] = taken[..] else {
            panic!("{taken:?}")
        };
        assert_eq!(
            (record.op, record.fd, record.more_calls),
            (Op::Write as u16, 3, 1)
        );
        assert_eq!((record.start_ns, record.wall_ns), (SINGLE.into(), 10));
        assert_eq!((record.detail, record.result), (2, 2));
    }

    #[test]
    fn joined_calls_keep_their_place() {
        let loops = Loops::new();
        (0..u64::from(SINGLE) + 1).for_each(|at| {
            loops.join(&call(0, at));
        });
        for fd in 1..100 {
            assert!(!loops.join(&call(fd, 0)), "{fd}");
        }
        assert!(may_have_joined(0) && !may_have_joined(0), "once");
        assert!(
            loops.join(&call(0, 0)),
            "more loops than places, and its calls have no record yet"
        );
    }
}
