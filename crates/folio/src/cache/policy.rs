//! Which page goes next: two queues and a memory of what went (S3-FIFO, with a first queue that
//! adapts).
//!
//! ```text
//!   new -> [ small ] -- unused --> out, remembered
//!              | used                 |
//!              v                      v comes back
//!          [ main  ] <----------------+
//!           ^     |  used: once more round; unused: out, remembered
//!           +-----+
//! ```
//!
//! A scan passes through the small queue and leaves main alone. When pages come back that left
//! small too early, small grows; when pages come back that left main, it shrinks. Source: J. Yang
//! et al., "FIFO queues are all you need for cache eviction", SOSP 2023; the adaption is ours.
//! `folio bench reclaim` compares it with others.

use super::pool::Frame;
use std::collections::VecDeque;

/// The small queue's share of all pages at first, as 1 / this.
const SMALL_SHARE: usize = 10;
/// Pages in a row that cannot go, until the other queue is asked.
const PUT_BACKS_MAX: u32 = 32;
/// Steps from one end of the adaption to the other, at least.
const STEPS: usize = 4096;
/// The least share.
const SMALL_SHARE_MIN: usize = 100;

/// A page in a queue: the frame, and which of the pages that have lain in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) frame: Frame,
    pub(super) generation: u32,
}

/// One of the two queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Small,
    Main,
}

/// The queues.
pub(super) struct Policy {
    small: VecDeque<Entry>,
    main: VecDeque<Entry>,
    /// Pages that the small queue should hold.
    small_target: usize,
    /// Pages in a row that could not go.
    put_backs: u32,
    ghosts: Ghosts,
}

impl Policy {
    /// Queues for at most about `page_count` pages.
    pub(super) fn new(page_count: u64) -> Self {
        let page_count = page_count as usize;
        Self {
            small: VecDeque::new(),
            main: VecDeque::new(),
            small_target: page_count / SMALL_SHARE,
            put_backs: 0,
            ghosts: Ghosts {
                entries: Vec::new(),
                page_count,
                time: 0,
                gone: [0; 2],
            },
        }
    }

    /// Adds a page that came in; `key` is the same each time it does. Returns whether it went not
    /// long ago.
    pub(super) fn insert(&mut self, entry: Entry, key: u64) -> bool {
        let Some(left) = self.ghosts.take(key) else {
            self.small.push_back(entry);
            return false;
        };
        self.main.push_back(entry);
        self.adapt(left);
        true
    }

    /// A page came back that had left this queue: it should have been longer. As in ARC, the step
    /// is the larger the rarer such pages leave; otherwise the queue that most pages leave would
    /// win by their number alone.
    fn adapt(&mut self, left: Queue) {
        let page_count = self.ghosts.page_count;
        let [small, main] = self.ghosts.gone.map(|gone| gone.max(1) as usize);
        let unit = (page_count / STEPS).max(1);
        self.small_target = match left {
            Queue::Small => {
                let longest = page_count - page_count / SMALL_SHARE;
                (self.small_target + unit * (main / small).max(1)).min(longest)
            }
            Queue::Main => {
                let step = unit * (small / main).max(1);
                self.small_target
                    .saturating_sub(step)
                    .max(page_count / SMALL_SHARE_MIN)
            }
        };
    }

    /// The page to look at next, and the queue it was in.
    pub(super) fn next(&mut self) -> Option<(Entry, Queue)> {
        let is_small_long = self.small.len() > self.small_target;
        // Where nothing can go, the other queue is asked for a while.
        let is_other_asked = self.put_backs % (2 * PUT_BACKS_MAX) >= PUT_BACKS_MAX;
        let prefers_small = is_small_long != is_other_asked;
        match (prefers_small && !self.small.is_empty()) || self.main.is_empty() {
            true => self.small.pop_front().map(|entry| (entry, Queue::Small)),
            false => self.main.pop_front().map(|entry| (entry, Queue::Main)),
        }
    }

    /// It was used: it stays, in main.
    pub(super) fn keep(&mut self, entry: Entry) {
        self.main.push_back(entry);
        self.put_backs = 0;
    }

    /// It could not go: it waits once more where it was.
    pub(super) fn put_back(&mut self, entry: Entry, queue: Queue) {
        self.put_backs = self.put_backs.wrapping_add(1);
        match queue {
            Queue::Small => self.small.push_back(entry),
            Queue::Main => self.main.push_back(entry),
        }
    }

    /// It went.
    pub(super) fn note_gone(&mut self, key: u64, queue: Queue) {
        self.ghosts.add(key, queue);
        self.put_backs = 0;
    }

    /// Entries in both queues, those of pages that are gone included.
    pub(super) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Forgets entries of pages that are gone.
    pub(super) fn retain(&mut self, is_alive: impl Fn(&Entry) -> bool) {
        self.small.retain(&is_alive);
        self.main.retain(&is_alive);
    }
}

