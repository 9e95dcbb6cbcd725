//! A run in buckets of equal length: the time of each part in each bucket.

use super::part::Part;

/// Buckets of a run, whatever its length.
const BUCKETS: usize = 120;
/// Parts of the time.
const PARTS: usize = Part::ALL.len();

/// A part of the time, in nanoseconds of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interval {
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The time of each part, in each bucket of a run.
#[derive(Debug, Clone)]
pub struct Strip {
    whole: Interval,
    buckets: Vec<[u64; PARTS]>,
}

impl Strip {
    pub(super) fn new(whole: Interval) -> Self {
        Self {
            whole,
            buckets: vec![[0; PARTS]; BUCKETS],
        }
    }

    /// Returns the nanoseconds of each part, in the order of [`Part::ALL`], for each bucket.
    pub fn buckets(&self) -> &[[u64; PARTS]] {
        &self.buckets
    }

    /// Returns the length of a bucket, in nanoseconds.
    pub fn bucket_ns(&self) -> u64 {
        (self.whole.to - self.whole.from) / BUCKETS as u64
    }

    /// Returns the time of the run.
    pub(super) fn whole(&self) -> Interval {
        self.whole
    }

    /// Returns the nanoseconds of a part.
    pub(super) fn total(&self, part: Part) -> u64 {
        self.buckets
            .iter()
            .map(|bucket| bucket[part as usize])
            .sum()
    }

    /// Returns the first moment of a bucket.
    fn edge(&self, bucket: usize) -> u64 {
        self.whole.from
            + part_of(
                self.whole.to - self.whole.from,
                bucket as u64,
                BUCKETS as u64,
            )
    }

    /// Returns the bucket of a moment.
    pub(super) fn bucket(&self, at: u64) -> usize {
        let length = self.whole.to - self.whole.from;
        let at = at.saturating_sub(self.whole.from);
        (part_of(BUCKETS as u64, at, length) as usize).min(BUCKETS - 1)
    }

    /// Returns the pieces of an interval, by bucket.
    pub(super) fn pieces(&self, within: Interval) -> impl Iterator<Item = (usize, Interval)> {
        let from = within.from.max(self.whole.from);
        let to = within.to.min(self.whole.to);
        (self.bucket(from)..BUCKETS)
            .map(move |bucket| {
                let piece = Interval {
                    from: from.max(self.edge(bucket)),
                    to: to.min(self.edge(bucket + 1)),
                };
                (bucket, piece)
            })
            .take_while(move |(bucket, _)| self.edge(*bucket) < to)
            .filter(|(_, piece)| piece.from < piece.to)
    }

    /// Adds time of a part to a bucket.
    pub(super) fn add_to(&mut self, bucket: usize, part: Part, ns: u64) {
        self.buckets[bucket][part as usize] += ns;
    }

    /// Splits time equally over an interval, by bucket.
    pub(super) fn shares(&self, within: Interval, ns: u64) -> Vec<(usize, u64)> {
        let pieces: Vec<_> = self.pieces(within).collect();
        match pieces[..] {
            [] => vec![(self.bucket(within.from), ns)],
            [(bucket, _)] => vec![(bucket, ns)],
            _ => {
                let lengths: Vec<_> = pieces.iter().map(|(_, at)| at.to - at.from).collect();
                let buckets = pieces.iter().map(|(bucket, _)| *bucket);
                buckets.zip(spread(ns, &lengths)).collect()
            }
        }
    }

    /// Adds time of a part, equally over an interval.
    pub(super) fn add(&mut self, part: Part, within: Interval, ns: u64) {
        for (bucket, ns) in self.shares(within, ns) {
            self.add_to(bucket, part, ns);
        }
    }

    /// Moves time from one part to another one, as far as there is any in an interval; returns what
    /// is left.
    pub(super) fn convert(&mut self, parts: [Part; 2], within: Interval, ns: u64) -> u64 {
        let [from, to] = parts.map(|part| part as usize);
        let buckets = self.bucket(within.from)..=self.bucket(within.to.max(within.from));
        let buckets = &mut self.buckets[buckets];
        let found: Vec<_> = buckets.iter().map(|bucket| bucket[from]).collect();
        let moved = ns.min(found.iter().sum());
        for (bucket, ns) in buckets.iter_mut().zip(spread(moved, &found)) {
            bucket[from] -= ns;
            bucket[to] += ns;
        }
        ns - moved
    }
}

impl Default for Strip {
    fn default() -> Self {
        Self::new(Interval { from: 0, to: 0 })
    }
}

/// Returns `total * part / whole`, rounded down; 0 of nothing.
fn part_of(total: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    let product = u128::from(total) * u128::from(part) / u128::from(whole);
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// Splits a total in proportion to weights; all of it goes to the first if the weights are 0.
pub(super) fn spread(total: u64, weights: &[u64]) -> impl Iterator<Item = u64> {
    let sum: u64 = weights.iter().sum();
    let mut before = 0;
    let mut given = 0;
    weights.iter().map(move |weight| {
        before += weight;
        let until = if sum == 0 {
            total
        } else {
            part_of(total, before, sum)
        };
        let share = until - given;
        given = until;
        share
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(strip: &Strip) -> (u64, u64) {
        (strip.total(Part::Cpu), strip.total(Part::Fsync))
    }

    #[test]
    fn time_is_neither_lost_nor_added() {
        for (from, to) in [(0, 1), (5, 7), (1000, 1_000_000_007), (9, 9), (0, u64::MAX)] {
            let mut strip = Strip::new(Interval { from, to });
            let middle = from + (to - from) / 3;
            for within in [(from, to), (middle, to), (from, middle), (middle, middle)] {
                let (from, to) = within;
                strip.add(Part::Cpu, Interval { from, to }, 1_000_003);
            }
            strip.add(Part::Fsync, Interval { from: middle, to }, 77);
            assert_eq!(sums(&strip), (4_000_012, 77), "{from} to {to}");
            let left = strip.convert([Part::Cpu, Part::Fsync], Interval { from, to }, 5_000_000);
            assert_eq!(left, 5_000_000 - 4_000_012);
            assert_eq!(sums(&strip), (0, 4_000_089));
            // Times of a program that are in no order.
            let reversed = Interval { from: to, to: from };
            strip.convert([Part::Fsync, Part::Cpu], reversed, 1);
        }
    }

    #[test]
    fn pieces_cover_an_interval() {
        let strip = Strip::new(Interval {
            from: 100,
            to: 1300,
        });
        let pieces: Vec<_> = strip.pieces(Interval { from: 105, to: 125 }).collect();
        let shown: Vec<_> = pieces
            .iter()
            .map(|(bucket, piece)| (*bucket, piece.from, piece.to))
            .collect();
        assert_eq!(shown, [(0, 105, 110), (1, 110, 120), (2, 120, 125)]);
        // Outside of the run.
        assert_eq!(strip.pieces(Interval { from: 0, to: 50 }).count(), 0);
        assert_eq!(
            strip
                .pieces(Interval {
                    from: 1300,
                    to: 1400
                })
                .count(),
            0
        );
    }

    #[test]
    fn total_is_spread_by_weight() {
        let spread = |total, weights: &[u64]| spread(total, weights).collect::<Vec<_>>();
        assert_eq!(spread(10, &[1, 0, 3]), [2, 0, 8]);
        assert_eq!(spread(10, &[0, 0]), [10, 0]);
    }
}
