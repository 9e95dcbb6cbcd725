//! The index of a mapping: a radix tree from page indexes to frames, which readers walk without a
//! lock. Linux: lib/xarray.c.
//!
//! ```text
//!   index of a page                 pages 0..16 are in the mapping itself: most files need no tree
//!        |
//!   Branch (128) -> ... -> Leaf     256 pages: a word each, and a word for each large folio of 16
//!
//!   word of a page          | MARK | REFERENCED | DIRTY | BUSY | frame + 1, or 0 |      32 bits
//!   word of a large folio   |  -   | REFERENCED |   -   |  -   | frame + 1, or 0 |
//! ```
//!
//! The word of a large folio is set only while all its sixteen pages are present, up to date, and
//! contiguous in memory; a reader that finds it copies up to 64 KiB after one lookup. It is a
//! shortcut: the words of the pages are complete without it.
//!
//! Lookups, and changes of REFERENCED, need no lock. All other operations need the mapping's state
//! locked.

use super::folio::{Frame, GROUP, LARGE_FOLIO_PAGES};
use crate::base::rcu::{Pin, RcuCell};
use crate::base::sync::atomic::{AtomicU32, Ordering};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

const LEAF: usize = 256;
const LEAF_BITS: u32 = 8;
const FANOUT: usize = 128;
const FANOUT_BITS: u32 = 7;

/// The bits of a page's word, or 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u32);

impl Word {
    pub(super) const ABSENT: Self = Self(0);
    const FRAME: u32 = (1 << 28) - 1;
    /// Not up to date: being read, by a thread that has the bytes locked.
    pub(super) const BUSY: u32 = 1 << 28;
    /// To be written to the store.
    pub(super) const DIRTY: u32 = 1 << 29;
    /// Used since the last scan of reclaim.
    pub(super) const REFERENCED: u32 = 1 << 30;
    /// The first reader of this page starts the next readahead. Linux: `PG_readahead`.
    pub(super) const MARK: u32 = 1 << 31;

    pub(super) fn new(frame: Frame, flags: u32) -> Self {
        Self((frame + 1) | flags)
    }

    /// Returns the frame, if there is a page.
    #[inline]
    pub(super) fn frame(self) -> Option<Frame> {
        (self.0 & Self::FRAME).checked_sub(1)
    }

    #[inline]
    pub(super) fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }
}

/// The first sixteen pages: their words, and the word of their large folio.
#[repr(C)]
struct FirstPages {
    large: AtomicU32,
    pages: [AtomicU32; GROUP as usize],
}

#[repr(align(64))]
struct Leaf {
    /// The words of the large folios: one cache line, all that a reader of large folios needs.
    large: [AtomicU32; LEAF / GROUP as usize],
    pages: [AtomicU32; LEAF],
    /// Page index of the first page.
    start: u64,
    present: AtomicU32,
    dirty: AtomicU32,
}

struct Branch {
    children: [RcuCell<Node>; FANOUT],
    /// Page index of the first page below.
    start: u64,
    /// Each child covers `1 << child_bits` pages.
    child_bits: u32,
    present: AtomicU32,
}

enum Node {
    Leaf(Leaf),
    Branch(Branch),
}

impl Node {
    fn leaf(start: u64) -> Self {
        Self::Leaf(Leaf {
            large: std::array::from_fn(|_| AtomicU32::new(0)),
            pages: std::array::from_fn(|_| AtomicU32::new(0)),
            start,
            present: AtomicU32::new(0),
            dirty: AtomicU32::new(0),
        })
    }

    fn branch(start: u64, child_bits: u32) -> Self {
        Self::Branch(Branch {
            children: std::array::from_fn(|_| RcuCell::empty()),
            start,
            child_bits,
            present: AtomicU32::new(0),
        })
    }

    /// Returns the node's size: it covers `1 << bits` pages.
    #[inline]
    fn bits(&self) -> u32 {
        match self {
            Self::Leaf(_) => LEAF_BITS,
            Self::Branch(branch) => branch.child_bits + FANOUT_BITS,
        }
    }

    /// Returns whether the root, which starts at page 0, covers the page.
    #[inline]
    fn reaches(&self, index: u64) -> bool {
        index.checked_shr(self.bits()).unwrap_or(0) == 0
    }

    fn range(&self) -> Range<u64> {
        let start = match self {
            Self::Leaf(leaf) => leaf.start,
            Self::Branch(branch) => branch.start,
        };
        // The tree of the largest file ends beyond the last possible index.
        start
            ..1_u64
                .checked_shl(self.bits())
                .and_then(|len| start.checked_add(len))
                .unwrap_or(u64::MAX)
    }
}

impl Branch {
    #[inline]
    fn child(&self, index: u64) -> &RcuCell<Node> {
        &self.children[(index >> self.child_bits) as usize % FANOUT]
    }
}

