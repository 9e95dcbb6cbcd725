//! The search: memory is stepped down until misses exceed the limit, then halved between.

use super::curve::need;
use super::group::Memory;
use super::report::Point;
use std::io;

/// Windows are split into this many samples.
const SAMPLES: u32 = 10;
/// Share of the time for the warm-up, while the cache grows.
const WARM_UP: f64 = 0.25;
/// Growth of the cache in one window below which the warm-up ends.
const GROWTH: f64 = 0.01;
/// The least memory that is tried, in bytes.
const LEAST: u64 = 2 << 20;
/// Percent of time in which tasks wait for memory, above which memory is not lowered further.
const STALLED_MAX: f64 = 40.0;
/// A window ends early after this many times the misses that the limit permits in it.
const MANY: f64 = 8.0;
/// The distance of the results of two rounds at which the search ends.
const CONFIRMED: f64 = 0.03;
/// The part of its limit to which a cache is filled.
const FILLED: f64 = 0.9;
/// Windows at one size, at most.
const WINDOWS_MAX: u32 = 5;
/// The part of the previous window's misses above which they no longer fall.
const STEADY: f64 = 0.9;
/// The distance of the two points around the limit at which the search ends.
const NEAR: f64 = 0.02;

/// A workload of which the memory can be limited.
pub(super) trait Subject {
    /// Limits the cache to this size, or lifts the limit.
    fn hold(&mut self, cache_bytes: Option<u64>) -> io::Result<()>;
    /// Reads the memory; `None` after the workload has ended.
    fn memory(&mut self) -> io::Result<Option<Memory>>;
    /// Waits; returns false if the search must stop.
    fn wait(&mut self, seconds: f64) -> bool;
    /// Seconds since the start.
    fn now(&self) -> f64;
}

/// The parameters and results of a search.
pub(super) struct Search<'a, S> {
    pub(super) subject: &'a mut S,
    pub(super) limit_per_s: f64,
    pub(super) seconds: f64,
    pub(super) points: Vec<Point>,
    /// The largest memory beside the cache that was seen, in bytes.
    pub(super) other_bytes: u64,
    /// Whether the cache was below its limit in the last window, and grew: another program had
    /// dropped it, and its first reads are not refaults.
    pub(super) is_filling: bool,
    /// Whether the cache still grew at the end of the last warm-up.
    pub(super) is_growing: bool,
    pub(super) each: &'a mut dyn FnMut(&Point),
}

