//! Positions of the pointer blocks in a block map of ext2 or ext3.
//!
//! ```text
//!   level 3   | 0: triple indirect |
//!   level 2   | 0: double indirect | 1..=n: below the triple |
//!   level 1   | 0: single indirect | 1..=n: below the double | n + 1..: below the triple |
//!   data      | 12 direct blocks | n blocks of each slot of level 1, in order |
//!
//!   n: pointers per block
//! ```
//!
//! So a slot's index at one level is `(index below - 1) / n`, and `(file block - 12) / n` at level
//! 1.

use std::ops::Range;

/// Pointers in the inode that name data directly.
pub(super) const DIRECT: u64 = 12;

/// The levels of pointer blocks.
const LEVELS: usize = 3;

/// The position of a pointer block. Ordered by level, then by the file blocks it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PointerSlot {
    /// 1 if the pointers name data.
    pub(super) level: u8,
    pub(super) index: u32,
}

/// Returns the number of file blocks that a block map reaches.
pub(crate) fn blocks_max(block_size: usize) -> u64 {
    let n = block_size as u64 / 4;
    DIRECT + n + n * n + n * n * n
}

/// Returns the number of pointer blocks that the file blocks in `ranges` need. The ranges are
/// sorted and do not overlap.
pub(crate) fn pointer_blocks_needed(
    ranges: impl Iterator<Item = Range<u64>>,
    block_size: usize,
) -> u64 {
    runs_by_level(ranges, block_size)
        .iter()
        .flatten()
        .map(|run| run.end - run.start)
        .sum()
}

/// Returns the slots that the file blocks in `ranges` need, sorted. The ranges are sorted and do
/// not overlap.
pub(super) fn slots_needed(
    ranges: impl Iterator<Item = Range<u64>>,
    block_size: usize,
) -> Vec<PointerSlot> {
    let levels = runs_by_level(ranges, block_size);
    (1..)
        .zip(&levels)
        .flat_map(|(level, runs)| {
            runs.iter()
                .cloned()
                .flatten()
                .map(move |index| PointerSlot {
                    level,
                    // At most n^2 + n + 1, which has 32 bits for blocks of up to 64 KiB.
                    index: index as u32,
                })
        })
        .collect()
}

/// Returns the indexes of the slots of each level that the file blocks in `ranges` need, as sorted
/// runs.
fn runs_by_level(
    ranges: impl Iterator<Item = Range<u64>>,
    block_size: usize,
) -> [Vec<Range<u64>>; LEVELS] {
    let n = block_size as u64 / 4;
    let mut levels: [Vec<Range<u64>>; LEVELS] = Default::default();
    for range in ranges {
        push_run(&mut levels[0], above(range, DIRECT, n));
    }
    for level in 1..LEVELS {
        let (below, here) = levels.split_at_mut(level);
        for run in &below[level - 1] {
            push_run(&mut here[0], above(run.clone(), 1, n));
        }
    }
    levels
}

/// Returns the indexes, one level above, for the indexes `run`; those before `first` need nothing
/// above.
fn above(run: Range<u64>, first: u64, n: u64) -> Range<u64> {
    let start = run.start.max(first);
    if start < run.end {
        (start - first) / n..(run.end - first).div_ceil(n)
    } else {
        0..0
    }
}

/// Adds a run that starts within or after the last one.
fn push_run(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        _ if run.is_empty() => {}
        Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
        _ => runs.push(run),
    }
}

impl PointerSlot {
    /// Returns the slot of `level` on the way to the file block `block`, which is not direct.
    pub(super) fn on_way_to(block: u64, level: u8, block_size: usize) -> Self {
        let n = block_size as u64 / 4;
        let mut index = (block - DIRECT) / n;
        for _ in 1..level {
            index = index.saturating_sub(1) / n;
        }
        Self {
            level,
            index: index as u32,
        }
    }

    /// Returns the file blocks of a slot of level 1.
    pub(super) fn data_range(&self, block_size: usize) -> Range<u64> {
        let n = block_size as u64 / 4;
        let start = DIRECT + u64::from(self.index) * n;
        start..start + n
    }

    /// Returns the slots below a slot of a level above 1, in the order of its pointers.
    pub(super) fn children(&self, block_size: usize) -> impl Iterator<Item = Self> {
        let n = block_size as u32 / 4;
        let (level, start) = (self.level - 1, 1 + self.index * n);
        (start..start + n).map(move |index| Self { level, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 1024;
    const N: u64 = 256;

    fn slots(range: Range<u64>) -> Vec<(u8, u32)> {
        let slots = slots_needed(std::iter::once(range.clone()), BLOCK);
        assert_eq!(
            slots.len() as u64,
            pointer_blocks_needed(std::iter::once(range), BLOCK)
        );
        slots.iter().map(|slot| (slot.level, slot.index)).collect()
    }

    #[test]
    fn slots_at_the_bounds_of_levels() {
        let (double, triple) = (DIRECT + N, DIRECT + N + N * N);
        assert_eq!(slots(0..DIRECT), []);
        assert_eq!(slots(0..DIRECT + 1), [(1, 0)]);
        assert_eq!(slots(double - 1..double), [(1, 0)]);
        assert_eq!(slots(double..double + 1), [(1, 1), (2, 0)]);
        let last_double = (1, N as u32);
        assert_eq!(slots(triple - 1..triple), [last_double, (2, 0)]);
        let first_triple = (1, N as u32 + 1);
        assert_eq!(slots(triple..triple + 1), [first_triple, (2, 1), (3, 0)]);
        let both = [last_double, first_triple, (2, 0), (2, 1), (3, 0)];
        assert_eq!(slots(triple - 1..triple + 1), both);
        let end = blocks_max(BLOCK);
        let last = [(1, (N + N * N) as u32), (2, N as u32), (3, 0)];
        assert_eq!(slots(end - 1..end), last);
    }

    #[test]
    fn slots_on_the_way_equal_slots_needed() {
        for block in [12, 267, 268, 65_803, 65_804, 70_000, 16_843_019] {
            for (level, index) in slots(block..block + 1) {
                let found = PointerSlot::on_way_to(block, level, BLOCK);
                assert_eq!((found.level, found.index), (level, index));
            }
        }
        let double = PointerSlot { level: 2, index: 0 };
        let first = double.children(BLOCK).next().unwrap();
        assert_eq!(first.data_range(BLOCK).start, DIRECT + N);
    }
}
