//! The reclaim policy: two queues, and ghosts of evicted pages. It is S3-FIFO with an adaptive
//! small queue. Linux: mm/workingset.c has such ghosts (shadow entries).
//!
//! ```text
//!   new -> [ small ] -- unused --> evicted: ghost
//!              | used                 |
//!              v                      v read again (refault)
//!          [ main  ] <----------------+
//!           ^     |  used: another round; unused: evicted: ghost
//!           +-----+
//! ```
//!
//! A scan passes through the small queue and does not disturb main. Refaults of pages evicted from
//! small make small longer; refaults of pages evicted from main make it shorter. Source: J. Yang et
//! al., "FIFO queues are all you need for cache eviction", SOSP 2023; the adaption is our own.
//! docs/design/page-cache.md compares it with other policies.

use super::folio::Frame;
use std::collections::VecDeque;

/// The small queue's initial share of all pages, as 1 / this.
const SMALL_SHARE: usize = 10;
/// Consecutive pages that cannot be evicted, before the other queue is tried.
const PUT_BACKS_MAX: u32 = 32;
/// Least number of adaption steps between the extremes.
const STEPS: usize = 4096;
/// The small queue's least share, as 1 / this.
const SMALL_SHARE_MIN: usize = 100;

/// A page in a queue: the frame, and the generation of the page in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueEntry {
    pub(super) frame: Frame,
    pub(super) generation: u32,
}

/// The two queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Small,
    Main,
}

/// The queues and the ghosts.
pub(super) struct ReclaimPolicy {
    small: VecDeque<QueueEntry>,
    main: VecDeque<QueueEntry>,
    /// The target length of the small queue.
    small_target: usize,
    /// Consecutive pages that could not be evicted.
    put_backs: u32,
    ghosts: Ghosts,
}

impl ReclaimPolicy {
    /// Creates queues for about `page_count` pages.
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
                evicted: [0; 2],
            },
        }
    }

    /// Adds a new page; `key` is the same each time the page is read. Returns whether the page was
    /// evicted recently.
    pub(super) fn insert(&mut self, entry: QueueEntry, key: u64) -> bool {
        let Some(left) = self.ghosts.take(key) else {
            self.small.push_back(entry);
            return false;
        };
        self.main.push_back(entry);
        self.adapt(left);
        true
    }

    /// Adapts to the refault of a page that was evicted from the queue `left`, which should have
    /// been longer. As in ARC, the step is larger the rarer evictions from that queue are;
    /// otherwise the queue with most evictions would win by their number alone.
    fn adapt(&mut self, left: Queue) {
        let page_count = self.ghosts.page_count;
        let [small, main] = self.ghosts.evicted.map(|count| count.max(1) as usize);
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

    /// Takes the page to examine next, and its queue.
    pub(super) fn next(&mut self) -> Option<(QueueEntry, Queue)> {
        let is_small_long = self.small.len() > self.small_target;
        // After many pages that cannot be evicted, try the other queue for a while.
        let tries_other = self.put_backs % (2 * PUT_BACKS_MAX) >= PUT_BACKS_MAX;
        let prefers_small = is_small_long != tries_other;
        if (prefers_small && !self.small.is_empty()) || self.main.is_empty() {
            self.small.pop_front().map(|entry| (entry, Queue::Small))
        } else {
            self.main.pop_front().map(|entry| (entry, Queue::Main))
        }
    }

    /// Keeps a page that was used, in main.
    pub(super) fn keep(&mut self, entry: QueueEntry) {
        self.main.push_back(entry);
        self.put_backs = 0;
    }

    /// Returns a page that cannot be evicted to its queue.
    pub(super) fn put_back(&mut self, entry: QueueEntry, queue: Queue) {
        self.put_backs = self.put_backs.wrapping_add(1);
        match queue {
            Queue::Small => self.small.push_back(entry),
            Queue::Main => self.main.push_back(entry),
        }
    }

    /// Records an eviction.
    pub(super) fn record_eviction(&mut self, key: u64, queue: Queue) {
        self.ghosts.add(key, queue);
        self.put_backs = 0;
    }

    /// Returns the number of entries in both queues, including stale ones.
    pub(super) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Removes stale entries.
    pub(super) fn retain(&mut self, is_alive: impl Fn(&QueueEntry) -> bool) {
        self.small.retain(&is_alive);
        self.main.retain(&is_alive);
    }
}

/// Fingerprints of evicted pages: as many as the cache has pages. Older ones are ignored.
struct Ghosts {
    /// Sets of [`WAYS`]; allocated at the first eviction.
    entries: Vec<Ghost>,
    page_count: usize,
    /// Evictions so far.
    time: u32,
    /// Recent evictions from the small queue and from main.
    evicted: [u32; 2],
}

/// Possible positions of a fingerprint.
const WAYS: usize = 4;

#[derive(Clone, Copy, Default)]
struct Ghost {
    /// 0 is an unused position.
    fingerprint: u32,
    /// The time of the eviction, and in the lowest bit the queue.
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
        self.evicted[usize::from(queue == Queue::Main)] += 1;
        if self.evicted.iter().sum::<u32>() as usize > self.page_count {
            self.evicted = self.evicted.map(|count| count / 2);
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

    fn entry(frame: Frame) -> QueueEntry {
        QueueEntry {
            frame,
            generation: 1,
        }
    }

    fn key(page: u64) -> u64 {
        page.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn scan_evicts_no_page_of_main() {
        let mut policy = ReclaimPolicy::new(100);
        (0..50).for_each(|page| policy.keep(entry(page)));
        for page in 1000..2000 {
            policy.insert(entry(page), key(page.into()));
            if policy.len() > 100 {
                let (evicted, queue) = policy.next().unwrap();
                assert_eq!(queue, Queue::Small);
                policy.record_eviction(key(evicted.frame.into()), queue);
            }
        }
        assert_eq!(policy.main.len(), 50);
    }

    #[test]
    fn refault_goes_to_main_and_adapts_the_target() {
        let mut policy = ReclaimPolicy::new(1000);
        let before = policy.small_target;
        for page in 0..100 {
            policy.record_eviction(key(page), Queue::Small);
        }
        for page in 0..100 {
            assert!(policy.insert(entry(page as Frame), key(page)));
        }
        assert_eq!((policy.main.len(), policy.small.len()), (100, 0));
        assert!(policy.small_target > before);
        for page in 100..300 {
            policy.record_eviction(key(page), Queue::Main);
            assert!(policy.insert(entry(page as Frame), key(page)));
        }
        assert!(policy.small_target < before);
    }

    #[test]
    fn unevictable_queue_does_not_hide_the_other() {
        let mut policy = ReclaimPolicy::new(1000);
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
    fn old_ghost_is_ignored() {
        let mut policy = ReclaimPolicy::new(64);
        policy.record_eviction(key(1), Queue::Small);
        for page in 1000..1100 {
            policy.record_eviction(key(page), Queue::Small);
        }
        assert!(!policy.insert(entry(1), key(1)));
    }
}
