//! The time of one thread in one interval, less what is followed elsewhere: split by bucket.

use super::part::Part;
use super::strip::{Interval, Strip, spread};
use super::timeline::{Process, Thread};

/// The counters of one bucket, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    own: u64,
    waited: u64,
    cpu: u64,
    stopped: u64,
}

/// A thread that is looked at from one moment on.
pub(super) struct Visit<'a> {
    process: &'a Process,
    thread: &'a Thread,
    within: Interval,
    /// Its own time is counted up to here.
    done: u64,
    first: usize,
    counted: Vec<Counted>,
    /// For a processor, in calls.
    delayed_ns: u64,
}

impl<'a> Visit<'a> {
    pub(super) fn new(
        process: &'a Process,
        thread: &'a Thread,
        within: Interval,
        strip: &Strip,
    ) -> Self {
        let first = strip.bucket(within.from);
        Self {
            process,
            thread,
            within,
            done: within.from,
            first,
            counted: vec![Counted::default(); strip.bucket(within.to) + 1 - first],
            delayed_ns: 0,
        }
    }

    /// Skips an interval that is followed elsewhere.
    pub(super) fn skip(&mut self, followed: Interval, strip: &Strip) {
        self.count(followed.from, strip);
        self.done = followed.to;
    }

    /// Counts the thread's own time up to a moment.
    fn count(&mut self, to: u64, strip: &Strip) {
        let own = Interval {
            from: self.done,
            to,
        };
        for (bucket, piece) in strip.pieces(own) {
            let counted = &mut self.counted[bucket - self.first];
            // The counters are those of a program: they may be any numbers.
            let length = piece.to - piece.from;
            let cpu_ns = self.thread.cpu_between(piece.from, piece.to);
            let stopped_ns = self.thread.stopped_between(piece.from, piece.to);
            counted.own += length;
            counted.cpu += cpu_ns.min(length);
            counted.stopped += stopped_ns.min(length);
        }
    }

    /// Adds the wait of a call.
    pub(super) fn wait(&mut self, part: Part, call: Interval, ns: u64, strip: &mut Strip) {
        if part == Part::Processor {
            self.delayed_ns += ns;
        }
        for (bucket, ns) in strip.shares(call, ns) {
            strip.add_to(bucket, part, ns);
            if let Some(counted) = self.counted.get_mut(bucket.saturating_sub(self.first)) {
                counted.waited += ns;
            }
        }
    }

    /// Splits the rest of its time; returns its own time by bucket, in nanoseconds.
    pub(super) fn finish(mut self, strip: &mut Strip) -> impl Iterator<Item = (usize, u64)> {
        self.count(self.within.to, strip);
        let sum = |value: fn(&Counted) -> u64| self.counted.iter().map(value).sum::<u64>();
        let (own_ns, waited_ns) = (sum(|c| c.own), sum(|c| c.waited));
        let (from, to) = (self.within.from, self.within.to);
        let cpu_ns = self.thread.cpu_between(from, to);
        let cpu_ns = cpu_ns.min(own_ns - waited_ns.min(own_ns));
        let rest_ns = own_ns.saturating_sub(waited_ns + cpu_ns);
        let stopped_ns = self.thread.stopped_between(from, to).min(rest_ns);
        let rest_ns = rest_ns - stopped_ns;
        // Of its whole life: the part of this interval.
        let life_ns = self.process.end_ns.saturating_sub(self.process.start_ns);
        let delay = own_ns as f64 / life_ns.max(1) as f64;
        let delay_ns = (self.process.run_delay_ns as f64 * delay.min(1.0)) as u64;
        let delay_ns = delay_ns.saturating_sub(self.delayed_ns).min(rest_ns);
        let first = self.first;
        let weights = |value: fn(&Counted) -> u64| {
            let found: Vec<_> = self.counted.iter().map(value).collect();
            let is_empty = found.iter().all(|weight| *weight == 0);
            let own = || self.counted.iter().map(|c| c.own).collect();
            if is_empty { own() } else { found }
        };
        let mut add = |part, ns, value| {
            for (index, ns) in spread(ns, &weights(value)).enumerate() {
                strip.add_to(first + index, part, ns);
            }
        };
        let free: fn(&Counted) -> u64 = |c| c.own.saturating_sub(c.waited + c.cpu + c.stopped);
        add(Part::Cpu, cpu_ns, |c| c.cpu);
        add(Part::Tracing, stopped_ns, |c| c.stopped);
        add(Part::Processor, delay_ns, free);
        add(Part::NotFiles, rest_ns - delay_ns, free);
        let own = self.counted.into_iter().map(|counted| counted.own);
        own.enumerate().map(move |(index, ns)| (first + index, ns))
    }
}