/// The words of a page and of its large folio.
pub(super) struct PageSlot<'p> {
    large: &'p AtomicU32,
    page: &'p AtomicU32,
    /// The counts of present and of dirty pages of the leaf; `None` for the first pages.
    counts: Option<(&'p AtomicU32, &'p AtomicU32)>,
}

impl PageSlot<'_> {
    #[inline]
    pub(super) fn word(&self) -> Word {
        Word(self.page.load(Ordering::Acquire))
    }

    /// Returns the word of the large folio: the frame of its first page, if it is set.
    #[inline]
    pub(super) fn large(&self) -> Word {
        Word(self.large.load(Ordering::Acquire))
    }

    /// Sets REFERENCED of the page; writes to no shared memory if it is set already.
    #[inline]
    pub(super) fn touch(&self, word: Word) {
        set_referenced(self.page, word);
    }

    /// Sets REFERENCED of the large folio.
    #[inline]
    pub(super) fn touch_large(&self, word: Word) {
        set_referenced(self.large, word);
    }
}

/// Sets REFERENCED, unless the word has changed: the word of a removed page, or of a large folio
/// that was split, must stay 0.
#[inline]
fn set_referenced(atomic: &AtomicU32, word: Word) {
    if !word.has(Word::REFERENCED) {
        let referenced = word.0 | Word::REFERENCED;
        let _ = atomic.compare_exchange(word.0, referenced, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The index of one mapping.
pub(super) struct Index {
    first: FirstPages,
    first_dirty: AtomicU32,
    root: RcuCell<Node>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            first: FirstPages {
                large: AtomicU32::new(0),
                pages: std::array::from_fn(|_| AtomicU32::new(0)),
            },
            first_dirty: AtomicU32::new(0),
            root: RcuCell::empty(),
        }
    }

    /// Returns the words of a page, if its leaf exists.
    #[inline]
    pub(super) fn find<'p>(&'p self, index: u64, pin: &'p Pin) -> Option<PageSlot<'p>> {
        if index < LARGE_FOLIO_PAGES {
            let page = &self.first.pages[index as usize];
            return Some(PageSlot {
                large: &self.first.large,
                page,
                counts: None,
            });
        }
        let mut node = self.root.load(pin)?;
        if !node.reaches(index) {
            return None;
        }
        loop {
            match node {
                Node::Leaf(leaf) => return Some(leaf.slot(index)),
                Node::Branch(branch) => node = branch.child(index).load(pin)?,
            }
        }
    }

    /// Returns the word of a page.
    #[inline]
    pub(super) fn word(&self, index: u64, pin: &Pin) -> Word {
        self.find(index, pin)
            .map_or(Word::ABSENT, |slot| slot.word())
    }

    /// Returns the words of a page, and creates its leaf if needed.
    fn find_or_create<'p>(&'p self, index: u64, pin: &'p Pin) -> PageSlot<'p> {
        loop {
            if let Some(slot) = self.find(index, pin) {
                return slot;
            }
            let start = |bits: u32| index >> bits << bits;
            let Some(root) = self.root.get(pin) else {
                // The root covers the file from its start, so that it only ever grows upward.
                let mut bits = LEAF_BITS;
                let mut node = Node::leaf(0);
                while index >> bits > 0 {
                    node = Node::branch(0, bits);
                    bits += FANOUT_BITS;
                }
                drop(self.root.replace(Some(Arc::new(node))));
                continue;
            };
            if !root.reaches(index) {
                let above = Node::branch(0, root.bits());
                if let Node::Branch(branch) = &above {
                    branch.present.store(1, Ordering::Relaxed);
                    // Complete before it becomes the root: readers walk it at once.
                    drop(branch.children[0].replace(Some(root)));
                }
                drop(self.root.replace(Some(Arc::new(above))));
                continue;
            }
            let mut node = self.root.load(pin);
            while let Some(Node::Branch(branch)) = node {
                let child = branch.child(index);
                if child.load(pin).is_none() {
                    let bits = branch.child_bits;
                    let fresh = if bits == LEAF_BITS {
                        Node::leaf(start(bits))
                    } else {
                        Node::branch(start(bits), bits - FANOUT_BITS)
                    };
                    branch.present.fetch_add(1, Ordering::Relaxed);
                    drop(child.replace(Some(Arc::new(fresh))));
                }
                node = child.load(pin);
            }
        }
    }

    /// Inserts a page, which must be absent.
    pub(super) fn insert(&self, index: u64, word: Word, pin: &Pin) {
        let slot = self.find_or_create(index, pin);
        debug_assert_eq!(slot.word(), Word::ABSENT);
        // Release: a reader that finds the word finds the bytes that it names (C5).
        slot.page.store(word.0, Ordering::Release);
        if let Some((present, _)) = slot.counts {
            present.fetch_add(1, Ordering::Relaxed);
        }
        self.count_dirty(&slot, u32::from(word.has(Word::DIRTY)), 0);
    }

    /// Removes a page; returns its word.
    pub(super) fn remove(&self, index: u64, pin: &Pin) -> Word {
        let Some(slot) = self.find(index, pin) else {
            return Word::ABSENT;
        };
        // The large folio first: no reader finds it after one of its pages (C6).
        slot.large.store(0, Ordering::Release);
        let word = Word(slot.page.swap(0, Ordering::AcqRel));
        if word == Word::ABSENT {
            return word;
        }
        self.count_dirty(&slot, 0, u32::from(word.has(Word::DIRTY)));
        if let Some((present, _)) = slot.counts
            && present.fetch_sub(1, Ordering::Relaxed) == 1
        {
            self.prune(index, pin);
        }
        word
    }

    fn count_dirty(&self, slot: &PageSlot<'_>, more: u32, less: u32) {
        let dirty = slot.counts.map_or(&self.first_dirty, |(_, dirty)| dirty);
        if more != less {
            dirty.fetch_add(more.wrapping_sub(less), Ordering::Relaxed);
        }
    }

    /// Removes the leaf of `index`, which has no pages left, and the branches that become empty.
    fn prune(&self, index: u64, pin: &Pin) {
        let mut path: SmallVec<[&Branch; 8]> = SmallVec::new();
        let mut node = self.root.load(pin);
        while let Some(Node::Branch(branch)) = node {
            path.push(branch);
            node = branch.child(index).load(pin);
        }
        while let Some(branch) = path.pop() {
            drop(branch.child(index).replace(None));
            if branch.present.fetch_sub(1, Ordering::Relaxed) > 1 {
                return;
            }
        }
        drop(self.root.replace(None));
    }

    /// Changes flags of a present page: sets `set`, clears `clear`. Returns the old word.
    pub(super) fn change(&self, index: u64, set: u32, clear: u32, pin: &Pin) -> Word {
        let Some(slot) = self.find(index, pin) else {
            return Word::ABSENT;
        };
        // REFERENCED may be set by readers at the same time.
        let before = slot
            .page
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                (word != 0).then_some((word & !clear) | set)
            });
        let Ok(before) = before.map(Word) else {
            return Word::ABSENT;
        };
        let was_dirty = u32::from(before.has(Word::DIRTY));
        let is_dirty = u32::from((before.0 & !clear | set) & Word::DIRTY != 0);
        self.count_dirty(&slot, is_dirty, was_dirty);
        before
    }

    /// Sets the word of the large folio of `index` if all its pages are present and contiguous.
    pub(super) fn try_form_large(&self, index: u64, pin: &Pin) {
        let first = index / LARGE_FOLIO_PAGES * LARGE_FOLIO_PAGES;
        let Some(slot) = self.find(first, pin) else {
            return;
        };
        let Some(frame) = slot
            .word()
            .frame()
            .filter(|frame| frame.is_multiple_of(GROUP))
        else {
            return;
        };
        for offset in 0..GROUP {
            let word = self.word(first + u64::from(offset), pin);
            // A large folio would hide a mark from the reader that should start the next readahead.
            if word.frame() != Some(frame + offset) || word.has(Word::BUSY | Word::MARK) {
                return;
            }
        }
        slot.large.store(Word::new(frame, 0).0, Ordering::Release);
    }

    /// Clears REFERENCED of the page; returns whether it was set. Linux: `folio_check_references`.
    pub(super) fn take_referenced(&self, index: u64, pin: &Pin) -> bool {
        let Some(slot) = self.find(index, pin) else {
            return false;
        };
        let large = slot.large();
        if large.has(Word::REFERENCED) {
            // A use of the large folio is a use of each of its pages.
            let exchanged = slot.large.compare_exchange(
                large.0,
                large.0 & !Word::REFERENCED,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if exchanged.is_ok() {
                let first = index / LARGE_FOLIO_PAGES * LARGE_FOLIO_PAGES;
                for page in first..first + LARGE_FOLIO_PAGES {
                    self.change(page, Word::REFERENCED, 0, pin);
                }
            }
        }
        self.change(index, 0, Word::REFERENCED, pin)
            .has(Word::REFERENCED)
    }

    /// Returns the first page at or after `from`, dirty ones only with `only_dirty`, with its word.
    pub(super) fn next(&self, from: u64, only_dirty: bool, pin: &Pin) -> Option<(u64, Word)> {
        let is_wanted =
            |word: &Word| *word != Word::ABSENT && (!only_dirty || word.has(Word::DIRTY));
        let is_skipped = only_dirty && self.first_dirty.load(Ordering::Relaxed) == 0;
        for index in from..if is_skipped { from } else { LARGE_FOLIO_PAGES } {
            let word = Word(self.first.pages[index as usize].load(Ordering::Acquire));
            if is_wanted(&word) {
                return Some((index, word));
            }
        }
        next_below(
            self.root.load(pin)?,
            from.max(LARGE_FOLIO_PAGES),
            only_dirty,
            pin,
        )
    }
}

