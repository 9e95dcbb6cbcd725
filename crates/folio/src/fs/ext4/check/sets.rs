//! A sparse bit set of blocks and a sparse table of inode facts, both allocated in pages on demand.

use std::ops::Range;

const WORDS: usize = 512;
const PAGE_BITS: u64 = 64 * WORDS as u64;

/// A set of numbers below a limit: one bit each, in pages of 4 KiB.
pub(super) struct SparseBitSet {
    pages: Vec<Option<Box<[u64; WORDS]>>>,
    len: u64,
}

impl SparseBitSet {
    /// Creates an empty set for numbers below `len`.
    pub(super) fn new(len: u64) -> Self {
        let mut pages = Vec::new();
        pages.resize_with(len.div_ceil(PAGE_BITS) as usize, || None);
        Self { pages, len }
    }

    /// Adds `number`; returns whether it is new.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        self.insert_range(number..number + 1) == 0
    }

    /// Adds the numbers of `range` that are below the limit; returns how many were in the set
    /// already.
    pub(super) fn insert_range(&mut self, range: Range<u64>) -> u64 {
        let (mut at, end, mut known) = (range.start, range.end.min(self.len), 0);
        while at < end {
            let page =
                self.pages[(at / PAGE_BITS) as usize].get_or_insert_with(|| Box::new([0; WORDS]));
            let word = &mut page[(at % PAGE_BITS / 64) as usize];
            let count = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << (at % 64);
            known += u64::from((*word & mask).count_ones());
            *word |= mask;
            at += count;
        }
        known
    }

    /// Returns the 64 bits that start at number `64 * index`.
    pub(super) fn word(&self, index: u64) -> u64 {
        let page = self.pages.get((index / WORDS as u64) as usize);
        page.and_then(Option::as_ref)
            .map_or(0, |page| page[(index % WORDS as u64) as usize])
    }

    /// Returns the first number of the set in `range`; skips unallocated pages at once.
    pub(super) fn next(&self, range: Range<u64>) -> Option<u64> {
        let (mut at, end) = (range.start, range.end.min(self.len));
        while at < end {
            let Some(page) = &self.pages[(at / PAGE_BITS) as usize] else {
                at = (at / PAGE_BITS + 1) * PAGE_BITS;
                continue;
            };
            let rest = page[(at % PAGE_BITS / 64) as usize] >> (at % 64);
            if rest != 0 {
                return Some(at + u64::from(rest.trailing_zeros())).filter(|found| *found < end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Returns the 64 bits that start at number `start`, which need not be aligned to a word.
    pub(super) fn window(&self, start: u64) -> u64 {
        let (index, shift) = (start / 64, start % 64);
        match shift {
            0 => self.word(index),
            _ => self.word(index) >> shift | self.word(index + 1) << (64 - shift),
        }
    }
}

/// The kind of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub(super) enum InodeKind {
    /// Not in use.
    #[default]
    Free,
    Regular,
    Directory,
    CharacterDevice,
    BlockDevice,
    Fifo,
    Socket,
    Symlink,
    /// In use, with an invalid file type in `i_mode`.
    Unknown,
}

impl InodeKind {
    /// Returns the kind given by `i_mode`.
    pub(super) fn of_mode(mode: u16) -> Self {
        match mode >> 12 {
            0x8 => Self::Regular,
            0x4 => Self::Directory,
            0x2 => Self::CharacterDevice,
            0x6 => Self::BlockDevice,
            0x1 => Self::Fifo,
            0xC => Self::Socket,
            0xA => Self::Symlink,
            _ => Self::Unknown,
        }
    }

    /// Returns the file type that a directory entry stores for this kind (`EXT4_FT_*`).
    pub(super) fn entry_code(self) -> u8 {
        match self {
            Self::Free | Self::Unknown => 0,
            kind => kind as u8,
        }
    }
}

/// The facts about one inode that later phases need.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InodeFacts {
    /// Directory entries found for the inode.
    pub(super) names: u32,
    /// `i_links_count`.
    pub(super) links: u16,
    /// File type.
    pub(super) kind: InodeKind,
    /// Whether the inode must be without a name: reserved, orphan, or holding an attribute's value.
    pub(super) is_nameless: bool,
    /// Whether the inode needs no name, but may have some: an AFS inode.
    pub(super) is_name_optional: bool,
    /// Whether the mode is that of a special file, and the rest that of a file with content.
    pub(super) has_foreign_content: bool,
    /// Whether an inode that is not in use has a mode and no time of deletion.
    pub(super) has_no_deletion_time: bool,
}

const FACTS: usize = 4096;

/// A sparse table of facts by inode number.
pub(super) struct InodeFactsTable {
    pages: Vec<Option<Box<[InodeFacts]>>>,
}

impl InodeFactsTable {
    /// Creates an empty table for inodes 1 to `count`.
    pub(super) fn new(count: u32) -> Self {
        let mut pages = Vec::new();
        pages.resize_with(count as usize / FACTS + 1, || None);
        Self { pages }
    }

    /// Returns the facts about inode `number`; those of a free inode by default.
    pub(super) fn get(&self, number: u32) -> InodeFacts {
        let page = self
            .pages
            .get(number as usize / FACTS)
            .and_then(Option::as_ref);
        page.map_or(InodeFacts::default(), |page| page[number as usize % FACTS])
    }

    /// Returns the facts about inode `number` for writing; `number` must be at most the count.
    pub(super) fn get_mut(&mut self, number: u32) -> &mut InodeFacts {
        let page = self.pages[number as usize / FACTS]
            .get_or_insert_with(|| vec![InodeFacts::default(); FACTS].into());
        &mut page[number as usize % FACTS]
    }

    /// Returns the first number of `range` that may be in use, or the range's end. All numbers
    /// before it are free.
    pub(super) fn skip_unknown(&self, range: Range<u32>) -> u32 {
        let mut at = range.start;
        while at < range.end
            && self
                .pages
                .get(at as usize / FACTS)
                .is_none_or(Option::is_none)
        {
            at = (at / FACTS as u32 + 1).saturating_mul(FACTS as u32);
        }
        at.min(range.end)
    }

    /// Iterates over all inodes of allocated pages.
    pub(super) fn known(&self) -> impl Iterator<Item = (u32, InodeFacts)> {
        self.pages.iter().enumerate().flat_map(|(index, page)| {
            let facts = page.iter().flat_map(|page| page.iter());
            facts
                .enumerate()
                .map(move |(i, facts)| ((index * FACTS + i) as u32, *facts))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_ranges_across_pages_are_inserted() {
        let mut bits = SparseBitSet::new(100_000);
        assert_eq!(bits.insert_range(60..70), 0);
        assert_eq!(bits.insert_range(32_700..32_900), 0);
        assert_eq!(bits.insert_range(65..32_701), 6);
        assert!(!bits.insert(32_899) && bits.insert(32_900));
        assert_eq!((bits.next(59..60), bits.next(60..61)), (None, Some(60)));
        assert_eq!(bits.window(57), u64::MAX << 3);
        assert_eq!(
            (
                bits.next(0..100_000),
                bits.next(61..62),
                bits.next(32_902..100_000)
            ),
            (Some(60), Some(61), None)
        );
        assert_eq!(
            (
                bits.insert_range(99_990..200_000),
                bits.next(99_999..200_000)
            ),
            (0, Some(99_999))
        );
    }

    #[test]
    fn inode_facts_are_stored_by_number() {
        let mut table = InodeFactsTable::new(10_000);
        table.get_mut(9_999).links = 3;
        assert_eq!((table.get(9_999).links, table.get(1).links), (3, 0));
        assert_eq!(
            [1..9_000, 8192..9_999, 1..100].map(|range| table.skip_unknown(range)),
            [8192, 8192, 100]
        );
        assert_eq!(
            table
                .known()
                .filter(|(_, facts)| facts.links > 0)
                .map(|(n, _)| n)
                .collect::<Vec<_>>(),
            [9_999]
        );
    }
}
