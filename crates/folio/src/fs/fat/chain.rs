//! The clusters of one file or directory, in order, as far as the table was followed.

use super::layout::CLUSTER_MIN;

/// Neighboring clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) cluster: u32,
    pub(crate) count: u32,
}

/// A chain of clusters.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// Each with the number of clusters before it.
    runs: Vec<(u32, Run)>,
    len: u32,
    /// The next cluster to follow; none at the end.
    next: Option<u32>,
    /// A cluster before, to detect a loop (Brent's algorithm).
    mark: u32,
}

impl Chain {
    /// Returns the chain that begins at cluster `first`; 0 for an empty one.
    pub(crate) fn new(first: u32) -> Self {
        Self {
            next: (first != 0).then_some(first),
            ..Self::default()
        }
    }

    /// Returns the first cluster; 0 if there is none.
    pub(crate) fn first(&self) -> u32 {
        let known = self.runs.first().map(|(_, run)| run.cluster);
        known.or(self.next).unwrap_or(0)
    }

    /// Returns the number of clusters that are known.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the next cluster to follow.
    pub(crate) fn next(&self) -> Option<u32> {
        self.next
    }

    pub(crate) fn last(&self) -> Option<u32> {
        let (_, run) = self.runs.last()?;
        Some(run.cluster + run.count - 1)
    }

    /// Returns the clusters from number `index` of the chain on that are neighbors.
    pub(crate) fn find(&self, index: u32) -> Option<Run> {
        let at = self.runs.partition_point(|(before, _)| *before <= index);
        let (before, run) = self.runs.get(at.checked_sub(1)?)?;
        let skipped = index - before;
        (skipped < run.count).then(|| Run {
            cluster: run.cluster + skipped,
            count: run.count - skipped,
        })
    }

    /// Adds `cluster`, which the chain reached, and the one that follows it. Returns false in a
    /// loop.
    #[must_use]
    pub(crate) fn step(&mut self, cluster: u32, next: Option<u32>) -> bool {
        if cluster == self.mark {
            return false;
        }
        self.push(Run { cluster, count: 1 });
        if self.len.is_power_of_two() {
            self.mark = cluster;
        }
        self.next = next;
        true
    }

    /// Adds clusters at the end.
    pub(crate) fn push(&mut self, added: Run) {
        let before = self.len;
        self.len += added.count;
        match self.runs.last_mut() {
            Some((_, run)) if run.cluster + run.count == added.cluster => run.count += added.count,
            _ => self.runs.push((before, added)),
        }
    }

    /// Removes the clusters behind the first `len`, and returns them. What was not followed is
    /// dropped.
    pub(crate) fn cut(&mut self, len: u32) -> Vec<Run> {
        let mut removed = Vec::new();
        while let Some((before, run)) = self.runs.last_mut()
            && *before + run.count > len
        {
            let kept = len.saturating_sub(*before);
            removed.push(Run {
                cluster: run.cluster + kept,
                count: run.count - kept,
            });
            run.count = kept;
            if kept == 0 {
                self.runs.pop();
            }
        }
        self.len = self.len.min(len);
        (self.next, self.mark) = (None, 0);
        removed
    }
}

/// The clusters of a file system that are in use.
pub(crate) struct ClusterMap {
    /// A bit for each cluster, set if it is in use.
    used: Vec<u64>,
    free_count: u32,
    end: u32,
    /// The first cluster to try.
    next: u32,
}

impl ClusterMap {
    /// Returns the map of a file system whose clusters have numbers below `end`; all are in use.
    pub(crate) fn new(end: u32) -> Self {
        Self {
            used: vec![u64::MAX; end.div_ceil(64) as usize],
            free_count: 0,
            end,
            next: CLUSTER_MIN,
        }
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.free_count
    }

    /// Returns the first cluster to try.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    fn is_free(&self, cluster: u32) -> bool {
        let word = self.used.get(cluster as usize / 64);
        word.is_some_and(|word| word >> (cluster % 64) & 1 == 0)
    }

    pub(crate) fn release(&mut self, cluster: u32) {
        if cluster < self.end && !self.is_free(cluster) {
            self.used[cluster as usize / 64] &= !(1 << (cluster % 64));
            self.free_count += 1;
        }
    }

    fn first_free(&self, from: u32, end: u32) -> Option<u32> {
        let mut at = from;
        while at < end {
            let word = !self.used[at as usize / 64] >> (at % 64);
            if word != 0 {
                let found = at + word.trailing_zeros();
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Takes `count` free clusters, from `near` on if that is free; none if there are too few.
    pub(crate) fn take(&mut self, count: u32, near: Option<u32>) -> Option<Vec<Run>> {
        if count > self.free_count {
            return None;
        }
        let mut at = near.filter(|near| self.is_free(*near)).unwrap_or(self.next);
        let (mut taken, mut left) = (Vec::<Run>::new(), count);
        while left > 0 {
            let found = self.first_free(at, self.end);
            let cluster = found.or_else(|| self.first_free(CLUSTER_MIN, self.end))?;
            self.used[cluster as usize / 64] |= 1 << (cluster % 64);
            self.free_count -= 1;
            (at, left) = (cluster + 1, left - 1);
            match taken.last_mut() {
                Some(run) if run.cluster + run.count == cluster => run.count += 1,
                _ => taken.push(Run { cluster, count: 1 }),
            }
        }
        self.next = if at < self.end { at } else { CLUSTER_MIN };
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_with_loop_ends() {
        let mut chain = Chain::new(7);
        let steps = (0..1000).take_while(|step| chain.step(7 + step % 5 * 2, Some(1)));
        assert!(steps.count() < 20);
    }

    #[test]
    fn cut_chain_finds_the_rest() {
        let mut chain = Chain::default();
        for (cluster, count) in [(10, 4), (14, 2), (30, 3)] {
            chain.push(Run { cluster, count });
        }
        let run = |cluster, count| Run { cluster, count };
        assert_eq!(chain.find(5), Some(run(15, 1)));
        assert_eq!(chain.find(6), Some(run(30, 3)));
        assert_eq!(chain.cut(4), [run(30, 3), run(14, 2)]);
        assert_eq!(
            (chain.len(), chain.last(), chain.find(4)),
            (4, Some(13), None)
        );
    }

    #[test]
    fn map_wraps_around_and_counts() {
        let mut map = ClusterMap::new(200);
        (2..200).for_each(|cluster| map.release(cluster));
        assert_eq!(
            map.take(100, None).unwrap(),
            [Run {
                cluster: 2,
                count: 100
            }]
        );
        map.release(5);
        assert_eq!(map.take(99, None).unwrap().len(), 2);
        assert_eq!((map.free_count(), map.take(1, None)), (0, None));
    }
}