impl<S: Subject> Search<'_, S> {
    /// Runs the search until the limit is found, the time is over or the workload ends.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let Some(mut enough) = self.warm_up()? else {
            return Ok(());
        };
        if !self.is_enough(&enough) {
            return Ok(());
        }
        let mut too_little: Option<Point> = None;
        let mut found: Option<u64> = None;
        while self.subject.now() < self.seconds {
            let Some(target) = self.next(&enough, too_little.as_ref()) else {
                let last = found.replace(self.found());
                if too_little.is_none() || last.is_some_and(|last| is_near(last, self.found())) {
                    break;
                }
                // Once more from here: the first round was faster than the kernel's lists settle.
                too_little = None;
                continue;
            };
            self.subject.hold(Some(target))?;
            let Some(point) = self.settled(target)? else {
                break;
            };
            self.drop_contradicted(&point);
            let last = enough.cache_bytes;
            let (is_first, is_enough) = (too_little.is_none(), self.is_enough(&point));
            let was_whole = if is_enough {
                point.cache_bytes < last
            } else {
                !self.is_growing
            };
            if is_enough {
                enough = point;
            } else {
                too_little = Some(point);
            }
            if !is_first || was_whole {
                continue;
            }
            match self.grown(last)? {
                Some(grown) => (enough, too_little) = (grown, None),
                // Nothing can be evicted any more.
                None if is_enough => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Measures without a limit once more; `None` if the cache does not grow. A workload that has
    /// only now begun to read, or still fills the cache, has a new curve.
    fn grown(&mut self, before_bytes: u64) -> io::Result<Option<Point>> {
        let grown = self.warm_up()?.filter(|point| {
            self.is_enough(point) && point.cache_bytes as f64 > (1.0 + NEAR) * before_bytes as f64
        });
        if let Some(point) = grown {
            self.points = vec![point];
        }
        Ok(grown)
    }

    fn found(&self) -> u64 {
        need(&self.points, self.limit_per_s).bytes().unwrap_or(0)
    }

    /// Drops older points with more misses in more memory: they were not settled.
    fn drop_contradicted(&mut self, newest: &Point) {
        self.points.retain(|point| {
            point.cache_bytes < newest.cache_bytes || point.misses_per_s <= newest.misses_per_s
        });
    }

    fn is_enough(&self, point: &Point) -> bool {
        point.misses_per_s <= self.limit_per_s && point.stalled_percent <= STALLED_MAX
    }

    /// Measures without a limit, until the cache no longer grows.
    fn warm_up(&mut self) -> io::Result<Option<Point>> {
        let end = (self.subject.now() + WARM_UP * self.seconds).min(self.seconds);
        loop {
            let Some(before) = self.subject.memory()? else {
                return Ok(None);
            };
            let Some(point) = self.window(None)? else {
                return Ok(None);
            };
            let grown = point.cache_bytes.saturating_sub(before.cache_bytes) as f64;
            self.is_growing = grown > GROWTH * point.cache_bytes as f64;
            if !self.is_growing || self.subject.now() > end {
                return Ok(Some(point));
            }
            // A cache that still fills has no misses yet: its windows are not part of the curve.
            self.points.pop();
        }
    }

    /// Returns the next size, or `None` if the limit is found.
    fn next(&self, enough: &Point, too_little: Option<&Point>) -> Option<u64> {
        let from = enough.cache_bytes as f64;
        let target = match too_little {
            Some(below) => {
                let (low, high) = (below.cache_bytes.min(enough.cache_bytes) as f64, from);
                if high - low < NEAR * high {
                    return None;
                }
                (low * high).sqrt()
            }
            None => {
                let part = enough.misses_per_s / self.limit_per_s;
                let ratio = match part {
                    part if part > 0.3 => 0.95,
                    part if part > 0.05 => 0.9,
                    part if part > 0.0 => 0.8,
                    _ => 0.7,
                };
                from * ratio
            }
        };
        (target as u64 >= LEAST).then_some(target as u64)
    }

    /// Measures at a new size until the misses no longer fall: the kernel at first evicts pages
    /// that another order would have kept.
    fn settled(&mut self, target: u64) -> io::Result<Option<Point>> {
        let mut last = self.window(Some(target))?;
        for _ in 1..WINDOWS_MAX {
            let is_final = |point: &Point| self.is_enough(point) && !self.is_filling;
            let Some(before) = last.filter(|point| !is_final(point)) else {
                break;
            };
            let Some(point) = self.window(Some(target))? else {
                break;
            };
            self.points.retain(|point| *point != before);
            last = Some(point);
            if !self.is_filling && point.misses_per_s > STEADY * before.misses_per_s {
                break;
            }
        }
        Ok(last)
    }

    /// Measures for one window, or until there were many misses.
    fn window(&mut self, target: Option<u64>) -> io::Result<Option<Point>> {
        let length = (self.seconds / 20.0).clamp(0.2, 5.0);
        let Some(first) = self.subject.memory()? else {
            return Ok(None);
        };
        let start = self.subject.now();
        let (mut last, mut sum, mut count) = (first, 0, 0);
        while self.subject.now() - start < length {
            if !self.subject.wait(length / f64::from(SAMPLES)) {
                return Ok(None);
            }
            self.subject.hold(target)?;
            let Some(memory) = self.subject.memory()? else {
                break;
            };
            last = memory;
            sum += last.cache_bytes;
            count += 1;
            self.other_bytes = self.other_bytes.max(last.other_bytes);
            let misses = last.refaults.saturating_sub(first.refaults);
            if count >= 2 && misses as f64 > MANY * self.limit_per_s * length {
                break;
            }
        }
        let seconds = self.subject.now() - start;
        if count == 0 || seconds <= 0.0 {
            return Ok(None);
        }
        self.is_filling = last.cache_bytes as f64 > (1.0 + GROWTH) * first.cache_bytes as f64
            && target.is_some_and(|target| (last.cache_bytes as f64) < FILLED * target as f64);
        let point = Point {
            cache_bytes: sum / count,
            misses_per_s: last.refaults.saturating_sub(first.refaults) as f64 / seconds,
            stalled_percent: last.stalled_us.saturating_sub(first.stalled_us) as f64
                / (seconds * 1e4),
            seconds,
        };
        self.points.push(point);
        (self.each)(&point);
        Ok(Some(point))
    }
}

fn is_near(a: u64, b: u64) -> bool {
    a.abs_diff(b) as f64 <= CONFIRMED * a as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::report::Need;

    /// A workload with 1000 misses per second at 40 MiB, and ten times less every 20 MiB.
    #[derive(Default)]
    struct Simulated {
        now: f64,
        held: Option<u64>,
        refaults: f64,
        life: f64,
        /// Seconds in which it does not read, and has 20 MiB that cannot be evicted.
        idle: f64,
        /// Seconds in which its cache then grows.
        filling: f64,
    }

    const MIB: f64 = (1 << 20) as f64;

    impl Subject for Simulated {
        fn hold(&mut self, cache_bytes: Option<u64>) -> io::Result<()> {
            self.held = cache_bytes;
            Ok(())
        }

        fn memory(&mut self) -> io::Result<Option<Memory>> {
            let filled = ((self.now - self.idle) / self.filling).clamp(0.0, 1.0);
            let whole = (20.0 + 280.0 * filled) * MIB;
            let memory = Memory {
                cache_bytes: match self.held {
                    Some(held) if self.now > self.idle => held.min(whole as u64),
                    _ => whole as u64,
                },
                other_bytes: 7,
                refaults: self.refaults as u64,
                stalled_us: 0,
            };
            Ok((self.now <= self.life).then_some(memory))
        }

        fn wait(&mut self, seconds: f64) -> bool {
            let cache = self.held.unwrap_or(300 << 20) as f64 / MIB;
            let is_reading = f64::from(self.now >= self.idle);
            self.refaults += is_reading * seconds * 1000.0 * 10.0_f64.powf((40.0 - cache) / 20.0);
            self.now += seconds;
            true
        }

        fn now(&self) -> f64 {
            self.now
        }
    }

    /// A workload that does not end.
    fn endless(idle: f64, filling: f64) -> Simulated {
        Simulated {
            life: 1e9,
            idle,
            filling,
            ..Simulated::default()
        }
    }

    fn search(mut subject: Simulated, seconds: f64) -> (Vec<Point>, f64) {
        let mut search = Search {
            subject: &mut subject,
            limit_per_s: 100.0,
            seconds,
            points: Vec::new(),
            other_bytes: 0,
            is_filling: false,
            is_growing: false,
            each: &mut |_| (),
        };
        search.run().unwrap();
        let points = search.points;
        (points, subject.now)
    }

    #[test]
    fn workload_that_reads_late_is_measured() {
        for subject in [endless(10.0, 1.0), endless(10.0, 20.0), endless(-1.0, 35.0)] {
            let (points, _) = search(subject, 300.0);
            let Need::About(bytes) = need(&points, 100.0) else {
                panic!("{points:?}");
            };
            let mib = bytes as f64 / MIB;
            assert!((58.0..62.0).contains(&mib), "{mib} MiB, {points:?}");
        }
        let (points, _) = search(endless(1e9, 1.0), 120.0);
        assert_eq!(need(&points, 100.0), Need::AtMost(20 << 20));
    }

    #[test]
    fn known_knee_is_found_within_3_percent() {
        let (points, seconds) = search(endless(-1.0, 1.0), 120.0);
        let Need::About(bytes) = need(&points, 100.0) else {
            panic!("{points:?}");
        };
        let mib = bytes as f64 / MIB;
        assert!((58.0..62.0).contains(&mib), "{mib} MiB, {points:?}");
        assert!(seconds < 120.0, "the search ends when the limit is found");
    }

    #[test]
    fn search_of_ended_command_keeps_its_points() {
        let subject = Simulated {
            life: 10.0,
            ..endless(-1.0, 1.0)
        };
        let (points, _) = search(subject, 120.0);
        assert!(!points.is_empty() && points.len() < 5, "{points:?}");
        assert!(matches!(need(&points, 100.0), Need::AtMost(_)));
    }
}