fn next_below(node: &Node, from: u64, only_dirty: bool, pin: &Pin) -> Option<(u64, Word)> {
    let range = node.range();
    if from >= range.end {
        return None;
    }
    let from = from.max(range.start);
    match node {
        Node::Leaf(leaf) => {
            if only_dirty && leaf.dirty.load(Ordering::Relaxed) == 0 {
                return None;
            }
            let words = &leaf.pages[(from - leaf.start) as usize..];
            let found = words
                .iter()
                .map(|page| Word(page.load(Ordering::Acquire)))
                .enumerate()
                .find(|(_, word)| *word != Word::ABSENT && (!only_dirty || word.has(Word::DIRTY)));
            found.map(|(place, word)| (from + place as u64, word))
        }
        Node::Branch(branch) => {
            let first = ((from - branch.start) >> branch.child_bits) as usize;
            branch.children[first..]
                .iter()
                .find_map(|child| next_below(child.load(pin)?, from, only_dirty, pin))
        }
    }
}

impl Leaf {
    #[inline]
    fn slot(&self, index: u64) -> PageSlot<'_> {
        let place = index as usize % LEAF;
        PageSlot {
            large: &self.large[place / GROUP as usize],
            page: &self.pages[place],
            counts: Some((&self.present, &self.dirty)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rcu;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn touch_of_a_removed_page_has_no_effect() {
        let pin = rcu::pin();
        let index = Index::new();
        for place in [3, 1000] {
            index.insert(place, Word::new(7, 0), &pin);
            let slot = index.find(place, &pin).unwrap();
            let word = slot.word();
            index.remove(place, &pin);
            slot.touch(word);
            slot.touch_large(word);
            assert_eq!(slot.word(), Word::ABSENT);
            assert_eq!(slot.large(), Word::ABSENT);
        }
    }

    #[test]
    fn large_folio_needs_all_pages_in_order() {
        let pin = rcu::pin();
        let index = Index::new();
        for first in [0, 512] {
            for place in 0..GROUP {
                index.insert(first + u64::from(place), Word::new(32 + place, 0), &pin);
            }
            index.try_form_large(first + 5, &pin);
            let slot = index.find(first + 9, &pin).unwrap();
            assert_eq!(slot.large().frame(), Some(32));
            slot.touch_large(slot.large());
            assert!(
                index.take_referenced(first + 9, &pin),
                "a use of the large folio is one of each page"
            );
            assert!(!index.take_referenced(first + 9, &pin));
            assert!(index.take_referenced(first + 2, &pin));
            index.remove(first + 1, &pin);
            assert_eq!(slot.large().frame(), None);
            index.insert(first + 1, Word::new(90, 0), &pin);
            index.try_form_large(first, &pin);
            assert_eq!(slot.large().frame(), None, "not contiguous");
        }
    }

    fn places() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..40, 200_u64..600, 0_u64..1 << 51]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn index_agrees_with_a_map(operations in prop::collection::vec((0..4_u8, places()), 1..200)) {
            let pin = rcu::pin();
            let index = Index::new();
            let mut model: BTreeMap<u64, bool> = BTreeMap::new();
            for (kind, place) in operations {
                match kind {
                    0 | 1 if !model.contains_key(&place) => {
                        let flags = if kind == 1 { Word::DIRTY } else { 0 };
                        index.insert(place, Word::new(place as u32 & 0xffff, flags), &pin);
                        model.insert(place, kind == 1);
                    }
                    2 => {
                        let was_present = index.remove(place, &pin) != Word::ABSENT;
                        prop_assert_eq!(was_present, model.remove(&place).is_some());
                    }
                    _ => {
                        index.change(place, 0, Word::DIRTY, &pin);
                        model.entry(place).and_modify(|dirty| *dirty = false);
                    }
                }
                let next = |dirty| index.next(place, dirty, &pin).map(|(index, _)| index);
                prop_assert_eq!(next(false), model.range(place..).next().map(|(index, _)| *index));
                prop_assert_eq!(next(true), model.range(place..).find(|(_, dirty)| **dirty).map(|(index, _)| *index));
            }
            let rest: Vec<u64> = model.keys().copied().collect();
            rest.iter().for_each(|place| assert_ne!(index.remove(*place, &pin), Word::ABSENT));
            prop_assert!(index.root.load(&pin).is_none(), "an empty tree has no nodes");
        }
    }
}