/// What went, as fingerprints: as many as the cache has pages, older ones count as forgotten.
struct Ghosts {
    /// Sets of [`WAYS`]; made when the first page goes.
    entries: Vec<Ghost>,
    page_count: usize,
    /// Pages that went so far.
    time: u32,
    /// How many went lately from the small queue and from main.
    gone: [u32; 2],
}

/// Places for a fingerprint.
const WAYS: usize = 4;

#[derive(Clone, Copy, Default)]
struct Ghost {
    /// 0 is nobody.
    fingerprint: u32,
    /// When it went; the lowest bit says from which queue.
    time: u32,
}

impl Ghosts {
    fn set(&mut self, key: u64) -> &mut [Ghost] {
        let sets = self.entries.len() / WAYS;
        let start = (key as usize % sets) * WAYS;
        &mut self.entries[start..start + WAYS]
    }

    fn fingerprint(key: u64) -> u32 {
        ((key >> 32) as u32).max(1)
    }

    fn add(&mut self, key: u64, queue: Queue) {
        if self.entries.is_empty() {
            let sets = (self.page_count / WAYS).next_power_of_two();
            self.entries = vec![Ghost::default(); 2 * sets * WAYS];
        }
        self.time = self.time.wrapping_add(1);
        self.gone[usize::from(queue == Queue::Main)] += 1;
        if self.gone.iter().sum::<u32>() as usize > self.page_count {
            self.gone = self.gone.map(|gone| gone / 2);
        }
        let now = self.time;
        let ghost = Ghost {
            fingerprint: Self::fingerprint(key),
            time: now << 1 | u32::from(queue == Queue::Main),
        };
        let age = |ghost: &Ghost| {
            if ghost.fingerprint == 0 {
                u32::MAX
            } else {
                now.wrapping_sub(ghost.time >> 1)
            }
        };
        if let Some(oldest) = self.set(key).iter_mut().max_by_key(|ghost| age(ghost)) {
            *oldest = ghost;
        }
    }

    fn take(&mut self, key: u64) -> Option<Queue> {
        if self.entries.is_empty() {
            return None;
        }
        // Times have 31 bits.
        let (now, page_count) = (self.time, self.page_count as u32);
        let is_young = |ghost: &Ghost| (now << 1).wrapping_sub(ghost.time & !1) >> 1 <= page_count;
        let fingerprint = Self::fingerprint(key);
        let ghost = self
            .set(key)
            .iter_mut()
            .find(|ghost| ghost.fingerprint == fingerprint)?;
        ghost.fingerprint = 0;
        is_young(ghost).then_some(if ghost.time & 1 == 1 {
            Queue::Main
        } else {
            Queue::Small
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(frame: Frame) -> Entry {
        Entry {
            frame,
            generation: 1,
        }
    }

    fn key(page: u64) -> u64 {
        page.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn a_scan_leaves_main_alone() {
        let mut policy = Policy::new(100);
        (0..50).for_each(|page| policy.keep(entry(page)));
        for page in 1000..2000 {
            policy.insert(entry(page), key(page.into()));
            if policy.len() > 100 {
                let (gone, queue) = policy.next().unwrap();
                assert_eq!(queue, Queue::Small);
                policy.note_gone(key(gone.frame.into()), queue);
            }
        }
        assert_eq!(policy.main.len(), 50);
    }

    #[test]
    fn what_comes_back_goes_to_main_and_moves_the_border() {
        let mut policy = Policy::new(1000);
        let before = policy.small_target;
        for page in 0..100 {
            policy.note_gone(key(page), Queue::Small);
        }
        for page in 0..100 {
            assert!(policy.insert(entry(page as Frame), key(page)));
        }
        assert_eq!((policy.main.len(), policy.small.len()), (100, 0));
        assert!(policy.small_target > before);
        for page in 100..300 {
            policy.note_gone(key(page), Queue::Main);
            assert!(policy.insert(entry(page as Frame), key(page)));
        }
        assert!(policy.small_target < before);
    }

    #[test]
    fn a_queue_of_pages_that_cannot_go_does_not_hide_the_other() {
        let mut policy = Policy::new(1000);
        (0..900).for_each(|page| policy.keep(entry(page)));
        (900..950).for_each(|page| assert!(!policy.insert(entry(page), key(page.into()))));
        let looks = (0..100).map(|_| {
            let (entry, queue) = policy.next().unwrap();
            policy.put_back(entry, queue);
            queue
        });
        assert!(looks.collect::<Vec<_>>().contains(&Queue::Small));
    }

    #[test]
    fn what_went_long_ago_is_forgotten() {
        let mut policy = Policy::new(64);
        policy.note_gone(key(1), Queue::Small);
        for page in 1000..1100 {
            policy.note_gone(key(page), Queue::Small);
        }
        assert!(!policy.insert(entry(1), key(1)));
    }
}
